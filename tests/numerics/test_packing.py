"""4- and 2-bit integers in bytes, against onnx and the rule read literally."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from onnx import TensorProto, numpy_helper

from onnxq.errors import DataError
from onnxq.numerics import affine, packing
from onnxq.numerics.encodings import from_values
from onnxq.numerics.spec import QTYPES, Blocked, Granularity, PerAxis, PerTensor, QType, TensorSpec
from onnxq.numerics.tiles import in_c_order

Array = np.ndarray[Any, Any]
NARROW = ("int4", "uint4", "int2", "uint2")
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)


def draw(qtype: QType, shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(qtype.qmin, qtype.qmax + 1, shape).astype(qtype.carrier)


def by_the_rule(values: Array, bits: int) -> bytes:
    """Value i in byte i * bits / 8, low bits first."""
    out = bytearray(-(-values.size * bits // 8))
    for i, value in enumerate(values.reshape(-1).tolist()):
        out[i * bits // 8] |= (value & ((1 << bits) - 1)) << (i * bits % 8)
    return bytes(out)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NARROW),
    shape=SHAPES,
    turned=st.booleans(),
    dtype=st.sampled_from(["carrier", "int32", "own"]),
    chunk=st.sampled_from([8, 64, packing.CHUNK]),
    seed=st.integers(0, 99),
)
def test_pack(name: str, shape: tuple[int, ...], turned: bool, dtype: str, chunk: int, seed: int) -> None:
    qtype = QTYPES[name]
    values = draw(qtype, shape, seed)
    given = values if dtype == "carrier" else values.astype(getattr(ml_dtypes, name) if dtype == "own" else dtype)
    if turned:
        values, given = values.T, given.T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "CHUNK", chunk)
        packed = packing.pack(given, qtype)
        back = packing.unpack(packed, qtype, values.shape)
    assert packed.dtype == np.uint8 and packed.tobytes() == by_the_rule(values, qtype.bits)
    assert back.dtype == qtype.carrier
    np.testing.assert_array_equal(back, values)
    record = TensorProto(data_type=getattr(TensorProto, name.upper()), dims=values.shape, raw_data=packed.tobytes())
    np.testing.assert_array_equal(numpy_helper.to_array(record).astype(np.int8), values.astype(np.int8))


def test_the_example_of_the_docs() -> None:
    assert packing.pack(np.array([1, -2, 7]), QTYPES["int4"]).tobytes() == b"\xe1\x07"
    assert packing.pack(np.array([1, 2, 3, 0, 2]), QTYPES["uint2"]).tobytes() == b"\x39\x02"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint16"])
@pytest.mark.parametrize("name", NARROW)
def test_values_out_of_range_are_refused(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK", 16)
    qtype = QTYPES[name]
    for bad in (qtype.qmin - 1, qtype.qmax + 1, 100):
        if not np.iinfo(dtype).min <= bad <= np.iinfo(dtype).max:
            continue
        values = np.zeros((5, 7), dtype)
        values[3, 2] = values[4, 4] = bad
        with pytest.raises(DataError, match=f"^{bad} at flat index 23 does not fit {name} "):
            packing.pack(values, qtype)
        with pytest.raises(DataError, match=f"^{bad} at flat index {2 * 5 + 3} "):
            packing.pack(values.T, qtype)
        assert packing.misfit(values, qtype) == (bad, 23)
        values[3, 2] = values[4, 4] = 0
        assert packing.misfit(values, qtype) is None


def test_ml_dtypes_of_another_type() -> None:
    """uint4 fits int4 up to 7; the pattern alone would say -8."""
    values = np.array([7, 8]).astype(ml_dtypes.uint4)
    assert packing.pack(values[:1], QTYPES["int4"]).tobytes() == b"\x07"
    with pytest.raises(DataError, match=r"^8 at flat index 1 does not fit int4"):
        packing.pack(values, QTYPES["int4"])
    assert packing.pack(values, QTYPES["uint4"]).tobytes() == b"\x87"


@pytest.mark.parametrize("dtype", [np.float32, bool, object, ml_dtypes.float4_e2m1fn, ml_dtypes.bfloat16])
def test_only_integers(dtype: Any) -> None:
    """1.5 would be 1. The patterns of a 4-bit float are integers, as onnx stores them."""
    with pytest.raises(DataError, match="values are no integers"):
        packing.pack(np.array([1.5, 3.0]).astype(dtype), QTYPES["int4"])
    floats = np.array([0.5, -6.0, 1.5]).astype(ml_dtypes.float4_e2m1fn)
    packed = packing.pack(floats.view(np.uint8), QTYPES["uint4"])
    assert packed.tobytes() == numpy_helper.from_array(floats).raw_data
    patterns = packing.unpack(packed, QTYPES["uint4"], (3,))
    np.testing.assert_array_equal(patterns.view(ml_dtypes.float4_e2m1fn), floats)


@pytest.mark.parametrize("size", [0, 1, 3, 4])
def test_bytes_that_do_not_fit(size: int) -> None:
    with pytest.raises(DataError, match=rf"^int4\[3\] takes 2 bytes, not {size}"):
        packing.unpack(np.zeros(size, np.uint8), QTYPES["int4"], (3,))


@pytest.mark.parametrize("name", NARROW)
def test_dirty_padding_does_not_matter(name: str) -> None:
    qtype = QTYPES[name]
    values = draw(qtype, (3, 3))
    packed = packing.pack(values, qtype)
    packed[-1] |= np.uint8(0xFF << (9 * qtype.bits % 8) & 0xFF)
    np.testing.assert_array_equal(packing.unpack(packed, qtype, (3, 3)), values)


@pytest.mark.parametrize("turned", [False, True])
def test_memory(turned: bool) -> None:
    """4 M values: the result and a few chunks."""
    values = draw(QTYPES["int4"], (2000, 2001))
    given = values.T if turned else values
    tracemalloc.start()
    packed = packing.pack(given, QTYPES["int4"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < packed.nbytes + 8 * packing.CHUNK


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NARROW),
    shape=st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=9),
    kind=st.sampled_from(["tensor", "axis", "blocked"]),
    axis=st.integers(0, 2),
    size=st.integers(1, 4),
    symmetric=st.booleans(),
    turned=st.booleans(),
    strip=st.sampled_from([1, 16, 1000]),
)
def test_quantized_and_packed_in_strips(
    name: str, shape: tuple[int, ...], kind: str, axis: int, size: int, symmetric: bool, turned: bool, strip: int
) -> None:
    """The same bytes as one step after the other, whatever ends within a strip: blocks, bytes, rows."""
    x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
    x = x.T if turned else x
    granularity: Granularity = PerTensor()
    if x.ndim and kind != "tensor":
        granularity = PerAxis(axis % x.ndim) if kind == "axis" else Blocked(size, axis % x.ndim)
    encoding = from_values(x, TensorSpec(QTYPES[name], symmetric, granularity))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affine, "_STRIP", strip)
        packed = affine.quantize_packed(x, encoding)
    np.testing.assert_array_equal(packed, packing.pack(affine.quantize(x, encoding), QTYPES[name]))


@pytest.mark.parametrize("shape", [(3, 700), (2, 3, 300), (600,), (0, 4)])
def test_in_c_order(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    assert in_c_order(x) is x
    turned = in_c_order(x.T)
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(turned, x.T)
