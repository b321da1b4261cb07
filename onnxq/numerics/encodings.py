"""The one place that makes scale and zero point, for activations and weights, all types, all methods.

Asymmetric: ``s = (hi - lo) / (qmax - qmin)``, ``zp = rint(qmin - lo / s)`` for a range that contains zero (padding and
Relu need an exact zero). Symmetric: ``s = max(-lo, hi) / (qmax - mid)`` with the zero point ``mid`` = 0 for signed and
128 / 32768 / 8 ... for unsigned types, so that both ends are equally far (the narrow range -127 ... 127 of int8).
Float types, whose zero point is 0: ``s = max(-lo, hi) / qmax``.
All in float64; a scale is finite, positive and *normal* after the cast to the stored type, since runtimes flush
subnormal scales to zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from onnxq.errors import DataError, OptionError
from onnxq.numerics.clipping import least_error
from onnxq.numerics.hqq import refine
from onnxq.numerics.spec import Encoding, Granularity, TensorSpec
from onnxq.numerics.tiles import Array, reduce_to, scale_shape, walk

WeightMethod = Literal["minmax", "mse", "hqq"]


def from_range(
    lo: npt.ArrayLike, hi: npt.ArrayLike, spec: TensorSpec, *, dtype: npt.DTypeLike = np.float32
) -> Encoding:
    """Scale and zero point that cover [lo, hi].

    Args:
        lo: Lower ends in the tensor's units, rank 0 per tensor, else of the scale's shape; 0 if positive.
        hi: Upper ends, same shape; 0 if negative.
        spec: Type, symmetry and granularity (only carried over).
        dtype: Stored type of the scale, float32 or float16 (where it is rounded up, as float16 is coarser than the
            steps of a 16-bit range).

    Returns:
        The encoding. An empty range [0, 0] gets scale 1. A range without negative values gets ``zp == qmin`` exactly
        when asymmetric, so that a Relu in front of it can be dropped.

    Raises:
        DataError: An end is NaN or infinite, or lo > hi.
    """
    low, high = np.minimum(np.asarray(lo, np.float64), 0.0), np.maximum(np.asarray(hi, np.float64), 0.0)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and np.less_equal(lo, hi).all()):
        raise DataError(f"a range must be finite and ordered, got lo={lo!r}, hi={hi!r}")
    qmin, qmax, carrier = spec.qtype.qmin, spec.qtype.qmax, spec.qtype.carrier
    middle = 0 if spec.qtype.signed else (qmax + 1) // 2
    exact = np.maximum(-low, high) / (qmax - middle) if spec.symmetric else (high - low) / (qmax - qmin)
    scale, dead = _stored(exact, np.dtype(dtype))
    if spec.symmetric:
        zero: Array = np.full(scale.shape, middle, carrier)
    else:
        exact_zero = np.rint(qmin - low / scale.astype(np.float64))
        zero = np.asarray(np.minimum(np.maximum(exact_zero, qmin), qmax), carrier)
    return Encoding(spec, scale, zero, tuple(np.flatnonzero(dead).tolist()))


def _stored(exact: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The scale in its stored type, and where it had to be replaced because the values are (nearly) all zero."""
    limits = np.finfo(dtype)
    smallest, largest = float(limits.smallest_normal), float(limits.max)
    dead = np.less(exact, smallest)
    clipped = np.minimum(np.maximum(exact, smallest), largest)
    scale = (np.where(exact == 0, 1.0, clipped) if dead.any() else clipped).astype(dtype)
    if dtype == np.float16:
        scale = np.where(scale.astype(np.float64) < np.minimum(exact, largest), np.nextafter(scale, limits.max), scale)
    return np.asarray(scale, dtype), dead


def limits(w: Array, granularity: Granularity) -> tuple[Array, Array]:
    """Smallest and largest value of each scale's values, as float64 of the scale's shape.

    Raises:
        DataError: NaN or infinity among the values; names the first place.
        OptionError: The granularity does not fit the shape.
    """
    shape = scale_shape(w.shape, granularity)
    lo, hi = np.full(shape, np.inf), np.full(shape, -np.inf)
    for xs, los, his in walk(granularity, (w,), (lo, hi)):
        if xs.dtype.kind != "f" or xs.dtype == np.float16:  # slow to compare
            xs = xs.astype(np.float32)
        np.minimum(los, reduce_to(np.minimum, xs, los.shape), out=los)
        np.maximum(his, reduce_to(np.maximum, xs, his.shape), out=his)
    if w.size == 0:
        return np.zeros(shape), np.zeros(shape)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        first = np.unravel_index(int(np.argmax(~np.isfinite(w.astype(np.float32)))), w.shape)
        place = [int(i) for i in first]
        raise DataError(f"weight of shape {list(w.shape)} is not finite at {place}: {w[first]}")
    return lo, hi


def from_values(
    w: Array,
    spec: TensorSpec,
    *,
    method: WeightMethod = "minmax",
    dtype: npt.DTypeLike = np.float32,
    importance: Array | None = None,
) -> Encoding:
    """Scales and zero points for a weight.

    Args:
        w: The weight, any float type.
        spec: Type, symmetry and resolved granularity.
        method: ``minmax`` covers every value; ``mse`` shrinks each scale's range to the least squared error; ``hqq``
            goes on from there with scale and zero point (`onnxq.numerics.hqq`). Scales of float types always cover
            every value: their steps are as fine below a large one.
        dtype: Stored type of the scale.
        importance: Weight of each value's squared error, of the shape of ``w``; None for all alike.

    Returns:
        The encoding; ``dead`` lists the channels or blocks without a usable value.

    Raises:
        DataError: NaN or infinity among the values.
        OptionError: The granularity is unresolved or does not fit, or the method does not exist.
    """
    if method not in get_args(WeightMethod):
        raise OptionError(f"unknown weight method '{method}'; known: {', '.join(get_args(WeightMethod))}")
    lo, hi = limits(w, spec.granularity)
    full = from_range(lo, hi, spec, dtype=dtype)
    if method == "minmax" or spec.qtype.is_float:
        return full

    def shrunk(factor: Array) -> Encoding:
        return from_range(lo * factor, hi * factor, spec, dtype=dtype)

    best = shrunk(least_error(w, shrunk, full.scale.shape, importance))
    return replace(refine(w, best, importance) if method == "hqq" else best, dead=full.dead)
