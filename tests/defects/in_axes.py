"""Group 3: which axis the scales lie along."""

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


PRODUCTS = ("MatMul", "Gemm", "GemmT")


@defect("OQ301", "axis-outside", layers(6, op=OPS, where=WHERE, opset=[13, 21, 25], weight=["int8", "uint8"]))
def axis_outside(draft: Draft, rng: random.Random) -> Place:
    """The axis of a weight is outside its rank."""
    draft.set("dq_w", "axis", rng.choice([7, -5]))
    return draft.at("dq_w")


@defect("OQ301", "default-axis-of-rank-one", layers(3, op=OPS, where=WHERE), alters=True)
def default_axis_of_rank_one(draft: Draft, rng: random.Random) -> Place:
    """A stored vector with several scales has no axis; the default of 1 is outside its rank."""
    count = draft.inputs["x"][-1]
    draft.put("gain", np.arange(count, dtype=np.int8))
    draft.put("gain_scale", np.full(count, 0.02, np.float32))
    mul = node("Mul", ["x_float", "gain_float"], "x_scaled", "mul")
    draft.insert("layer", node("DequantizeLinear", ["gain", "gain_scale"], "gain_float", "dq_gain"), mul)
    draft.node("layer").input[0] = "x_scaled"
    return draft.at("dq_gain")


@defect("OQ302", "scale-length", layers(8, op=OPS, where=WHERE, bias=["float", "none"], opset=[13, 21]))
def scale_length(draft: Draft, rng: random.Random) -> Place:
    """A weight has more or fewer scales than output channels."""
    count = rng.choice([7, 9, 4])
    draft.put("w_scale", np.resize(draft.array("w_scale"), count))
    draft.put("w_zero", np.resize(draft.array("w_zero"), count))
    return draft.at("dq_w")


@defect(
    "OQ302",
    "wrong-axis-by-length",
    layers(5, op=OPS, where=WHERE, bias=["float", "none"], weight=["int8", "int4"]),
    also={"OQ303": "it is not that of the output channels"},
)
def wrong_axis_by_length(draft: Draft, rng: random.Random) -> Place:
    """The scales of a weight lie along another axis, which is not as long."""
    draft.set("dq_w", "axis", 1 - draft.node("dq_w").attribute[0].i)
    return draft.at("dq_w")


@defect(
    "OQ303",
    "square-axis",
    layers(
        10, op=OPS, where=WHERE, square=True, bias=["int32", "none", "float"], opset=[21, 13], weight=["int8", "uint8"]
    ),
)
def square_axis(draft: Draft, rng: random.Random) -> Place:
    """The scales of a square weight lie along its input channels."""
    draft.set("dq_w", "axis", 1 - draft.node("dq_w").attribute[0].i)
    return draft.at("dq_w")


@defect(
    "OQ303",
    "square-axis-from-the-end",
    layers(4, op=PRODUCTS, where=WHERE, square=True, bias="none", activation=["uint8", "none"]),
)
def square_axis_from_the_end(draft: Draft, rng: random.Random) -> Place:
    """The scales of a square weight lie along its input channels, counted from the end."""
    draft.set("dq_w", "axis", -1 - draft.node("dq_w").attribute[0].i)
    return draft.at("dq_w")


@defect(
    "OQ303",
    "square-axis-behind-transpose",
    layers(4, op=PRODUCTS, where=WHERE, square=True, bias="none", weight=["int8", "int4"]),
)
def square_axis_behind_transpose(draft: Draft, rng: random.Random) -> Place:
    """A Transpose between weight and layer turns the axis, and nobody thought of it."""
    draft.insert("layer", node("Transpose", ["w_float"], "w_turned", "turn", perm=[1, 0]))
    draft.node("layer").input[1] = "w_turned"
    return draft.at("dq_w")


@defect("OQ303", "axis-of-batched-weight", layers(3, op="MatMul", where=WHERE, square=True, bias="none"), alters=True)
def axis_of_batched_weight(draft: Draft, rng: random.Random) -> Place:
    """The scales of a stored weight of rank 3 lie along axis 1, as those of a matrix do."""
    draft.put("w", np.stack([draft.array("w")] * 2))
    for shape in (draft.inputs["x"], draft.outputs["y"]):
        shape.insert(0, 2)
    return draft.at("dq_w")


