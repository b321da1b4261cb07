"""Streaming histograms: exact, order-independent, bounded; compared with numpy.histogram on all data at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import OptionError
from onnxq.numerics.histograms import Histogram


def add(h, x):
    x = np.asarray(x)
    if x.size:
        h.add(x, float(x.min()), float(x.max()))


def filled(pieces, bins=2048):
    h = Histogram(bins)
    for piece in pieces:
        add(h, piece)
    return h


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_order_gives_the_same_bins_and_they_are_right(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    pieces = []
    for _ in range(data.draw(st.integers(1, 8))):
        size = data.draw(st.sampled_from([0, 1, 7, 300]))
        scale = 10.0 ** data.draw(st.integers(-30, 30))
        offset = data.draw(st.sampled_from([0, 0, 1, -5])) * scale
        pieces.append((rng.standard_normal(size) * scale + offset).astype(np.float32))
    values = np.concatenate(pieces)
    if not values.size:
        return
    a, b = filled(pieces, 64), filled([pieces[i] for i in rng.permutation(len(pieces))], 64)
    assert (a.lo, a.hi, a.total) == (values.min(), values.max(), values.size) == (b.lo, b.hi, b.total)
    np.testing.assert_array_equal(a.edges, b.edges)
    np.testing.assert_array_equal(a.counts, b.counts)
    assert len(a.counts) <= 128
    assert a.edges[0] <= a.lo < a.edges[1] and a.edges[-2] <= a.hi < a.edges[-1]
    inside = np.searchsorted(a.edges, values.astype(np.float64), side="right") - 1
    np.testing.assert_array_equal(a.counts, np.bincount(inside, minlength=len(a.counts)))


@pytest.mark.parametrize("bins", [2, 100, 2048])
def test_more_than_the_asked_number_of_bins(bins):
    rng = np.random.default_rng(0)
    for scale in 10.0 ** np.arange(-20, 21, 5):
        h = filled([(rng.standard_normal(5000) * scale).astype(np.float32)], bins)
        assert bins <= len(h.counts) <= 2 * bins + 1


def test_edge_on_zero_splits_the_signs():
    h = filled([np.float32([-1e-20, -0.0, 0.0, 1e-20, 5.0, -3.0])], 16)
    zero = int(np.flatnonzero(h.edges == 0)[0])
    assert h.counts[:zero].sum() == 2 and h.counts[zero] == 3


def test_zeros_first_then_everything_else():
    h = filled([np.zeros(10, np.float32), np.float32([1e30]), np.float32([-1e-30]), np.float32([3e38, -1])])
    assert h.total == h.counts.sum() == 14
    zero = int(np.flatnonzero(h.edges == 0)[0])
    assert (h.counts[:zero].sum(), h.counts[zero]) == (2, 11)


@pytest.mark.parametrize("value", [0.0, 0.7, -1e-30, 3e38])
def test_constant_data_is_one_bin(value):
    h = filled([np.full(9, value, np.float32)] * 2)
    assert h.counts.tolist() == [18] and h.lo == h.hi == np.float32(value)


def test_narrow_data_far_from_zero_keeps_the_resolution_of_float32():
    x = (1000 + np.arange(5) * np.spacing(np.float32(1000))).astype(np.float32)
    assert filled([x]).counts.tolist() == [1, 1, 1, 1, 1]


def test_float16_shapes_and_empty_tensors():
    h = filled([np.float16([[0.5, -2]]), np.zeros((0, 3), np.float32), np.asarray(np.float32(7))])
    assert h.total == 3 and (h.lo, h.hi) == (-2, 7)


def test_memory_does_not_grow():
    rng = np.random.default_rng(1)
    h = Histogram(2048)
    for i in range(100):
        add(h, (rng.standard_normal(200) * 1.3**i).astype(np.float32))
    assert h.counts.nbytes <= 4097 * 8


def test_too_few_bins():
    with pytest.raises(OptionError, match="at least 2 bins"):
        Histogram(1)
