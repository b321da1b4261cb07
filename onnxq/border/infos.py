"""From values to the messages that describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import onnx_ir as ir
from onnx import GraphProto, TypeProto, ValueInfoProto

from onnxq.border.model import BOTH_KEY, VALUE_INFO_KEY, describes

Types = dict[tuple[object, ...], TypeProto]
"""Messages of types that were written already, by what they say."""


def value_info(value: ir.Value, out: ValueInfoProto, types: Types) -> None:
    """Describe a value as the serializer of `onnx_ir` does; types are made once and copied."""
    kind, shape = value.type, value.shape
    if (
        not (type(kind) is ir.TensorType and shape is not None)
        or (value.metadata_props or value.doc_string or kind.denotation)
        or any(map(shape.get_denotation, range(len(shape))))
    ):
        ir.serde.serialize_value_into(out, value)
        return
    key = (kind.dtype, *[d if isinstance(d, int) else d.value for d in shape])
    known = types.get(key)
    if known is None:
        ir.serde.serialize_value_into(out, value)
        types[key] = out.type
    else:
        out.name = cast("str", value.name)
        out.type.CopyFrom(known)


def says_something(value: ir.Value) -> bool:
    """Whether a value_info of it would hold more than its name."""
    return bool(value.type is not None or value.shape is not None or value.metadata_props or value.doc_string)


def boundary(value: ir.Value, side: int, out: ValueInfoProto) -> None:
    """Describe an input (side 0) or output (side 1); what is both keeps two descriptions until a pass changes it."""
    ir.serde.serialize_value_into(out, value)
    both = value.meta.get(BOTH_KEY)
    if both and out == both[0]:
        out.CopyFrom(both[1 + side])


def bare(value: ir.Value, out: ValueInfoProto) -> None:
    """Describe an output without a shape: onnxruntime compares it with the results, and it may be too narrow."""
    out.name = value.name or ""
    if value.type is not None:
        ir.serde.serialize_type_into(out.type, value.type)


def initializer_info(value: ir.Value, out: GraphProto) -> None:
    """A value_info only where there was one, or where it holds metadata; never one that contradicts the tensor."""
    if not (VALUE_INFO_KEY in value.meta or value.metadata_props or value.doc_string):
        return
    info = out.value_info.add()
    ir.serde.serialize_value_into(info, value)
    tensor = cast("ir.TensorProtocol", value.const_value)
    if not describes(value, tensor):
        info.type.CopyFrom(TypeProto())
        info.type.tensor_type.elem_type = tensor.dtype.value
        info.type.tensor_type.shape.SetInParent()
        for dim in tensor.shape.numpy():
            info.type.tensor_type.shape.dim.add(dim_value=dim)


def entries(props: Mapping[str, str], out: Any) -> None:
    """Write metadata, sorted by key."""
    for key in sorted(props):
        out.add(key=key, value=props[key])
