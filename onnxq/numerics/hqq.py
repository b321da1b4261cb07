"""Half-quadratic refinement of scale and zero point: robust to outliers, without any data.

Badri & Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023): the error of a weight follows a
heavy-tailed distribution, so an l_p norm with p < 1 fits it better than squares. An auxiliary error ``e`` splits the
problem into two easy ones that alternate: ``e = shrink(w - w_q)``, the generalized soft threshold
``sign(x) max(|x| - |x|^(p-1) / beta, 0)``, and a least squares fit of the parameters to ``w - e``.

Theirs fits a real zero point at a fixed scale. ONNX zero points are integers: rounded at the end the gain is gone,
rounded in each round they never move. Here the neighbours of the zero point are tried, each with the scale that fits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import Array, reduce_to, walk

ROUNDS = 2
BETA = 10.0
P = 0.5
"""Norm and weight of the shrinkage, errors counted in steps; a root is cheap, and 0.7 was no better."""


def refine(w: Array, start: Encoding, importance: Array | None = None, *, rounds: int = ROUNDS) -> Encoding:
    """Better scales and zero points than those of ``start``, or the same.

    Args:
        w: The weight.
        start: Where to begin. Zero points of symmetric specs stay.
        importance: Weight of each value's error, of the shape of ``w``; None for all alike.
        rounds: How often zero points may move by one, and scales be fitted.

    Returns:
        For each scale the best of all that were tried: its squared error is never larger than at the start.
    """
    q, info = start.spec.qtype, np.finfo(start.scale.dtype)
    best, least = start, np.full(start.scale.shape, np.inf)
    for _ in range(rounds):
        for step in (0,) if start.spec.symmetric else (0, 1, -1):
            zero = np.clip(best.zero_point.astype(np.int64) + step, q.qmin, q.qmax).astype(q.carrier)
            tried = replace(best, zero_point=np.asarray(zero))
            error, factor = _look(w, tried, importance)
            scale = np.clip(tried.scale * factor, info.smallest_normal, info.max).astype(info.dtype)
            fitted = replace(tried, scale=np.asarray(scale))
            for candidate, found in ((tried, error), (fitted, _look(w, fitted, importance)[0])):
                better = found < least
                best = replace(
                    best,
                    scale=np.asarray(np.where(better, candidate.scale, best.scale)),
                    zero_point=np.asarray(np.where(better, candidate.zero_point, best.zero_point)),
                )
                least = np.where(better, found, least)
    return best


def _look(w: Array, encoding: Encoding, importance: Array | None) -> tuple[Array, Array]:
    """Squared error, and the factor on the scale that fits the targets ``w - e`` best; of the scale's shape."""
    kind = encoding.spec.qtype
    low, high = np.float32(kind.qmin), np.float32(kind.qmax)
    error, above, below = np.zeros((3, *encoding.scale.shape))
    scale, zero = encoding.scale.astype(np.float32), encoding.zero_point.astype(np.float32)
    data = (w,) if importance is None else (w, importance)
    for *arrays, ss, zs, errors, tops, bottoms in walk(
        encoding.spec.granularity, data, (scale, zero, error, above, below)
    ):
        v = arrays[0].astype(np.float32, copy=False) / ss
        q = np.rint(v + zs)
        np.maximum(q, low, out=q)
        np.minimum(q, high, out=q)
        q -= zs
        x = v - q
        v -= _shrink(x)
        v *= q
        q *= q
        x *= x
        for total, part in ((errors, x), (tops, v), (bottoms, q)):
            if importance is not None:
                part *= arrays[1]
            total += reduce_to(np.add, part, total.shape)
    # Within [1/2, 2], so that a fit to a few clipped values does not run away.
    factor = np.clip(np.where(below > 0, above / np.where(below > 0, below, 1.0), 1.0), 0.5, 2.0)
    return error * encoding.scale.astype(np.float64) ** 2, factor


def _shrink(x: Array) -> Array:
    size = np.abs(x)
    with np.errstate(divide="ignore"):
        return np.asarray(np.sign(x) * np.maximum(size - size ** (P - 1) / BETA, 0))
