import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxq.numerics.similarity import Similarity, class_axis, cosine, sqnr_db

FINITE = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)


def meter(*pairs):
    out = Similarity()
    for a, b in pairs:
        out.add(np.asarray(a), np.asarray(b))
    return out.result()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(FINITE, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_streaming_equals_all_at_once(references, seed):
    rng = np.random.default_rng(seed)
    pairs = [(a, (a + rng.normal(size=a.shape)).astype(np.float32)) for a in references]
    got = meter(*pairs)
    a = np.concatenate([p[0].ravel() for p in pairs]).astype(np.float64)
    b = np.concatenate([p[1].ravel() for p in pairs]).astype(np.float64)
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    if norms:
        assert got.cosine == pytest.approx(a @ b / norms, abs=1e-9)
    noise = np.sum((a - b) ** 2)
    if noise and np.any(a):
        assert got.sqnr_db == pytest.approx(10 * np.log10(np.sum(a**2) / noise), abs=1e-6)
    assert got.max_abs_error == np.abs(a - b).max()
    assert (got.samples, got.values) == (len(pairs), a.size)
    assert got.equal == pytest.approx(np.mean(a == b))


def test_chunks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 1000)).astype(np.float32)
    b = a + np.float32(0.01)
    whole = meter((a, b))
    monkeypatch.setattr("onnxq.numerics.similarity._CHUNK", 7)
    parts = meter((a, b))
    assert parts.cosine == pytest.approx(whole.cosine) and parts.sqnr_db == pytest.approx(whole.sqnr_db)
    assert parts.max_abs_error == whole.max_abs_error


def test_identical_is_exact():
    a = np.array([[1.0, -2.0, 3.0]], np.float32)
    got = meter((a, a))
    assert (got.cosine, got.sqnr_db, got.max_abs_error, got.top1, got.equal, got.broken) == (
        1.0,
        None,
        0.0,
        1.0,
        1.0,
        0,
    )


def test_known_values():
    got = meter(([[3.0, 4.0]], [[3.0, 3.0]]))
    assert got.cosine == pytest.approx(21 / (5 * math.sqrt(18)))
    assert got.sqnr_db == pytest.approx(10 * math.log10(25))
    assert got.top1 == 0.0  # the first of two equal scores counts


def test_worst_sample_is_named():
    good, bad = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    got = meter((good, good), (good, bad), (good, good))
    assert (got.worst_cosine, got.worst_sample) == (0.0, 1)


def test_infinite_by_construction_is_not_broken():
    got = meter(([-np.inf, np.nan, 1.0], [-np.inf, np.nan, 1.0]))
    assert (got.broken, got.cosine, got.sqnr_db, got.equal) == (0, 1.0, None, 1.0)


def test_one_sided_infinities_are_broken_and_left_out_of_the_sums():
    got = meter(([1.0, 2.0, np.inf, -np.inf], [1.0, np.nan, 5.0, np.inf]))
    assert (got.broken, got.cosine, got.max_abs_error) == (3, 1.0, 0.0)


def test_shapes_that_differ_count_as_broken():
    got = meter((np.ones(4, np.float32), np.ones(6, np.float32)), (np.ones(2, np.float32), np.ones(2, np.float32)))
    assert (got.broken, got.values, got.samples, got.cosine) == (6, 6, 2, 1.0)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_integers_are_compared_for_equality(dtype):
    a, b = np.array([1, 0, 1, 1], dtype), np.array([1, 0, 0, 1], dtype)
    got = meter((a, b))
    assert (got.equal, got.cosine, got.sqnr_db, got.top1) == (0.75, None, None, None)


def test_strings_are_compared_for_equality():
    got = meter((np.array(["a", "b"], object), np.array(["a", "c"], object)))
    assert (got.equal, got.cosine) == (0.5, None)


def test_float16_sums_do_not_overflow():
    a = np.full(1000, 60000, np.float16)
    assert meter((a, a)).cosine == 1.0


def test_zero_size_and_scalars():
    assert meter((np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))).cosine == 1.0
    got = meter((np.float32(2), np.float32(1)))
    assert (got.cosine, got.top1, got.max_abs_error) == (1.0, None, 1.0)


def test_zero_vectors():
    assert cosine(0.0, 0.0, 0.0) == 1.0
    assert cosine(0.0, 0.0, 4.0) == 0.0
    assert sqnr_db(0.0, 1.0) < -1000


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((), None),
        ((5,), 0),
        ((1, 10), 1),
        ((2, 7, 10), 2),
        ((1, 3, 8, 8), 1),
        ((1, 1, 8, 8), None),
        ((4, 1), None),
        ((0, 3), None),
    ],
)
def test_class_axis(shape, axis):
    assert class_axis(shape) == axis
