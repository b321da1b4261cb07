"""Group 1: what is done with integers, and parameters that are no constants."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Draft, node
from tests.defects.in_pairs import _own, _unfold
from tests.defects.layers import layers

WHERE = ("main", "then", "function", "loop", "nested")


OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")


KINDS = ("uint8", "int8", "uint16", "int16")


def _qlinear(draft: Draft) -> None:
    """The integer operator in place of the layer and its pairs."""
    names = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul"}
    held = draft.node("layer")
    draft.drop("dq_x", "dq_w", "q_y", "layer")
    inputs = ["x_integers", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
    integer = node(names[held.op_type], inputs, "y_integers", "integer")
    draft.insert("dq_y", integer)


@defect("OQ105", "integer-op-scale", layers(4, op=["Conv", "MatMul"], granularity="tensor", bias="none", where=WHERE))
def integer_op_scale(draft: Draft, rng: random.Random) -> Place:
    """An integer operator takes its input to have another scale than it was made with."""
    _qlinear(draft)
    fresh = _own(draft, "integer", 1)
    draft.put(fresh, draft.array(fresh) * np.float32(1.5))
    return draft.at("integer")


@defect(
    "OQ105",
    "integer-op-zero-point",
    layers(3, op=["MatMul", "Conv"], granularity="tensor", bias="none", activation=["uint8", "int8"], where=WHERE),
)
def integer_op_zero_point(draft: Draft, rng: random.Random) -> Place:
    """A DequantizeLinear reads what an integer operator made at another zero point."""
    _qlinear(draft)
    fresh = _own(draft, "dq_y", 2)
    draft.put(fresh, (draft.array(fresh) + 3).astype(draft.array(fresh).dtype))
    return draft.at("dq_y")


@defect("OQ106", "double-pair", layers(5, op=OPS, activation=KINDS, where=WHERE, bias=["none", "float"]), alters=True)
def double_pair(draft: Draft, rng: random.Random) -> Place:
    """A value is quantized twice in a row, at different ranges."""
    draft.put("z_scale", draft.array("x_scale") * np.float32(rng.choice([0.7, 1.4])))
    q = node("QuantizeLinear", ["x_float", "z_scale", "x_zero"], "z_integers", "q_z")
    draft.insert("layer", q, node("DequantizeLinear", ["z_integers", "z_scale", "x_zero"], "z_float", "dq_z"))
    draft.node("layer").input[0] = "z_float"
    return draft.at("q_z")


@defect(
    "OQ107",
    "relu-on-integers",
    layers(5, op=OPS, activation=["int8", "uint8"], where=WHERE, opset=[21, 13]),
    also={"OQ016": "Relu takes no uint8", "OQ601": "Relu takes no uint8", "OQ010": "types contradict each other"},
)
def relu_on_integers(draft: Draft, rng: random.Random) -> Place:
    """A Relu computes with quantized integers, whatever their zero point."""
    if draft.array("y_zero") == 0:
        draft.put("y_zero", np.int8(rng.choice([-20, 11])))
    draft.insert("dq_y", node("Relu", ["y_integers"], "y_clipped", "relu_of_integers"))
    draft.node("dq_y").input[0] = "y_clipped"
    return draft.at("relu_of_integers")


@defect("OQ107", "add-of-integers", layers(4, op=OPS, activation=["uint8", "int8"], where=WHERE), alters=True)
def add_of_integers(draft: Draft, rng: random.Random) -> Place:
    """An Add adds quantized integers."""
    op = rng.choice(["Add", "Mul", "Sub"])
    draft.insert("dq_y", node(op, ["y_integers", "y_integers"], "y_sum", "sum"))
    draft.node("dq_y").input[0] = "y_sum"
    return draft.at("sum")


@defect("OQ108", "concat-of-scales", layers(5, op=OPS, activation=KINDS, where=WHERE), alters=True)
def concat_of_scales(draft: Draft, rng: random.Random) -> Place:
    """A Concat joins integers of different scales."""
    _two_scales(draft)
    draft.insert("dq_y", node("Concat", ["y_integers", "v_integers"], "joined", "join", axis=0))
    draft.node("dq_y").input[0] = "joined"
    draft.outputs["y"][0] *= 2
    return draft.at("join")


@defect("OQ108", "max-of-scales", layers(2, op=OPS, activation=["uint8", "int8"], where=WHERE), alters=True)
def max_of_scales(draft: Draft, rng: random.Random) -> Place:
    """A Max compares integers of different scales."""
    _two_scales(draft)
    draft.insert("dq_y", node("Max", ["y_integers", "v_integers"], "larger", "join"))
    draft.node("dq_y").input[0] = "larger"
    return draft.at("join")


def _two_scales(draft: Draft) -> None:
    draft.put("v_scale", draft.array("y_scale") * np.float32(3))
    draft.insert("q_y", node("QuantizeLinear", ["y_real", "v_scale", "y_zero"], "v_integers", "q_v"))


@defect("OQ109", "quantized-output", layers(4, op=OPS, activation=KINDS, where=["main", "function"]))
def quantized_output(draft: Draft, rng: random.Random) -> Place:
    """A graph gives out integers."""
    draft.outputs["y_integers"] = draft.outputs["y"]
    kind = {"u": {1: TensorProto.UINT8, 2: TensorProto.UINT16}, "i": {1: TensorProto.INT8, 2: TensorProto.INT16}}
    dtype = draft.array("y_zero").dtype
    draft.types["y_integers"] = kind[dtype.kind][dtype.itemsize]
    return draft.at("q_y")


@defect("OQ110", "weight-not-folded", layers(5, op=OPS, where=WHERE, opset=[13, 21]))
def weight_not_folded(draft: Draft, rng: random.Random) -> Place:
    """A float weight is stored in front of its pair."""
    _unfold(draft)
    return draft.at("q_w")


@defect("OQ111", "cast-and-mul", layers(4, op=["MatMul", "Gemm", "Conv"], activation="none", bias="none", where=WHERE))
def cast_and_mul(draft: Draft, rng: random.Random) -> Place:
    """A weight is dequantized by Cast and Mul."""
    scale = draft.array("w_scale")
    axis = draft.node("dq_w").attribute[0].i
    rank = len(draft.tensors["w"].dims)
    draft.put("w_scale", scale.reshape([-1 if i == axis else 1 for i in range(rank)]))
    mul = node("Mul", ["w_cast", "w_scale"], "w_float", "mul")
    draft.insert("dq_w", node("Cast", ["w"], "w_cast", "cast", to=TensorProto.FLOAT), mul)
    draft.drop("dq_w")
    del draft.tensors["w_zero"]
    return draft.at("mul")


@defect("OQ112", "computed-scale", layers(4, op=OPS, where=WHERE), alters=True)
def computed_scale(draft: Draft, rng: random.Random) -> Place:
    """The scale of a pair is computed when the model runs."""
    reduce = node("ReduceMax", ["x"], "x_largest", "largest", keepdims=0)
    draft.put("levels", np.float32(127))
    draft.insert("q_x", reduce, node("Div", ["x_largest", "levels"], "x_step", "step"))
    for name in ("q_x", "dq_x"):
        draft.node(name).input[1] = "x_step"
    del draft.tensors["x_scale"]
    return draft.at("q_x")