@defect("OQ304", "channels-of-activation", layers(5, op=OPS, where=WHERE, activation=["uint8", "int8"], bias="none"))
def channels_of_activation(draft: Draft, rng: random.Random) -> Place:
    """An activation has a scale for each channel."""
    count = draft.inputs["x"][1]
    draft.put("x_scale", np.linspace(0.02, 0.04, count, dtype=np.float32))
    draft.put("x_zero", np.full(count, draft.array("x_zero")))
    for name in ("q_x", "dq_x"):
        draft.set(name, "axis", 1)
    return draft.at("q_x")


@defect(
    "OQ305",
    "block-size-misfit",
    layers(
        5,
        op=PRODUCTS,
        weight=["int4", "uint4", "int8"],
        granularity="block",
        activation="none",
        bias="none",
        where=WHERE,
    ),
)
def block_size_misfit(draft: Draft, rng: random.Random) -> Place:
    """The block size does not go with the shape of the scale."""
    draft.set("dq_w", "block_size", rng.choice([BLOCK // 2, 2 * BLOCK]))
    return draft.at("dq_w")


@defect(
    "OQ305",
    "block-size-negative",
    layers(2, op=PRODUCTS, granularity="block", activation="none", bias="none", where=["main", "function"]),
)
def block_size_negative(draft: Draft, rng: random.Random) -> Place:
    """The block size is negative."""
    draft.set("dq_w", "block_size", -BLOCK)
    return draft.at("dq_w")


@defect("OQ305", "blocks-with-one-row", layers(4, op=["MatMul", "Gemm", "GemmT", "Conv"], where=WHERE, bias="none"))
def blocks_with_one_row(draft: Draft, rng: random.Random) -> Place:
    """There is a block size, and the scale has one dimension."""
    draft.set("dq_w", "block_size", BLOCK)
    return draft.at("dq_w")


@defect(
    "OQ306",
    "block-size-too-new",
    layers(3, op=PRODUCTS, opset=19, bias="none", where=WHERE, weight="int8"),
    also={"OQ305": "the scale is that of channels"},
)
def block_size_too_new(draft: Draft, rng: random.Random) -> Place:
    """There is a block size, and the opset does not know any."""
    draft.set("dq_w", "block_size", BLOCK)
    return draft.at("dq_w")


@defect("OQ306", "output-type-too-new", layers(3, op=OPS, opset=[13, 19], where=WHERE))
def output_type_too_new(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear says its type by an attribute that the opset does not know."""
    draft.set("q_x", "output_dtype", int(TensorProto.UINT8))
    return draft.at("q_x")


@defect("OQ306", "saturate-too-new", layers(2, op=OPS, opset=13, where=WHERE))
def saturate_too_new(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear has `saturate` before opset 19."""
    draft.set("q_y", "saturate", 1)
    return draft.at("q_y")


@defect("OQ306", "precision-too-new", layers(2, op=OPS, opset=[19, 21], where=WHERE))
def precision_too_new(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear has `precision` before opset 23."""
    draft.set("q_y", "precision", 1)
    return draft.at("q_y")


@defect("OQ306", "axis-too-new", layers(2, op=["Conv", "Gemm"], opset=13, where=["main", "then"], bias="none"))
def axis_too_new(draft: Draft, rng: random.Random) -> Place:
    """Pairs have an axis before opset 13."""

    draft.edits.append(lambda model, _: setattr(model.opset_import[0], "version", 12))
    return draft.at("dq_w")


@defect("OQ307", "axis-left-out", layers(4, op=["MatMul", "Gemm", "ConvTranspose"], where=WHERE))
def axis_left_out(draft: Draft, rng: random.Random) -> Place:
    """A weight has several scales, and its axis is the default."""
    draft.set("dq_w", "axis", None)
    return draft.at("dq_w")
