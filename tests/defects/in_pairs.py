"""Group 1: QuantizeLinear and DequantizeLinear that do not belong together."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Draft, node
from tests.defects.layers import BLOCK, layers

WHERE = ("main", "then", "function", "loop", "nested")
OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")
KINDS = ("uint8", "int8", "uint16", "int16")
OTHER_PRODUCT = {"OQ501": "the bias has the product with the scale as it was"}


def _own(draft: Draft, name: str, index: int) -> str:
    """A copy of a node's parameter for that node alone; its name."""
    one = draft.node(name)
    fresh = f"{one.input[index]}_of_{name}"
    draft.put(fresh, draft.array(one.input[index]))
    one.input[index] = fresh
    return fresh


@defect(
    "OQ101",
    "pair-scale",
    layers(10, op=OPS, activation=KINDS, where=WHERE, opset=21, relu=[False, True]),
    also=OTHER_PRODUCT,
)
def pair_scale(draft: Draft, rng: random.Random) -> Place:
    """The DequantizeLinear of an activation has another scale than its QuantizeLinear."""
    name = rng.choice(["dq_x", "dq_y"])
    fresh = _own(draft, name, 1)
    draft.put(fresh, draft.array(fresh) * np.float32(rng.choice([1.5, 0.5, 1.001])))
    return draft.at(name)


@defect(
    "OQ101",
    "pair-scale-old",
    layers(4, op=OPS, activation=["uint8", "int8"], where=WHERE, opset=[13, 19, 23, 25]),
    also=OTHER_PRODUCT,
)
def pair_scale_old(draft: Draft, rng: random.Random) -> Place:
    """The DequantizeLinear of an activation has another scale, at opsets 13, 19, 23 and 25."""
    return pair_scale(draft, rng)


@defect("OQ101", "pair-zero-point", layers(8, op=OPS, activation=KINDS, where=WHERE, opset=[21, 25]))
def pair_zero_point(draft: Draft, rng: random.Random) -> Place:
    """The DequantizeLinear of an activation has another zero point than its QuantizeLinear."""
    name = rng.choice(["dq_x", "dq_y"])
    fresh = _own(draft, name, 2)
    zero = draft.array(fresh)
    draft.put(fresh, (zero.astype(np.int32) + rng.choice([-8, 1, 5])).astype(zero.dtype))
    return draft.at(name)


@defect("OQ101", "pair-zero-point-left-out", layers(3, op=OPS, where=WHERE))
def pair_zero_point_left_out(draft: Draft, rng: random.Random) -> Place:
    """The DequantizeLinear has no zero point, and its QuantizeLinear one that is not 0."""
    del draft.node("dq_x").input[2]
    return draft.at("dq_x")


@defect(
    "OQ101",
    "weight-pair-scale",
    layers(5, op=OPS, where=WHERE),
    also={"OQ110": "a float weight in front of a pair", **OTHER_PRODUCT},
)
def weight_pair_scale(draft: Draft, rng: random.Random) -> Place:
    """The pair of a float weight has two different scales, in one channel."""
    _unfold(draft)
    fresh = _own(draft, "dq_w", 1)
    scale = draft.array(fresh)
    scale[rng.randrange(scale.size)] *= 1.5
    draft.put(fresh, scale)
    return draft.at("dq_w")


@defect(
    "OQ101",
    "pair-axis",
    layers(5, op=OPS, where=WHERE, square=True),
    also={"OQ110": "a float weight in front of a pair", "OQ303": "one of the two axes is not that of the channels"},
)
def pair_axis(draft: Draft, rng: random.Random) -> Place:
    """The pair of a square weight has two different axes."""
    _unfold(draft)
    axis = draft.node("dq_w").attribute[0].i
    draft.set(rng.choice(["q_w", "dq_w"]), "axis", 1 - axis)
    return draft.at("dq_w")


@defect(
    "OQ101",
    "pair-block-size",
    layers(2, op=["MatMul", "Gemm"], granularity="block", activation="none", bias="none", where=WHERE),
    also={"OQ110": "a float weight in front of a pair"},
)
def pair_block_size(draft: Draft, rng: random.Random) -> Place:
    """A pair in blocks has two different block sizes, both of which fit."""
    _unfold(draft)
    draft.set("dq_w", "block_size", BLOCK + rng.randrange(1, 4))
    return draft.at("dq_w")


def _unfold(draft: Draft) -> None:
    """The float weight in front of a pair, where its integers were."""
    weight, scale = draft.array("w").astype(np.float32), draft.array("w_scale")
    old = draft.node("dq_w")
    if scale.shape == weight.shape[:1] or scale.shape == weight.shape[1:2]:
        axis = old.attribute[0].i
        weight = weight * scale.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
    draft.put("w", weight)
    new = node("QuantizeLinear", ["w", "w_scale", "w_zero"], "w_integers", "q_w")
    new.attribute.extend(old.attribute)
    draft.insert("dq_w", new)
    old.input[0] = "w_integers"


@defect(
    "OQ102",
    "pair-type",
    layers(5, op=OPS, activation=["uint8", "int8"], where=WHERE, opset=[13, 21, 25]),
    also={"OQ101": "the zero points differ as numbers, too"},
)
def pair_type(draft: Draft, rng: random.Random) -> Place:
    """QuantizeLinear writes unsigned integers, and DequantizeLinear reads signed ones, or the other way round."""
    fresh = _own(draft, "dq_x", 2)
    other = np.int8 if draft.array(fresh).dtype == np.uint8 else np.uint8
    draft.put(fresh, np.array(0, other))
    return draft.at("dq_x")


@defect("OQ103", "orphan", layers(5, op=OPS, activation=["uint8", "int8"], where=WHERE))
def orphan(draft: Draft, rng: random.Random) -> Place:
    """Nothing reads the integers of a QuantizeLinear."""
    draft.insert("layer", node("QuantizeLinear", ["x_float", "x_scale", "x_zero"], "x_again", "q_again"))
    return draft.at("q_again")


@defect("OQ103", "bypass", layers(5, op=OPS, activation=["uint8", "int8", "uint16"], where=WHERE))
def bypass(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear stands there, and the float value goes past it."""
    draft.drop("dq_y")
    draft.nodes.append(node("Identity", ["y_real"], "y", "past"))
    return draft.at("q_y")


@defect("OQ104", "shared-q", layers(5, op=OPS, activation=["uint8", "int8"], where=WHERE), alters=True)
def shared_q(draft: Draft, rng: random.Random) -> Place:
    """Two DequantizeLinear read one QuantizeLinear."""
    _second_reader(draft)
    return draft.at("q_y")


@defect("OQ101", "shared-q-scale", layers(5, op=OPS, activation=["uint8", "int8"], where=WHERE), alters=True)
def shared_q_scale(draft: Draft, rng: random.Random) -> Place:
    """Two DequantizeLinear read one QuantizeLinear, the second at another scale."""
    _second_reader(draft)
    fresh = _own(draft, "dq_second", 1)
    draft.put(fresh, draft.array(fresh) * np.float32(1.5))
    return draft.at("dq_second")


def _second_reader(draft: Draft) -> None:
    draft.node("dq_y").output[0] = "y_first"
    draft.nodes.append(node("DequantizeLinear", ["y_integers", "y_scale", "y_zero"], "y_second", "dq_second"))
    draft.nodes.append(node("Add", ["y_first", "y_second"], "y", "add"))


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
