"""The versions that a model needs for its pairs and its element types."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import onnx_ir as ir

from onnxq.look import all_graphs, nested_graphs, roots
from onnxq.numerics.spec import QTYPES
from onnxq.opsets.upgrade import min_ir_version, newest, schema
from onnxq.pairs import dtype_of, integer_type, parameter
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

# Operator texts.
_SINCE = {"axis": 13, "saturate": 19, "block_size": 21, "output_dtype": 21, "precision": 23}
_DQ_OUTPUT_DTYPE_SINCE = 23
_HALF_SINCE, _POWERS_SINCE = 19, 24
# Comments of onnx.proto.
_IR_VERSIONS = {
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 9),
    **dict.fromkeys(("INT4", "UINT4"), 10),
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    **dict.fromkeys(("INT2", "UINT2"), 13),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 14),
}


def attribute_since(node: ir.Node, name: str) -> int:
    """The opset that brought an attribute of a QuantizeLinear or DequantizeLinear; 0 for one it does not have."""
    if name == "output_dtype" and node.op_type == DEQUANTIZE:
        return _DQ_OUTPUT_DTYPE_SINCE
    return _SINCE.get(name, 0)


def ir_version_of(dtype: ir.DataType) -> int:
    """The IR version that brought an element type; 0 for those that were always there."""
    return _IR_VERSIONS.get(dtype.name, 0)


def opset_needed(node: ir.Node) -> int:
    """The opset that a QuantizeLinear or DequantizeLinear of ai.onnx needs for its types and attributes."""
    qtype, kind = integer_type(node), dtype_of(parameter(node, 1))
    spec = QTYPES.get(qtype.name.lower()) if qtype is not None else None
    needed = [spec.since] if spec is not None else []
    if kind in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        needed.append(_HALF_SINCE)
    elif kind == ir.DataType.FLOAT8E8M0:
        needed.append(_POWERS_SINCE)
    return max([*needed, *(attribute_since(node, name) for name in node.attributes)], default=0)


def opset_of(model: ir.Model) -> int:
    """The opset of ai.onnx that pairs need, and other operators that read or make types which came after opset 18."""
    needed = [0]
    for root, imports in roots(model):
        opset = imports.get("", 0)
        for node in (n for graph in nested_graphs(root) for n in graph if not n.domain):
            if is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE):
                needed.append(opset_needed(node))
                continue
            for side, values in (("inputs", node.inputs), ("outputs", node.outputs)):
                for index, value in enumerate(values):
                    dtype = dtype_of(value)
                    if dtype is not None and (dtype.name in _IR_VERSIONS or dtype is ir.DataType.BFLOAT16):
                        needed.append(first_with(node.op_type, opset, side, index, dtype))
    return max(needed)


@cache
def first_with(op_type: str, opset: int, side: str, index: int, dtype: ir.DataType) -> int:
    """The first opset, not below ``opset``, whose operator takes or makes a type there; 0 where none does."""
    for version in range(opset, newest() + 1):
        found = schema(op_type, version) if version else None
        formal = list(getattr(found, side)) if found is not None else []
        if formal and f"tensor({dtype.name.lower()})" in formal[min(index, len(formal) - 1)].types:
            return version
    return 0


def ir_version_needed(model: ir.Model) -> int:
    """The IR version that a model needs for its opset and the element types of its constants."""
    opset = model.opset_imports.get("", 0)
    return max([min_ir_version(opset) if opset else 0, *map(ir_version_of, set(_types(model)))])


def _types(model: ir.Model) -> Iterator[ir.DataType]:
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value.dtype
        for node in graph:
            for attr in node.attributes.values():
                if attr.type is ir.AttributeType.TENSOR and not attr.is_ref():
                    yield attr.as_tensor().dtype
