"""The layout of MatMulNBits, against the operator text read literally: one integer after the other."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.numerics import nbits
from onnxq.numerics.spec import QTYPES

TYPES = ("int2", "uint2", "int4", "uint4", "int8", "uint8")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(TYPES),
    rows=st.integers(1, 70),
    columns=st.integers(1, 9),
    size=st.sampled_from([16, 32, 64]),
    own=st.booleans(),
    seed=st.integers(0, 99),
)
def test_blocks(name: str, rows: int, columns: int, size: int, own: bool, seed: int) -> None:
    qtype = QTYPES[name]
    draw = np.random.default_rng(seed).integers(qtype.qmin, qtype.qmax + 1, (rows, columns))
    weight = draw.astype(qtype.carrier)
    if own and qtype.bits < 8:
        weight = weight.astype(getattr(ml_dtypes, name))
    packed = nbits.to_blocks(weight, qtype, size)
    blocks, bits = -(-rows // size), qtype.bits
    assert packed.shape == (columns, blocks, size * bits // 8) and packed.dtype == np.uint8
    for k in range(0, rows, 7):
        for n in range(columns):
            place = (k % size) * bits
            byte = int(packed[n, k // size, place // 8])
            assert (byte >> place % 8) & ((1 << bits) - 1) == draw[k, n] - qtype.qmin
    np.testing.assert_array_equal(nbits.from_blocks(packed, bits, rows), draw - qtype.qmin)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(bits=st.sampled_from([2, 4, 8]), count=st.integers(1, 20), lead=st.sampled_from([(), (3,), (2, 2)]))
def test_pack_along_the_last_axis(bits: int, count: int, lead: tuple[int, ...]) -> None:
    values = np.random.default_rng(count).integers(0, 1 << bits, (*lead, count)).astype(np.uint8)
    packed = nbits.pack(values, bits)
    assert packed.shape == (*lead, -(-count * bits // 8))
    np.testing.assert_array_equal(nbits.unpack(packed, bits, count), values)
    rest = nbits.unpack(packed, bits, packed.shape[-1] * 8 // bits)[..., count:]
    assert not rest.any(), "what fills the last byte is zero"


def test_more_rows_than_one_piece() -> None:
    """200 rows of 8 bits are 200 bytes of a column: three pieces of 64 and a short one."""
    for name in TYPES:
        qtype = QTYPES[name]
        rows = 200 * 8 // qtype.bits
        weight = np.random.default_rng(0).integers(qtype.qmin, qtype.qmax + 1, (rows, 3)).astype(qtype.carrier)
        packed = nbits.to_blocks(weight, qtype, 16)
        whole = nbits.pack((weight.T.astype(np.int32) - qtype.qmin).astype(np.uint8), qtype.bits)
        np.testing.assert_array_equal(packed.reshape(3, -1)[:, : whole.shape[1]], whole)
        np.testing.assert_array_equal(nbits.from_blocks(packed, qtype.bits, rows), weight.astype(np.int32) - qtype.qmin)
