"""Quantized layers of every kind, for tests of the way to training and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

# op -> (attributes, shape of x, shape of the weight, channel axis, shape of y)
OPS: dict[str, tuple[dict[str, Any], list[int], list[int], int, list[int]]] = {
    "Conv": ({"pads": [1] * 4}, [2, 5, 6, 6], [7, 5, 3, 3], 0, [2, 7, 6, 6]),
    "ConvTranspose": ({"strides": [2, 2], "output_padding": [1, 1]}, [2, 5, 4, 4], [5, 7, 3, 3], 1, [2, 7, 10, 10]),
    "Gemm": ({"transB": 1}, [3, 11], [7, 11], 0, [3, 7]),
    "MatMul": ({}, [3, 11], [11, 7], -1, [3, 7]),
}
KINDS: dict[str, Any] = {"int8": np.int8, "uint8": np.uint8}


def pair(data: str, scale: str, zero: str, **attributes: int) -> list[NodeProto]:
    """``data -> Q -> DQ``, which makes ``data_dq``."""
    return [
        helper.make_node("QuantizeLinear", [data, scale, zero], [f"{data}_q"], f"{data}_Q", **attributes),
        helper.make_node("DequantizeLinear", [f"{data}_q", scale, zero], [f"{data}_dq"], f"{data}_DQ", **attributes),
    ]


def finished(
    nodes: list[NodeProto], constants: dict[str, Any], x: list[int], y: list[int], opset: int = 21
) -> onnx.ModelProto:
    """A checked model from x to y, both float."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    tensors = [
        v if isinstance(v, TensorProto) else numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    imports = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    onnx.checker.check_model(made, full_check=True)
    return made


def layer(
    op: str,
    weight: str = "int8",
    activation: str = "uint8",
    *,
    per_channel: bool = True,
    zero: str = "middle",
    opset: int = 21,
    bias: int = 1000,
) -> onnx.ModelProto:
    """``x -> Q -> DQ -> op(integer weight -> DQ, int32 bias -> DQ) -> Q -> DQ -> y``.

    Args:
        op: One of `OPS`.
        weight: Type of the weight.
        activation: Type of input and output.
        per_channel: One scale a channel, over two decades.
        zero: Zero points of the weight: ``middle``, ``same`` (another one), ``mixed`` or ``absent``.
        opset: The opset.
        bias: Largest integer of the bias.
    """
    rng = np.random.default_rng(0)
    attributes, x, shape, axis, y = OPS[op]
    kind, channels = KINDS[weight], 7
    many = (channels,) if per_channel else ()
    scale = (np.logspace(-3, -1, channels) if per_channel else np.asarray(0.02)).astype(np.float32)
    zeros = np.full(many, 0 if weight == "int8" or zero == "absent" else 128)
    zeros = zeros + {"middle": 0, "same": 3, "mixed": rng.integers(-3, 4, many), "absent": 0}[zero]
    limits = np.iinfo(kind)
    half = np.array(0 if activation == "int8" else 128, KINDS[activation])
    constants: dict[str, Any] = {
        "sx": np.float32(0.05), "zx": half, "sy": np.float32(0.1), "zy": half, "sw": scale,
        "w": rng.integers(limits.min + 1, limits.max + 1, shape).astype(kind),
    }  # fmt: skip
    given = ["w", "sw"]
    if zero != "absent":
        constants["zw"] = zeros.astype(kind)
        given.append("zw")
    along = {"axis": axis} if per_channel else {}
    nodes = [*pair("x", "sx", "zx"), helper.make_node("DequantizeLinear", given, ["w_dq"], "w_DQ", **along)]
    inputs = ["x_dq", "w_dq"]
    if op != "MatMul":
        constants["b"] = rng.integers(-bias, bias + 1, channels).astype(np.int32)
        constants["sb"] = (np.float32(0.05) * scale).astype(np.float32)
        along = {"axis": 0} if per_channel else {}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "sb"], ["b_dq"], "b_DQ", **along))
        inputs.append("b_dq")
    nodes.append(helper.make_node(op, inputs, ["c"], op.lower(), **attributes))
    last = pair("c", "sy", "zy")
    last[1].output[0] = "y"
    return finished([*nodes, *last], constants, x, y, opset)


def arrays(proto: onnx.ModelProto) -> dict[str, Array]:
    """Initializers by name."""
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def same_model(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    """Nothing differs but metadata, the order of initializers, and the field that numbers are stored in."""
    assert list(a.opset_import) == list(b.opset_import) and a.ir_version == b.ir_version
    assert [_plain(n) for n in a.graph.node] == [_plain(n) for n in b.graph.node]
    assert list(a.graph.output) == list(b.graph.output) and list(a.graph.input) == list(b.graph.input)
    one, other = arrays(a), arrays(b)
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
        assert array.tobytes() == other[name].tobytes(), name


def _plain(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.metadata_props[:]
    attributes = sorted(copy.attribute, key=lambda a: a.name)
    del copy.attribute[:]
    copy.attribute.extend(attributes)
    return copy
