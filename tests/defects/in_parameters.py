"""Group 2: scales and zero points."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto, helper

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Draft
from tests.defects.layers import layers

WHERE = ("main", "then", "function", "loop", "nested")
OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")
KINDS = ("uint8", "int8", "uint16", "int16")


def _channel(draft: Draft, value: float, rng: random.Random) -> Place:
    scale = draft.array("w_scale")
    scale.reshape(-1)[rng.randrange(scale.size)] = value
    draft.put("w_scale", scale)
    return draft.at("dq_w")


@defect("OQ201", "scale-zero", layers(5, op=OPS, activation=KINDS, where=WHERE, opset=[21, 25]))
def scale_zero(draft: Draft, rng: random.Random) -> Place:
    """The scale of an activation is 0."""
    draft.put("x_scale", np.float32(0))
    return draft.at("q_x")


@defect("OQ201", "scale-negative", layers(5, op=OPS, activation=KINDS, where=WHERE, opset=[25, 21]))
def scale_negative(draft: Draft, rng: random.Random) -> Place:
    """The scale of an activation is negative."""
    draft.put("y_scale", -draft.array("y_scale"))
    return draft.at(rng.choice(["q_y", "dq_y"]))


@defect(
    "OQ201",
    "channel-scale-zero",
    layers(8, op=OPS, weight=["int8", "uint8", "int16", "int4", "uint4"], bias="float", where=WHERE),
)
def channel_scale_zero(draft: Draft, rng: random.Random) -> Place:
    """The scale of one channel of a weight is 0."""
    return _channel(draft, 0, rng)


@defect(
    "OQ201",
    "block-scale-zero",
    layers(
        3,
        op=["MatMul", "Gemm", "GemmT"],
        weight=["int4", "uint4", "int8"],
        bias="none",
        activation="none",
        granularity="block",
        where=WHERE,
    ),
)
def block_scale_zero(draft: Draft, rng: random.Random) -> Place:
    """The scale of one block of a weight is 0."""
    return _channel(draft, 0, rng)


@defect("OQ201", "channel-scale-negative", layers(4, op=OPS, bias=["float", "none"], where=WHERE, opset=[13, 19]))
def channel_scale_negative(draft: Draft, rng: random.Random) -> Place:
    """The scale of one channel of a weight is negative."""
    return _channel(draft, -0.01, rng)


@defect("OQ202", "scale-nan", layers(5, op=OPS, activation=KINDS, where=WHERE))
def scale_nan(draft: Draft, rng: random.Random) -> Place:
    """The scale of an activation is NaN."""
    draft.put("x_scale", np.float32(np.nan))
    return draft.at("q_x")


@defect("OQ202", "scale-infinite", layers(5, op=OPS, activation=KINDS, where=WHERE, bias="none"))
def scale_infinite(draft: Draft, rng: random.Random) -> Place:
    """The scale of an activation is infinite."""
    draft.put("y_scale", np.float32(np.inf))
    return draft.at(rng.choice(["q_y", "dq_y"]))


@defect("OQ202", "channel-scale-nan", layers(5, op=OPS, weight=["int8", "int4"], bias="float", where=WHERE))
def channel_scale_nan(draft: Draft, rng: random.Random) -> Place:
    """The scale of one channel of a weight is NaN."""
    return _channel(draft, np.nan, rng)


@defect(
    "OQ202",
    "half-scale-infinite",
    layers(
        2,
        op=["MatMul", "Gemm"],
        activation="none",
        weight="int4",
        half=True,
        granularity="block",
        bias="none",
        where=["main", "function"],
    ),
)
def half_scale_infinite(draft: Draft, rng: random.Random) -> Place:
    """A float16 scale of a block is infinite, because it left float16."""
    return _channel(draft, np.inf, rng)


@defect("OQ203", "scale-subnormal", layers(4, op=OPS, bias="none", where=WHERE))
def scale_subnormal(draft: Draft, rng: random.Random) -> Place:
    """The scale of an activation is below the normal numbers of float32."""
    draft.put("x_scale", np.float32(1e-40))
    return draft.at("q_x")


@defect("OQ203", "channel-scale-subnormal", layers(3, op=OPS, bias="float", where=WHERE))
def channel_scale_subnormal(draft: Draft, rng: random.Random) -> Place:
    """The scale of one channel of a weight is below the normal numbers of float32."""
    return _channel(draft, 1e-41, rng)


@defect(
    "OQ203",
    "half-scale-subnormal",
    layers(
        2,
        op=["Gemm", "MatMul"],
        activation="none",
        weight="int4",
        half=True,
        granularity=["block", "channel"],
        bias="none",
        where=["main", "then"],
    ),
)
def half_scale_subnormal(draft: Draft, rng: random.Random) -> Place:
    """A float16 scale is below the normal numbers of float16."""
    return _channel(draft, 3e-6, rng)


@defect("OQ204", "scale-type", layers(4, op=OPS, opset=[13, 21, 19], bias="none", where=WHERE))
def scale_type(draft: Draft, rng: random.Random) -> Place:
    """A float value is quantized with a float16 scale, which the opset does not take."""
    draft.put("x_scale_16", draft.array("x_scale").astype(np.float16))
    draft.node("q_x").input[1] = "x_scale_16"
    return draft.at("q_x")


@defect(
    "OQ204",
    "scale-double",
    layers(3, op=OPS, opset=[13, 21, 25], bias="none", where=WHERE),
    also={"OQ010": "types contradict each other"},
)
def scale_double(draft: Draft, rng: random.Random) -> Place:
    """A scale is double, which no opset takes."""
    draft.put("w_scale", draft.array("w_scale").astype(np.float64))
    return draft.at("dq_w")


@defect("OQ205", "zero-point-scalar", layers(5, op=OPS, where=WHERE, opset=[13, 21]))
def zero_point_scalar(draft: Draft, rng: random.Random) -> Place:
    """There is a scale a channel and one zero point for all of them."""
    draft.put("w_zero", np.int8(0))
    return draft.at("dq_w")


@defect(
    "OQ205",
    "scale-scalar",
    layers(4, op=OPS, bias=["float", "none"], where=WHERE),
    also={"OQ307": "the axis belongs to the zero point"},
)
def scale_scalar(draft: Draft, rng: random.Random) -> Place:
    """There is a zero point a channel and one scale for all of them."""
    draft.put("w_scale", draft.array("w_scale").max())
    return draft.at("dq_w")


@defect("OQ205", "scale-of-rank-four", layers(3, op=["Conv", "ConvTranspose"], bias=["float", "none"], where=WHERE))
def scale_of_rank_four(draft: Draft, rng: random.Random) -> Place:
    """Scales have the rank of the data, and there is no block_size."""
    for name in ("w_scale", "w_zero"):
        draft.put(name, draft.array(name).reshape(-1, 1, 1, 1))
    return draft.at("dq_w")


@defect(
    "OQ205",
    "blocks-zero-point-shape",
    layers(
        2,
        op=["MatMul", "Gemm"],
        weight=["int4", "uint4"],
        granularity="block",
        activation="none",
        bias="none",
        where=["main", "function"],
    ),
)
def blocks_zero_point_shape(draft: Draft, rng: random.Random) -> Place:
    """The zero points of blocks have another shape than their scales."""
    draft.put("w_zero", draft.array("w_zero")[:1])
    return draft.at("dq_w")


@defect("OQ206", "weight-zero-point-type", layers(5, op=OPS, where=WHERE, opset=[13, 21], weight=["int8", "uint8"]))
def weight_zero_point_type(draft: Draft, rng: random.Random) -> Place:
    """The zero point of a weight has another type than its integers."""
    other = np.uint8 if draft.array("w_zero").dtype == np.int8 else np.int8
    draft.put("w_zero", np.zeros(8, other))
    return draft.at("dq_w")


@defect("OQ206", "output-type-and-zero-point", layers(3, op=OPS, where=WHERE))
def output_type_and_zero_point(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear is asked for another type than that of its zero point."""
    draft.set("q_y", "output_dtype", int(TensorProto.INT8))
    return draft.at("q_y")


