"""Small quantized layers that can be broken, in the main graph, in an If body, or in a local function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Where = Literal["main", "body", "function"]
WHERE: tuple[Where, ...] = ("main", "body", "function")


@dataclass
class Parts:
    """What a model is made of, before it is one: break it, then build it."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, Array]
    shapes: tuple[list[int], list[int]]
    opset: int = 21
    imports: list[tuple[str, int]] = field(default_factory=list)
    infos: list[onnx.ValueInfoProto] = field(default_factory=list)
    types: dict[str, int] = field(default_factory=dict)
    ir_version: int = 10

    def node(self, name: str) -> onnx.NodeProto:
        (found,) = [n for n in self.nodes if n.name == name]
        return found

    def set(self, name: str, attribute: str, value: object) -> None:
        """Write or, with None, remove an attribute."""
        node = self.node(name)
        kept = [a for a in node.attribute if a.name != attribute]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value is not None:
            node.attribute.append(helper.make_attribute(attribute, value))

    def build(self, where: Where = "main") -> onnx.ModelProto:
        """The model, with input x and output y."""
        x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in zip("xy", self.shapes, strict=True))
        tensors = [self._tensor(name) for name in self.constants]
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(*i) for i in self.imports)]
        functions: list[onnx.FunctionProto] = []
        if where == "main":
            graph = helper.make_graph(self.nodes, "g", [x], [y], tensors, value_info=self.infos)
        elif where == "body":
            inner = [onnx.NodeProto.FromString(n.SerializeToString()) for n in self.nodes]
            for node in inner:
                node.output[:] = ["y_then" if name == "y" else name for name in node.output]
            outs = [helper.make_tensor_value_info(n, 1, self.shapes[1]) for n in ("y_then", "y_else")]
            then = helper.make_graph(inner, "then", [], outs[:1], tensors, value_info=self.infos)
            zeros = numpy_helper.from_array(np.zeros(self.shapes[1], np.float32), "y_else")
            other = helper.make_graph([], "else", [], outs[1:], [zeros])
            choice = numpy_helper.from_array(np.array(True), "choice")
            node = helper.make_node("If", ["choice"], ["y"], "branch", then_branch=then, else_branch=other)
            graph = helper.make_graph([node], "g", [x], [y], [choice])
        else:
            made = [helper.make_node("Constant", [], [t.name], f"Constant_{t.name}", value=t) for t in tensors]
            functions = [helper.make_function("local", "layer", ["x"], ["y"], [*made, *self.nodes], imports)]
            imports = [*imports, helper.make_opsetid("local", 1)]
            graph = helper.make_graph([helper.make_node("layer", ["x"], ["y"], "call", domain="local")], "g", [x], [y])
        return helper.make_model(graph, opset_imports=imports, ir_version=self.ir_version, functions=functions)

    def _tensor(self, name: str) -> onnx.TensorProto:
        if name in self.types:
            array = self.constants[name]
            return helper.make_tensor(name, self.types[name], array.shape, array.ravel().tolist())
        return numpy_helper.from_array(np.asarray(self.constants[name]), name)


def layer(op: str = "Conv", opset: int = 21, activation: type[np.generic] = np.uint8) -> Parts:
    """``x -> Q -> DQ -> op(weight per channel, int32 bias) -> Q -> DQ -> y``, 6 channels in, 8 out."""
    rng = np.random.default_rng(1)
    shape, axis, x = {
        "Conv": ((8, 6, 3, 3), 0, ([1, 6, 5, 5], [1, 8, 3, 3])),
        "ConvTranspose": ((6, 8, 3, 3), 1, ([1, 6, 5, 5], [1, 8, 7, 7])),
        "Gemm": ((6, 8), 1, ([4, 6], [4, 8])),
        "MatMul": ((6, 8), 1, ([4, 6], [4, 8])),
    }[op]
    w = rng.normal(size=shape).astype(np.float32)
    others = tuple(i for i in range(len(shape)) if i != axis)
    s_x = np.float32(0.02)
    s_w = (np.abs(w).max(axis=others) / 127).astype(np.float32)
    spread = [1] * len(shape)
    spread[axis] = 8
    s_b = np.asarray(s_x * s_w, np.float32)
    zero = 128 if activation is np.uint8 else 0
    constants = {
        "x_scale": s_x,
        "x_zero": np.array(zero, activation),
        "w": np.rint(w / s_w.reshape(spread)).astype(np.int8),
        "w_scale": s_w,
        "w_zero": np.zeros(8, np.int8),
        "b": np.rint(rng.normal(size=8) / s_b).astype(np.int32),
        "b_scale": s_b,
        "b_zero": np.zeros(8, np.int32),
        "y_scale": np.float32(0.1),
        "y_zero": np.array(zero, activation),
    }
    product = ["MatMul"] if op == "MatMul" else [op]
    nodes = [
        _node("QuantizeLinear", ["x", "x_scale", "x_zero"], "xq"),
        _node("DequantizeLinear", ["xq", "x_scale", "x_zero"], "xd"),
        _node("DequantizeLinear", ["w", "w_scale", "w_zero"], "wd", axis=axis),
        _node("DequantizeLinear", ["b", "b_scale", "b_zero"], "bd", axis=0),
        _node(product[0], ["xd", "wd"] if op == "MatMul" else ["xd", "wd", "bd"], "p"),
        *([_node("Add", ["p", "bd"], "a")] if op == "MatMul" else []),
        _node("QuantizeLinear", ["a" if op == "MatMul" else "p", "y_scale", "y_zero"], "yq"),
        _node("DequantizeLinear", ["yq", "y_scale", "y_zero"], "y"),
    ]
    return Parts(nodes, {k: np.asarray(v) for k, v in constants.items()}, x, opset)


def _node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [output], f"{op_type}_{output}", **attributes)


def numbers(model: onnx.ModelProto, true: bool, seed: int = 0) -> Array:
    """Output y for normal x: onnxruntime's default session, or one that computes pairs as they are written."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if true:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return np.asarray(session.run(["y"], {"x": x})[0])


def float_info(name: str, shape: list[int] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A declaration."""
    return helper.make_tensor_value_info(name, kind, shape)
