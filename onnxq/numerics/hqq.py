"""Half-quadratic refinement of scale and zero point: robust to outliers, without any data.

Badri & Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023): the error of a weight follows a
heavy-tailed distribution, so an l_p norm with p < 1 fits it better than squares. An auxiliary error ``e`` splits the
problem into two easy ones that alternate: ``e = shrink(w - w_q)``, the generalized soft threshold
``sign(x) max(|x| - |x|^(p-1) / beta, 0)``, and a least squares fit of the parameters to ``w - e``.

Theirs fits a real zero point at a fixed scale. ONNX zero points are integers and rounding one afterwards throws the
gain away, so here the fit is that of a straight line: zero point, rounded, then the scale that suits it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import Array, reduce_to, walk

ROUNDS = 8
BETA = 10.0
P = 0.5


def refine(w: Array, start: Encoding, importance: Array | None = None, *, rounds: int = ROUNDS) -> Encoding:
    """Better scales and zero points than those of ``start``, or the same.

    Args:
        w: The weight.
        start: Where to begin. Zero points of symmetric specs stay.
        importance: Weight of each value's error, of the shape of ``w``; None for all alike.
        rounds: Fits, each over the whole weight.

    Returns:
        For each scale the best of all rounds: its squared error is never larger than at the start.
    """
    q = start.spec.qtype
    info = np.finfo(start.scale.dtype)
    best, least = start, np.full(start.scale.shape, np.inf)
    now = start
    for last in (*(False,) * rounds, True):
        error, sums = _look(w, now, importance, fit=not last)
        better = error < least
        best = replace(
            best,
            scale=np.asarray(np.where(better, now.scale, best.scale)),
            zero_point=np.asarray(np.where(better, now.zero_point, best.zero_point)),
        )
        least = np.where(better, error, least)
        if last:
            break
        zero = now.zero_point.astype(np.float64)
        if not start.spec.symmetric:
            zero = np.clip(np.rint(_zero(sums, zero)), q.qmin, q.qmax)
        step = now.scale.astype(np.float64) * _factor(sums, zero)
        scale = np.clip(step, info.smallest_normal, info.max).astype(info.dtype)
        now = replace(start, scale=np.asarray(scale), zero_point=np.asarray(zero, q.carrier))
    return best


def _zero(sums: Array, zero: Array) -> Array:
    """Where the straight line of targets over integers crosses zero; ``zero`` where there is no line."""
    n, q, qq, t, tq = sums
    spread, common = qq * n - q * q, tq * n - t * q
    fits = (spread > 0) & (common > 0)
    slope = np.where(fits, common / np.where(fits, spread, 1.0), 1.0)
    return np.where(fits, (q - t / slope) / np.where(n > 0, n, 1.0), zero)


def _factor(sums: Array, zero: Array) -> Array:
    """The factor on the scale that fits best at a zero point, within [1/2, 2] so that rounds do not jump about."""
    n, q, qq, t, tq = sums
    above, below = tq - zero * t, qq - 2 * zero * q + zero * zero * n
    return np.clip(np.where(below > 0, above / np.where(below > 0, below, 1.0), 1.0), 0.5, 2.0)


def _look(w: Array, encoding: Encoding, importance: Array | None, *, fit: bool) -> tuple[Array, Array]:
    """Squared error, and for the fit the sums of 1, q, q², t, t q; t: the target ``w - e`` in steps."""
    kind = encoding.spec.qtype
    low, high = np.float32(kind.qmin), np.float32(kind.qmax)
    shape = encoding.scale.shape
    error, sums = np.zeros(shape), np.zeros((5, *shape))
    scale, zero = encoding.scale.astype(np.float32), encoding.zero_point.astype(np.float32)
    data = (w,) if importance is None else (w, importance)
    for *arrays, ss, zs, errors, n, sq, sqq, st, stq in walk(
        encoding.spec.granularity, data, (scale, zero, error, *sums)
    ):
        v = arrays[0].astype(np.float32, copy=False) / ss
        q = np.rint(v + zs)
        np.maximum(q, low, out=q)
        np.minimum(q, high, out=q)
        x = v - q
        x += zs
        weight = arrays[1] if importance is not None else np.broadcast_to(np.float32(1), v.shape)
        errors += reduce_to(np.add, x * x * weight, n.shape) * ss.astype(np.float64) ** 2
        if fit:
            v -= _shrink(x)
            for total, part in (
                (n, weight),
                (sq, q * weight),
                (sqq, q * q * weight),
                (st, v * weight),
                (stq, v * q * weight),
            ):
                total += reduce_to(np.add, part, n.shape)
    return error, sums


def _shrink(x: Array) -> Array:
    size = np.abs(x)
    with np.errstate(divide="ignore"):
        return np.sign(x) * np.maximum(size - size ** (P - 1) / BETA, 0)
