"""Ranges of weights narrower than all values: the shrinking factor with the least squared error for each scale.

A few large values make the steps of all others coarse; clipping them costs less than it gains, the more so the fewer
bits there are. For int4, a factor of 7/8 is the full range: the largest value lies at -8 instead of 7.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import Array, reduce_to, walk

COARSE = (1.0, 0.92, 0.84, 0.76, 0.68, 0.6, 0.52, 0.44, 0.36, 0.28, 0.2)
"""Factors on the full range that are tried first; 4096 normal values are best near 0.98 with 8 bits, 0.64 with 4 and
0.35 with 2."""

FINE = (-0.04, -0.02, 0.02, 0.04)
"""Steps away from the best of them that are tried then."""


def least_error(
    w: Array, shrunk: Callable[[Array], Encoding], shape: tuple[int, ...], importance: Array | None
) -> Array:
    """The factor on its range, of each scale, that leaves the least squared error.

    Args:
        w: The weight.
        shrunk: The encoding for factors of the scale's shape.
        shape: Shape of the scale.
        importance: Weight of each value's squared error, of the shape of ``w``; None for all alike.

    Returns:
        Factors in (0, 1], float64 of the scale's shape; 1 where nothing is better than the full range.
    """
    best, least = np.ones(shape), np.full(shape, np.inf)
    for steps in (COARSE, FINE):
        start = best.copy() if steps is FINE else np.zeros(shape)
        for step in steps:
            factor = np.minimum(start + step, 1.0)
            error = squared_error(w, shrunk(factor), importance)
            better = error < least
            best, least = np.where(better, factor, best), np.where(better, error, least)
    return best


def squared_error(w: Array, encoding: Encoding, importance: Array | None = None) -> Array:
    """Sum of squared differences between ``w`` and its quantized form, float64 of the scale's shape.

    Args:
        w: The weight.
        encoding: Scale and zero point.
        importance: Factor on each squared difference, of the shape of ``w``.
    """
    q = encoding.spec.qtype
    low, high = np.float32(q.qmin), np.float32(q.qmax)
    total = np.zeros(encoding.scale.shape)
    scale, zero = encoding.scale.astype(np.float32), encoding.zero_point.astype(np.float32)
    shift = bool(zero.any())
    data = (w,) if importance is None else (w, importance)
    for *arrays, ss, zs, sums in walk(encoding.spec.granularity, data, (scale, zero, total)):
        v = arrays[0].astype(np.float32, copy=False) / ss
        if shift:
            v += zs
        error = np.rint(v)
        np.maximum(error, low, out=error)
        np.minimum(error, high, out=error)
        error -= v
        error *= error
        if importance is not None:
            error *= arrays[1]
        sums += reduce_to(np.add, error, sums.shape) * (ss.astype(np.float64) ** 2)
    return total
