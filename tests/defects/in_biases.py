"""Group 5: int32 biases."""

from __future__ import annotations

import random

import numpy as np

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Draft, node
from tests.defects.layers import layers

WHERE = ("main", "then", "function", "loop", "nested")


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
