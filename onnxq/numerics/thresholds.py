"""From a histogram to the range a quantizer should cover, each end for itself.

* percentile: cut the same share of values off both ends.
* entropy: the range whose quantized distribution is closest to the seen one in Kullback-Leibler divergence; values cut
  off are counted in the end bins of the reference, as in Migacz, "8-bit inference with TensorRT" (GTC 2017), here with
  both ends free and with the levels the type really has.
* mse: the range of least mean squared error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxq.errors import OptionError
from onnxq.numerics.histograms import Histogram
from onnxq.numerics.noise import filled, noise
from onnxq.numerics.spec import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]
Bounds = tuple[float, float]

SHRINK = 2.0 ** -(np.arange(49) / 6)
"""Factors on each end that entropy and mse try: 1 down to 1/256, 12 % apart."""
_NEARBY = 2.0 ** (np.arange(-2, 3) / 18)


def percentile(histogram: Histogram, percent: float) -> Bounds:
    """The range that keeps ``percent`` of the values: half of the rest is cut at each end, to within one bin.

    Args:
        histogram: At least one value.
        percent: 0 < percent <= 100; at 100 the range is exactly [min, max].

    Raises:
        OptionError: ``percent`` is out of range.
    """
    if not 0 < percent <= 100:
        raise OptionError(f"a percentile lies above 0 and at most at 100, got {percent}")
    drop = histogram.total * (1 - percent / 100) / 2
    edges, upto = histogram.edges, np.cumsum(histogram.counts)
    onward = histogram.total - upto + histogram.counts
    first, last = int(np.argmax(upto > drop)), int(np.flatnonzero(onward > drop)[-1])
    return max(float(edges[first]), histogram.lo), min(float(edges[last + 1]), histogram.hi)


def mse(histogram: Histogram, spec: TensorSpec) -> Bounds:
    """The range of least `noise` for a type; never worse than the full range.

    A grid over both ends is ranked with sums of moments, then the neighbourhood of its best point by integration.
    """
    lo, hi = _ends(histogram, spec)
    los, his = _grid(lo * SHRINK, hi * SHRINK, spec)
    best = int(np.argmin(_rough_cost(histogram, los, his, spec)))
    los, his = _grid(los[best] * _NEARBY, his[best] * _NEARBY, spec)
    los, his = np.append(np.maximum(los, lo), lo), np.append(np.minimum(his, hi), hi)
    best = int(np.argmin(noise(histogram, los, his, spec)))
    return _trimmed(histogram, float(los[best]), float(his[best]))


def entropy(histogram: Histogram, spec: TensorSpec) -> Bounds:
    """The range whose quantized distribution diverges least from the seen one.

    Ends are tried alternately (together if symmetric) until none moves. A range of fewer bins than the type has levels
    would always fit perfectly, so it is not tried: 16-bit types keep the full range.
    """
    lo, hi = _ends(histogram, spec)
    levels = spec.qtype.qmax - spec.qtype.qmin + (0 if spec.symmetric else 1)
    if len(histogram.counts) <= levels:
        return _trimmed(histogram, lo, hi)
    sums = _Sums(histogram, levels)
    if spec.symmetric:
        ends = hi * SHRINK
        hi = float(ends[np.argmin(sums.divergence(-ends, ends))])
        return _trimmed(histogram, -hi, hi)
    for _ in range(4):
        before = lo, hi
        his = hi * SHRINK
        hi = float(his[np.argmin(sums.divergence(np.full_like(his, lo), his))])
        los = lo * SHRINK
        lo = float(los[np.argmin(sums.divergence(los, np.full_like(los, hi)))])
        if (lo, hi) == before:
            break
    return _trimmed(histogram, lo, hi)


def _ends(histogram: Histogram, spec: TensorSpec) -> Bounds:
    """The full range, containing zero, and equally far on both sides if symmetric."""
    lo, hi = min(histogram.lo, 0.0), max(histogram.hi, 0.0)
    return (-max(-lo, hi), max(-lo, hi)) if spec.symmetric else (lo, hi)


def _trimmed(histogram: Histogram, lo: float, hi: float) -> Bounds:
    return max(lo, histogram.lo), min(hi, histogram.hi)


def _grid(los: Array, his: Array, spec: TensorSpec) -> tuple[Array, Array]:
    """All pairs of ends, or only pairs of equally far ends if symmetric."""
    if spec.symmetric:
        return los, his
    pairs = np.meshgrid(np.unique(los), np.unique(his))
    return pairs[0].ravel(), pairs[1].ravel()


def _rough_cost(histogram: Histogram, los: Array, his: Array, spec: TensorSpec) -> Array:
    """Mean squared error at each range, from sums of moments up to each bin.

    A value beyond an end costs its squared distance, one that rounds to zero its square, any other ``scale**2 / 12``.
    """
    left, right, share = filled(histogram)
    middle = (left + right) / 2
    m0, m1, m2 = (np.append(0.0, np.cumsum(share * middle**p)) for p in (0, 1, 2))
    scale = (his - los) / (spec.qtype.qmax - spec.qtype.qmin)
    i, j = np.searchsorted(middle, los), np.searchsorted(middle, his)
    below = m2[i] - 2 * los * m1[i] + los**2 * m0[i]
    above = m2[-1] - m2[j] - 2 * his * (m1[-1] - m1[j]) + his**2 * (m0[-1] - m0[j])
    near_lo, near_hi = np.searchsorted(middle, -scale / 2), np.searchsorted(middle, scale / 2)
    rest = np.maximum(m0[j] - m0[i] - (m0[near_hi] - m0[near_lo]), 0)
    return np.asarray(below + above + m2[near_hi] - m2[near_lo] + rest * scale**2 / 12)


class _Sums:
    """Sums over the first n bins, from which the divergence of any range costs as much as it has levels."""

    def __init__(self, histogram: Histogram, levels: int) -> None:
        self._levels = levels
        self._width, self._first = histogram.width, round(float(histogram.edges[0]) / histogram.width)
        counts, zero = histogram.counts.copy(), -self._first
        if 0 <= zero < len(counts) > 1:
            # Every range holds zero exactly: the spike that Relu and padding leave there is flattened, else it alone
            # would decide (levels smear it over its neighbours, so the narrowest range always won).
            beside = np.append(counts[max(zero - 1, 0) : zero], counts[zero + 1 : zero + 2])
            counts[zero] = min(counts[zero], beside.max())
        share = counts / max(counts.sum(), 1)
        self._share = share
        # What an empty level is taken to hold where values were cut off into it; with nothing, a single one of them
        # would count as infinitely bad. As much of a value as in MXNet's calibration.
        self._trace = 1e-4 / max(counts.sum(), 1)
        self._mass = np.append(0.0, np.cumsum(share))
        self._used = np.append(0, np.cumsum(share > 0))
        self._own = np.append(0.0, np.cumsum(_xlogx(share)))

    def divergence(self, los: Array, his: Array) -> Array:
        """KL(seen || quantized) in nats at each range; infinite where the range is not to be tried."""
        bins = len(self._share)
        start, end = (np.floor(x / self._width).astype(np.int64) - self._first for x in (los, his))
        end += 1
        size = end - start
        edges = start[:, None] + np.arange(self._levels + 1) * size[:, None] // self._levels
        edges = np.clip(edges, 0, bins)
        mass, used = np.diff(self._mass[edges], axis=1), np.diff(self._used[edges], axis=1)
        i, j = edges[:, 0], edges[:, -1]
        below, above = self._mass[i], self._mass[-1] - self._mass[j]
        kept = self._mass[j] - self._mass[i]
        first, last = self._share[np.minimum(i, bins - 1)], self._share[np.maximum(j - 1, 0)]
        own = self._own[j] - self._own[i]
        own += _xlogx(first + below) - _xlogx(first) + _xlogx(last + above) - _xlogx(last)
        seen = mass.copy()
        seen[:, 0] += below
        seen[:, -1] += above
        used[:, 0] += (first == 0) & (below > 0)
        used[:, -1] += (last == 0) & (above > 0)
        with np.errstate(divide="ignore"):
            spread = np.log(np.maximum(mass, self._trace) / np.maximum(used, 1))
            out = own - np.where(used > 0, seen * spread, 0.0).sum(axis=1) + np.log(kept)
        full = (start <= 0) & (end >= bins)
        out[(kept == 0) | ((size < self._levels) & ~full)] = np.inf
        return np.asarray(out)


def _xlogx(p: Array) -> Array:
    return np.asarray(p * np.log(np.where(p > 0, p, 1.0)))
