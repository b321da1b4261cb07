"""Groups 3 to 5: axes, packing, biases."""

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


@defect(
    "OQ401",
    "odd-pack-axis",
    layers(3, op=["MatMul", "Gemm"], weight=["int4", "uint4"], activation="int8", bias="none", where=WHERE),
    target="ascend",
)
def odd_pack_axis(draft: Draft, rng: random.Random) -> Place:
    """A 4-bit weight is odd along the axis that the target packs."""
    draft.put("w", draft.array("w")[:, :-1])
    for name in ("w_scale", "w_zero"):
        draft.put(name, draft.array(name)[:-1])
    draft.outputs["y"][1] -= 1
    return draft.at("layer")


@defect(
    "OQ402",
    "four-bits-in-eight",
    layers(3, op=OPS, weight=["int8", "uint8"], where=WHERE),
    also={"OQ212": "the range of eight bits is not used"},
    alters=True,
)
def four_bits_in_eight(draft: Draft, rng: random.Random) -> Place:
    """Integers of four bits are stored one in a byte."""
    weight = draft.array("w")
    draft.put("w", weight >> 4 if weight.dtype == np.uint8 else np.clip(weight // 16, -8, 7))
    return draft.at("dq_w")


@defect(
    "OQ403",
    "dirty-padding",
    layers(
        4,
        op=["MatMul", "Gemm", "Conv"],
        activation="none",
        granularity="tensor",
        weight=["int4", "uint4"],
        bias="none",
        where=WHERE,
    ),
)
def dirty_padding(draft: Draft, rng: random.Random) -> Place:
    """The unused half of the last byte of a 4-bit tensor is not zero."""
    odd_values(draft)
    raw = draft.tensors["w"].raw_data
    draft.tensors["w"].raw_data = raw[:-1] + bytes([raw[-1] & 15 | rng.randrange(1, 16) << 4])
    return draft.at_tensor("w")


def odd_values(draft: Draft) -> None:
    """A weight of an odd number of values: one channel of an odd number of inputs."""
    weight = draft.array("w")
    if weight.ndim == 4:
        draft.put("w", weight[:1, :5])
        draft.inputs["x"][1], draft.outputs["y"][1] = 5, 1
    else:
        draft.put("w", weight[:31, :1])
        draft.inputs["x"][1], draft.outputs["y"][1] = 31, 1


@defect(
    "OQ404",
    "two-bit-columns",
    layers(
        3,
        op=["MatMul", "Gemm"],
        activation="none",
        weight=["int2", "uint2"],
        opset=25,
        bias="none",
        where=["main", "then", "function"],
    ),
    target="ort-cpu",
)
def two_bit_columns(draft: Draft, rng: random.Random) -> Place:
    """A 2-bit weight has a number of columns that four does not divide."""
    columns = rng.choice([5, 6, 7])
    draft.put("w", draft.array("w")[:, :columns])
    for name in ("w_scale", "w_zero"):
        draft.put(name, draft.array(name)[:columns])
    draft.outputs["y"][1] = columns
    return draft.at("dq_w")


@defect(
    "OQ405",
    "packed-too-long",
    layers(
        6,
        op=["MatMul", "Gemm", "Conv"],
        activation="none",
        bias="none",
        weight=["int4", "uint4", "int2", "uint2"],
        opset=25,
        where=WHERE,
    ),
)
def packed_too_long(draft: Draft, rng: random.Random) -> Place:
    """A 4- or 2-bit tensor holds one value a byte."""
    count = int(np.prod(draft.tensors["w"].dims))
    draft.tensors["w"].raw_data = bytes(rng.randrange(4) for _ in range(count))
    return draft.at_tensor("w")


@defect(
    "OQ405",
    "packed-one-byte-too-long",
    layers(
        3,
        op=["Gemm", "MatMul"],
        activation="none",
        bias="none",
        granularity="block",
        weight=["uint4", "int4"],
        where=WHERE,
    ),
)
def packed_one_byte_too_long(draft: Draft, rng: random.Random) -> Place:
    """A 4-bit tensor has one byte too many."""
    draft.tensors["w"].raw_data += b"\0"
    return draft.at_tensor("w")


BIASED = ("Conv", "Gemm", "ConvTranspose", "GemmT", "MatMul")


@defect(
    "OQ501",
    "bias-own-scale",
    layers(8, op=BIASED, where=WHERE, opset=[21, 13], granularity=["channel", "channel", "tensor"]),
)
def bias_own_scale(draft: Draft, rng: random.Random) -> Place:
    """An int32 bias has a scale of its own: a right DequantizeLinear, which integer kernels do not read."""
    draft.put("b_scale", draft.array("b_scale") * np.float32(4))
    draft.put("b", draft.array("b") // 4)
    return draft.at("dq_b")


@defect(
    "OQ501", "bias-scale-off", layers(8, op=BIASED, where=WHERE, activation=["uint8", "int8"], weight=["int8", "uint8"])
)
def bias_scale_off(draft: Draft, rng: random.Random) -> Place:
    """The scale of an int32 bias is off in one channel."""
    scale = draft.array("b_scale")
    scale[rng.randrange(scale.size)] *= rng.choice([4, 0.5, 1.01])
    draft.put("b_scale", scale)
    return draft.at("dq_b")


@defect("OQ501", "bias-one-scale", layers(3, op=BIASED, where=WHERE))
def bias_one_scale(draft: Draft, rng: random.Random) -> Place:
    """The weight has a scale a channel, and the bias one for all of them."""
    scale = draft.array("b_scale")
    draft.put("b_scale", scale.max())
    draft.put("b", np.rint(draft.array("b") * (scale / scale.max())).astype(np.int32))
    return draft.at("dq_b")


@defect(
    "OQ501", "bias-of-two-layers", layers(4, op=["Conv", "Gemm", "GemmT", "ConvTranspose"], where=WHERE), alters=True
)
def bias_of_two_layers(draft: Draft, rng: random.Random) -> Place:
    """Two layers with weights of different scales read one int32 bias."""
    first = draft.node("layer")
    draft.put("v_scale", draft.array("w_scale") * np.float32(rng.choice([0.5, 3])))
    turned = node("DequantizeLinear", ["w", "v_scale", "w_zero"], "v_float", "dq_v")
    turned.attribute.extend(draft.node("dq_w").attribute)
    second = node(first.op_type, [first.input[0], "v_float", "b_float"], "y_second", "second")
    second.attribute.extend(first.attribute)
    first.output[0] = "y_first"
    draft.insert("q_y", turned, second, node("Add", ["y_first", "y_second"], "y_real", "add"))
    return draft.at("dq_b")


@defect("OQ502", "bias-zero-point", layers(5, op=BIASED, where=WHERE, opset=[21, 13]))
def bias_zero_point(draft: Draft, rng: random.Random) -> Place:
    """An int32 bias has a zero point."""
    draft.put("b_zero", np.full(8, rng.choice([1_000_000, 1]), np.int32))
    draft.node("dq_b").input.append("b_zero")
    return draft.at("dq_b")


@defect(
    "OQ503",
    "bias-saturated",
    layers(5, op=BIASED, where=WHERE),
    also={"OQ506": "no room for the products"},
    alters=True,
)
def bias_saturated(draft: Draft, rng: random.Random) -> Place:
    """An int32 bias lies at the end of its range."""
    bias = draft.array("b")
    bias[rng.randrange(8)] = rng.choice([2**31 - 1, -(2**31)])
    draft.put("b", bias)
    return draft.at("dq_b")


@defect("OQ504", "bias-axis", layers(5, op=BIASED, where=WHERE, opset=[21, 13]))
def bias_axis(draft: Draft, rng: random.Random) -> Place:
    """The scales of a bias have no axis."""
    draft.set("dq_b", "axis", None)
    return draft.at("dq_b")


@defect(
    "OQ505",
    "float-bias-overflow",
    layers(4, op=["Conv", "Gemm", "GemmT", "ConvTranspose"], bias="float", where=["main", "then", "function"]),
    target="ort-cpu",
    alters=True,
)
def float_bias_overflow(draft: Draft, rng: random.Random) -> Place:
    """A float bias does not fit int32 when onnxruntime turns it into integers."""
    scale = draft.array("w_scale")
    scale[rng.randrange(8)] = 1e-10
    draft.put("w_scale", scale)
    draft.put("b_float", np.ones(8, np.float32))
    return draft.at("layer")


@defect("OQ506", "no-headroom", layers(3, op=BIASED, where=WHERE), alters=True)
def no_headroom(draft: Draft, rng: random.Random) -> Place:
    """An int32 bias leaves no room for the sum of products."""
    bias = draft.array("b")
    bias[rng.randrange(8)] = 2**31 - 1 - 20_000
    draft.put("b", bias)
    return draft.at("dq_b")


@defect(
    "OQ507",
    "bias-of-eight-bits",
    layers(3, op=["Conv", "Gemm", "GemmT", "ConvTranspose"], where=WHERE, bias="none"),
    alters=True,
)
def bias_of_eight_bits(draft: Draft, rng: random.Random) -> Place:
    """A bias is stored in 8 bits."""
    draft.put("b", np.arange(-4, 4, dtype=np.int8))
    draft.put("b_scale", np.float32(0.1))
    draft.insert("layer", node("DequantizeLinear", ["b", "b_scale"], "b_float", "dq_b"))
    draft.node("layer").input.append("b_float")
    return draft.at("dq_b")
