"""The versions that a model needs for its pairs and its element types."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.look import all_graphs, all_nodes
from onnxq.numerics.spec import QTYPES
from onnxq.opsets.upgrade import min_ir_version
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


def opset_of_pairs(model: ir.Model) -> int:
    """The opset of ai.onnx that all pairs of a model need; 0 without any."""
    pairs = (n for n in all_nodes(model) if not n.domain and (is_q(n, QUANTIZE) or is_q(n, DEQUANTIZE)))
    return max((opset_needed(node) for node in pairs), default=0)


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
