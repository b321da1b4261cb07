"""Group 1: QuantizeLinear and DequantizeLinear that do not belong together."""

from __future__ import annotations

import random

import numpy as np

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
