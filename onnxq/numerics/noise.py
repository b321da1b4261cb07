"""What quantization at a range will cost, from a histogram.

Noise is integrated, not sampled: values are taken as uniform inside a bin, and the squared distance to the nearest
multiple of the scale has a closed integral, so bins may be narrower or wider than quantization steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxq.numerics.encodings import from_range
from onnxq.numerics.histograms import Histogram
from onnxq.numerics.spec import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]


def noise(histogram: Histogram, lo: npt.ArrayLike, hi: npt.ArrayLike, spec: TensorSpec) -> Array:
    """Expected mean squared error of quantizing the values at [lo, hi].

    Args:
        histogram: At least one value.
        lo: Lower ends, any shape.
        hi: Upper ends, same shape.
        spec: Type and symmetry.

    Returns:
        Mean squared error in squared units of the values, float64, of ``lo``'s shape.
    """
    left, right, share = filled(histogram)
    encoding = from_range(lo, hi, spec)
    scale = encoding.scale.astype(np.float64)[..., None]
    zero = encoding.zero_point.astype(np.float64)[..., None]
    low, high = spec.qtype.qmin - zero, spec.qtype.qmax - zero
    a, b = left / scale, right / scale
    narrow = b - a < 1e-4  # of a step: there the integral loses its digits, and the middle tells the same
    middle = (a + b) / 2
    at_middle = (middle - np.clip(np.rint(middle), low, high)) ** 2
    mean = (_distance(b, low, high) - _distance(a, low, high)) / np.where(narrow, 1, b - a)
    return np.asarray((np.where(narrow, at_middle, mean) * scale**2 * share).sum(axis=-1))


def sqnr_db(histogram: Histogram, lo: float, hi: float, spec: TensorSpec) -> float | None:
    """Expected signal to quantization noise ratio at [lo, hi] in dB; None where one of the two is zero."""
    left, right, share = filled(histogram)
    signal = float(np.dot(left**2 + left * right + right**2, share)) / 3
    lost = float(noise(histogram, lo, hi, spec))
    return 10 * math.log10(signal / lost) if signal > 0 and lost > 0 else None


def _distance(t: Array, low: Array, high: Array) -> Array:
    """Antiderivative of the squared distance from t to the nearest integer of [low, high]."""
    n = np.clip(np.rint(t), low, high)
    rest = t - n
    return np.asarray(n / 12 + rest * rest * rest / 3)


def filled(histogram: Histogram) -> tuple[Array, Array, Array]:
    """Left end, right end and share of the values of each bin that holds any; the outermost end at the extremes."""
    used = np.flatnonzero(histogram.counts)
    left, right = histogram.edges[used], histogram.edges[used + 1]
    left[0], right[-1] = max(left[0], histogram.lo), min(right[-1], histogram.hi)
    return left, right, histogram.counts[used] / histogram.total
