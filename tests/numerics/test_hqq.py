"""HQQ refinement: never worse, better on outliers and between steps, integer zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.encodings import from_values
from onnxq.numerics.hqq import refine
from onnxq.numerics.spec import QTYPES, Blocked, Granularity, PerAxis, PerTensor, TensorSpec

Array = np.ndarray[Any, Any]


def heavy(*shape: int, seed: int = 0) -> Array:
    """Values with a heavy tail, as weights have, not centred."""
    return (np.random.default_rng(seed).standard_t(4, shape) + 0.3).astype(np.float32)


def error(w: Array, encoding: Any, importance: Array | float = 1.0) -> float:
    return float((importance * (fake_quantize(w, encoding).astype(np.float64) - w) ** 2).sum())


@pytest.mark.parametrize("granularity", [PerTensor(), PerAxis(1), Blocked(32, 0), Blocked(24, 1)], ids=str)
@pytest.mark.parametrize(("kind", "symmetric"), [("uint4", False), ("int4", True), ("int4", False), ("uint2", False)])
def test_less_error_than_minmax_and_than_mse(granularity: Granularity, kind: str, symmetric: bool) -> None:
    """The last block is short in both blocked cases."""
    w, spec = heavy(80, 40), TensorSpec(QTYPES[kind], symmetric, granularity)
    found = {m: error(w, from_values(w, spec, method=m)) for m in ("minmax", "mse", "hqq")}
    assert found["hqq"] <= found["mse"] < found["minmax"]
    refined = refine(w, from_values(w, spec))
    assert error(w, refined) <= found["minmax"]


def test_zero_points_are_integers_that_matter() -> None:
    """On skewed blocks the zero point moves, and the gain is more than what a factor on the range can give."""
    w, spec = np.exp(heavy(64, 64) / 2), TensorSpec(QTYPES["uint4"], False, Blocked(32, 0))
    mse, hqq = (from_values(w - 2, spec, method=m) for m in ("mse", "hqq"))
    assert hqq.zero_point.dtype == np.uint8 and (hqq.zero_point != mse.zero_point).mean() > 0.05
    assert error(w - 2, hqq) < 0.98 * error(w - 2, mse)


def test_symmetric_zero_points_stay() -> None:
    for kind in ("int4", "uint4"):
        encoding = from_values(heavy(64, 8), TensorSpec(QTYPES[kind], True, Blocked(32, 0)), method="hqq")
        assert (encoding.zero_point == (0 if kind == "int4" else 8)).all()


def test_values_on_a_grid_are_found_again() -> None:
    """Started two zero points off."""
    w = (np.arange(16, dtype=np.float32) - 5)[:, None] * np.float32([0.5, 3.0])
    spec = TensorSpec(QTYPES["uint4"], False, PerAxis(1))
    exact = from_values(w, spec)
    assert error(w, exact) == 0
    off = exact.__class__(spec, exact.scale, exact.zero_point + np.uint8(2))
    found = refine(w, off)
    assert error(w, off) > 1 and error(w, found) < 1e-9
    np.testing.assert_array_equal(found.zero_point, exact.zero_point)


def test_importance_weighs_the_error() -> None:
    w = heavy(64, 16)
    importance = np.broadcast_to(np.where(np.arange(64) % 8 == 0, 100.0, 0.01)[:, None], w.shape).astype(np.float32)
    spec = TensorSpec(QTYPES["uint4"], False, Blocked(32, 0))
    for method in ("mse", "hqq"):
        plain, weighed = (from_values(w, spec, method=method, importance=i) for i in (None, importance))
        assert error(w, weighed, importance) < 0.5 * error(w, plain, importance)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(-10, 10).map(lambda e: 10.0**e),
    kind=st.sampled_from(["uint2", "int4", "uint4", "int8", "uint8"]),
    symmetric=st.booleans(),
    block=st.integers(1, 12),
)
def test_never_worse_block_by_block(seed: int, size: float, kind: str, symmetric: bool, block: int) -> None:
    """Also on blocks of one value, of zeros, and on a few large ones; scales are finite and normal."""
    w = np.random.default_rng(seed).standard_normal((11, 3)).astype(np.float32) ** 3 * np.float32(size)
    w[:2] = 0
    spec = TensorSpec(QTYPES[kind], symmetric, Blocked(block, 0))
    start, found = from_values(w, spec), refine(w, from_values(w, spec))
    for a in range(0, 11, block):
        part = [((fake_quantize(w, e).astype(np.float64) - w)[a : a + block] ** 2).sum(axis=0) for e in (found, start)]
        assert (part[0] <= part[1] * (1 + 1e-4) + 1e-12 * size**2).all()
    assert np.isfinite(found.scale).all() and (found.scale >= np.finfo(np.float32).smallest_normal).all()
    assert (found.zero_point >= QTYPES[kind].qmin).all() and (found.zero_point <= QTYPES[kind].qmax).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(dtype: Any) -> None:
    w, spec = heavy(64, 8).astype(dtype), TensorSpec(QTYPES["uint4"], False, Blocked(32, 0))
    encoding = from_values(w, spec, method="hqq", dtype=np.float16)
    assert encoding.scale.dtype == np.float16
    assert error(w, encoding) <= error(w, from_values(w, spec, dtype=np.float16))
