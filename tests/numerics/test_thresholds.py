"""Ranges from histograms, against brute force on the values themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import OptionError
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.encodings import from_range
from onnxq.numerics.histograms import Histogram
from onnxq.numerics.noise import noise, sqnr_db
from onnxq.numerics.spec import QTYPES, TensorSpec
from onnxq.numerics.thresholds import entropy, mse, percentile

U8, S8 = TensorSpec(QTYPES["uint8"]), TensorSpec(QTYPES["int8"], True)
SPECS = [U8, S8, TensorSpec(QTYPES["uint4"]), TensorSpec(QTYPES["int16"], True), TensorSpec(QTYPES["uint16"])]

rng = np.random.default_rng(7)
_n = rng.standard_normal(40_000)
DATA = {
    "normal": _n,
    "relu": np.maximum(_n, 0),
    "laplace": rng.laplace(size=40_000),
    "heavy": rng.standard_t(3, 40_000),
    "outliers": np.append(_n, [60, -5]),
    "silu": 3 * _n / (1 + np.exp(-3 * _n)),
    "negative": -np.abs(_n) - 2,
    "far": rng.uniform(3, 7, 40_000),
}
DATA = {k: v.astype(np.float32) for k, v in DATA.items()}


def hist(x, bins=2048):
    h = Histogram(bins)
    h.add(x, float(x.min()), float(x.max()))
    return h


def true_mse(x, bounds, spec):
    return float(np.mean((fake_quantize(x, from_range(*bounds, spec)).astype(np.float64) - x) ** 2))


@pytest.mark.parametrize("name", DATA)
def test_percentile_100_is_min_max(name):
    x = DATA[name]
    assert percentile(hist(x), 100) == (x.min(), x.max())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(DATA)), st.floats(50, 99.999), st.integers(16, 4096))
def test_percentile_keeps_the_mass_to_within_one_bin(name, percent, bins):
    x, h = DATA[name], hist(DATA[name], bins)
    lo, hi = percentile(h, percent)
    drop = x.size * (1 - percent / 100) / 2
    assert x.min() <= lo <= hi <= x.max()
    # What lies outside is at most the share, and with the bin at the end added it is more than the share.
    assert (x < lo).sum() <= drop < (x < lo + h.width).sum() or lo == x.min()
    assert (x > hi).sum() <= drop < (x >= hi - h.width).sum() or hi == x.max()


def test_percentile_treats_each_side_for_itself():
    """Data without negative values keep 0 as the lower end, whatever is cut above."""
    lo, hi = percentile(hist(DATA["relu"]), 99.9)
    assert lo == 0 and 3 < hi < 3.5


@pytest.mark.parametrize("percent", [0, -1, 100.01, float("nan")])
def test_percentile_out_of_range(percent):
    with pytest.raises(OptionError, match="at most at 100"):
        percentile(hist(DATA["normal"]), percent)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", DATA)
def test_noise_equals_the_measured_error(name, spec):
    x, h = DATA[name], hist(DATA[name])
    for part in (1.0, 0.6, 0.2):
        bounds = (min(x.min(), 0) * part, max(x.max(), 0) * part)
        measured = true_mse(x, bounds, spec)
        # Zeros cost nothing, but a histogram does not know that half of its bin is exact zeros (6 dB at 16 bits).
        slack = 0.15 * measured if spec.qtype.bits < 16 or name != "relu" else 1.2 * measured
        assert abs(float(noise(h, *bounds, spec)) - measured) <= slack


def test_noise_is_vectorized_over_ranges():
    h = hist(DATA["normal"])
    lo, hi = np.array([[-1.0, -2], [-3, -4]]), np.array([[1.0, 2], [3, 4]])
    both = noise(h, lo, hi, U8)
    assert both.shape == (2, 2)
    assert both[1, 0] == pytest.approx(float(noise(h, -3.0, 3.0, U8)))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", DATA)
def test_mse_is_near_the_brute_force_optimum(name, spec):
    x = DATA[name]
    found = mse(hist(x), spec)
    assert x.min() <= found[0] <= found[1] <= x.max()
    lo, hi = min(x.min(), 0.0), max(x.max(), 0.0)
    if spec.symmetric:
        top = max(-lo, hi)
        tried = [(-f * top, f * top) for f in np.linspace(0.05, 1, 40)]
    else:
        tried = [(a * lo, b * hi) for a in np.linspace(0.05, 1, 12) for b in np.linspace(0.05, 1, 12)]
    best = min(true_mse(x, t, spec) for t in [*tried, (lo, hi)])
    assert true_mse(x, found, spec) <= 1.05 * best


def test_mse_keeps_few_huge_values_when_small_ones_are_lost_anyway():
    x = np.append(DATA["normal"], np.float32([1e5] * 3))
    assert mse(hist(x), U8)[1] > 0.9e5


def reference_entropy_cost(h, lo, hi, levels):
    """Divergence by the textbook loop: clip, quantize, expand over non-empty bins."""
    counts = h.counts.astype(float)
    start = int(np.searchsorted(h.edges, lo, side="right")) - 1
    end = int(np.searchsorted(h.edges, hi, side="right"))
    zero = round(-h.edges[0] / h.width)
    if 0 <= zero < len(counts):
        beside = [counts[i] for i in (zero - 1, zero + 1) if 0 <= i < len(counts)]
        counts[zero] = min(counts[zero], max(beside))
    inside = counts[start:end]
    seen = inside.copy()
    seen[0] += counts[:start].sum()
    seen[-1] += counts[end:].sum()
    spread = np.zeros_like(inside)
    for level in range(levels):
        a, b = level * len(inside) // levels, (level + 1) * len(inside) // levels
        used = seen[a:b] > 0
        if used.any():
            spread[a:b][used] = max(inside[a:b].sum(), 1e-4) / used.sum()
    p, q = seen / seen.sum(), spread / inside.sum()
    used = p > 0
    return np.inf if np.any(q[used] == 0) else float(np.sum(p[used] * np.log(p[used] / q[used])))


@pytest.mark.parametrize("name", ["normal", "relu", "laplace", "outliers", "silu"])
def test_entropy_equals_the_textbook_divergence(name):
    from onnxq.numerics.thresholds import _Sums

    h = hist(DATA[name])
    lo, hi = min(h.lo, 0), h.hi
    for part in (1.0, 0.8, 0.5):
        ours = _Sums(h, 256).divergence(np.array([lo * part]), np.array([hi * part]))[0]
        assert ours == pytest.approx(reference_entropy_cost(h, lo * part, hi * part, 256), rel=1e-6, abs=1e-9)


def test_entropy_cuts_outliers_and_keeps_sides_apart():
    """One value at 60 among normal ones: min-max wastes 9 of 10 steps, entropy does not."""
    lo, hi = entropy(hist(DATA["outliers"]), U8)
    assert hi < 6 and -5 <= lo < -2.5
    lo, hi = entropy(hist(DATA["relu"]), U8)
    assert lo == 0 and hi > 3
    lo, hi = entropy(hist(DATA["negative"]), U8)
    assert hi <= 0 or hi == DATA["negative"].max()


def test_entropy_of_16_bits_is_the_full_range():
    x = DATA["outliers"]
    assert entropy(hist(x), TensorSpec(QTYPES["uint16"])) == (x.min(), x.max())


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("value", [0.0, 0.7, -3e-30, 2e38])
def test_constant_data(value, spec):
    x = np.full(10, value, np.float32)
    h = hist(x)
    for found in (mse(h, spec), entropy(h, spec), percentile(h, 99.99)):
        assert found == (x[0], x[0])
    assert value != 0 or sqnr_db(h, 0, 0, spec) is None


@pytest.mark.parametrize("name", DATA)
def test_sqnr_equals_the_measured_ratio(name):
    x = DATA[name].astype(np.float64)
    bounds = (float(x.min()), float(x.max()))
    measured = 10 * np.log10(np.mean(x**2) / true_mse(DATA[name], bounds, U8))
    assert sqnr_db(hist(DATA[name]), *bounds, U8) == pytest.approx(measured, abs=0.5)