@defect("OQ207", "mixed-zero-points", layers(4, op=OPS, weight=["uint8", "uint16"], where=WHERE), alters=True)
def mixed_zero_points(draft: Draft, rng: random.Random) -> Place:
    """The channels of a weight have different zero points."""
    zero = draft.array("w_zero")
    draft.put("w_zero", (zero + np.arange(zero.size)).astype(zero.dtype))
    return draft.at("dq_w")


@defect(
    "OQ208", "symmetric-weight-shifted", layers(5, op=OPS, weight=["int8", "int16", "int4"], where=WHERE), alters=True
)
def symmetric_weight_shifted(draft: Draft, rng: random.Random) -> Place:
    """A signed weight has a zero point other than 0."""
    zero = draft.array("w_zero")
    draft.put("w_zero", np.full(zero.shape, 3).astype(zero.dtype))
    return draft.at("dq_w")


@defect("OQ209", "dead-channel", layers(4, op=OPS, where=WHERE), alters=True)
def dead_channel(draft: Draft, rng: random.Random) -> Place:
    """All integers of a channel are zero."""
    weight = np.moveaxis(draft.array("w"), draft.node("dq_w").attribute[0].i, 0)
    weight[rng.randrange(8)] = 0
    draft.put("w", np.moveaxis(weight, 0, draft.node("dq_w").attribute[0].i))
    return draft.at("dq_w")


@defect("OQ210", "signed-as-unsigned", layers(4, op=OPS, weight="uint8", where=WHERE))
def signed_as_unsigned(draft: Draft, rng: random.Random) -> Place:
    """A weight holds the bytes of signed integers, and is declared unsigned."""
    signed = (draft.array("w").astype(np.int16) - 128).astype(np.int8)
    draft.put("w", signed.view(np.uint8))
    draft.put("w_zero", np.zeros(8, np.uint8))
    return draft.at("dq_w")


@defect("OQ211", "zero-point-out-of-range", layers(3, op=OPS, where=WHERE))
def zero_point_out_of_range(draft: Draft, rng: random.Random) -> Place:
    """A zero point is stored as a number that its type does not have."""
    zero = helper.make_tensor("x_zero", TensorProto.UINT8, [], [128])
    zero.int32_data[0] = rng.choice([300, -1])
    draft.tensors["x_zero"] = zero
    return draft.at("q_x")


@defect("OQ212", "unused-range", layers(4, op=OPS, where=WHERE, bias=["float", "none"]), alters=True)
def unused_range(draft: Draft, rng: random.Random) -> Place:
    """The integers of a channel use a small part of their range."""
    axis = draft.node("dq_w").attribute[0].i
    weight = np.moveaxis(draft.array("w"), axis, 0)
    weight[rng.randrange(8)] //= 16
    draft.put("w", np.moveaxis(weight, 0, axis))
    return draft.at("dq_w")


@defect("OQ213", "scale-is-input", layers(3, op=OPS), also={"OQ017": "an initializer that is an input"})
def scale_is_input(draft: Draft, rng: random.Random) -> Place:
    """A scale is listed among the inputs."""
    name = rng.choice(["x_scale", "w_scale"])
    draft.inputs[name] = list(draft.tensors[name].dims)
    return draft.at("dq_x" if name == "x_scale" else "dq_w")
