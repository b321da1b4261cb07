"""Group 4: how small integers lie in bytes."""

from __future__ import annotations

import random

import numpy as np

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Draft
from tests.defects.layers import layers

WHERE = ("main", "then", "function", "loop", "nested")


OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")


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
