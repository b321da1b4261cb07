"""Arithmetic of int32 biases: ``b_q = rint(b / s_b)``, ``s_b = s_x * s_w`` for each output channel, zero point 0.

A kernel that sums integers adds ``b_q`` to ``sum(x_q * w_q)``, so the scale of the bias has to be the product of the
two others (``alpha s_x s_w / beta`` in a Gemm). All is computed in float64; a scale is rounded to its stored type
once and judged afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onnxq.numerics.spec import Encoding, PerAxis, PerTensor, TensorSpec

Array = np.ndarray[Any, Any]

# Room of 256 below the largest int32, so that the float32 rounding of the scale cannot push a bias over it.
LARGEST = 2**31 - 1 - 256
# More than the float32 rounding of a product.
_MARGIN = 1 + 2.0**-20


def wide(x: TensorSpec, w: TensorSpec) -> bool:
    """Whether products are too wide to be summed in int32, or no integers."""
    return max(x.qtype.bits, w.qtype.bits) > 8 or x.qtype.is_float or w.qtype.is_float


def largest_sum(x: TensorSpec, w: TensorSpec, terms: int) -> int:
    """Largest magnitude of ``sum(x_q * w_q)`` over ``terms`` products."""
    x_span, w_span = (t.qmax - t.qmin for t in (x.qtype, w.qtype))
    return terms * x_span * ((w_span + 1) // 2 if w.symmetric else w_span)


def rounding_room(x: TensorSpec, terms: int) -> float:
    """How much larger sum or bias may get when weights are rounded to a coarser scale and the bias makes up for it.

    Each weight moves by half a step at most. Sums of 16-bit products get a sixteenth of the range at most: a correction
    beyond it is cut.
    """
    return min(terms * (x.qtype.qmax - x.qtype.qmin) / 2, LARGEST / 16)


def empty(weight: Encoding) -> Array:
    """Which entries of a weight's scale stand for nothing but zeros; see `onnxq.numerics.encodings.from_range`."""
    dead = np.zeros(weight.scale.size, bool)
    dead[list(weight.dead)] = True
    return np.asarray(dead.reshape(weight.scale.shape) & (weight.scale == 1))


def least_scale(weight: Encoding, size: Array, s_x: float, products: int, room: float, dtype: np.dtype[Any]) -> Array:
    """The smallest weight scale at which bias and sum of products fit int32, for each entry of the weight's scale.

    Args:
        weight: The weight's encoding.
        size: Largest bias behind each entry.
        s_x: Scale of the activation, times ``alpha / beta`` of a Gemm.
        products: What the products can add, in integers; 0 where they are not summed in int32.
        room: What rounding to a coarser scale can add, in integers.
        dtype: Type that the scale of the bias is stored in.

    Returns:
        float64; 0 for a channel without weights and bias.
    """
    none = empty(weight)
    s_w = np.where(none, 0.0, weight.scale.astype(np.float64))
    fits = np.where(size > 0, (size / s_x + products * s_w) / (LARGEST - room), 0.0)
    # Scale and product must both be normal numbers; weights are not given up for a product that float16 cannot hold.
    tiny = np.where(none, np.finfo(dtype).smallest_normal, np.finfo(np.float32).smallest_normal) / s_x
    least = np.maximum(fits, np.maximum(tiny, float(np.finfo(weight.scale.dtype).smallest_normal))) * _MARGIN
    return np.asarray(np.where(none & (size == 0), 0.0, least))


def raised(weight: Encoding, least: Array) -> Encoding:
    """The weight's encoding with scales of at least ``least``, exactly so where there is nothing but zeros.

    A scale that its type cannot hold stays as it was. The same encoding if nothing changes.
    """
    scale = weight.scale.astype(np.float64)
    scale = np.where(empty(weight) & (least > 0), least, np.maximum(scale, least))
    stored = _up(scale, weight.scale.dtype)
    stored = np.where(np.isfinite(stored), stored, weight.scale)
    return weight if np.array_equal(stored, weight.scale) else replace(weight, scale=np.asarray(stored))


def product_scale(s_x: float, s_w: Array, dtype: np.dtype[Any]) -> Array:
    """``s_x * s_w``, rounded once; infinite or 0 where the type cannot hold it."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(s_x * s_w.astype(np.float64)).astype(dtype)


def own_scale(product: Array, size: Array) -> Array:
    """A scale for the bias alone: the product where the bias fits, else the smallest that holds the bias.

    Args:
        product: Product of the two other scales, in its stored type; 0 where there are no weights.
        size: Largest bias behind each scale.
    """
    tiny = float(np.finfo(product.dtype).smallest_normal)
    least = np.maximum(size / LARGEST, tiny)
    return np.where(product.astype(np.float64) >= least, product, _up(least, product.dtype))


def normal(scale: Array) -> Array:
    """Whether each scale is finite, positive and normal in its type."""
    limits = np.finfo(scale.dtype)
    return np.asarray((scale >= limits.smallest_normal) & (scale <= limits.max))


def bias_encoding(spec: TensorSpec, scale: Array, axis: int) -> Encoding:
    """The encoding of a bias, per tensor or along ``axis``."""
    spec = spec.at(PerAxis(axis) if scale.ndim else PerTensor())
    return Encoding(spec, scale, np.zeros(scale.shape, np.int32))


def _up(scale: Array, dtype: np.dtype[Any]) -> Array:
    """Rounded up to the stored type; infinite where it cannot hold the scale."""
    with np.errstate(over="ignore", under="ignore"):
        stored = scale.astype(dtype)
    return np.asarray(np.where(stored < scale, np.nextafter(stored, np.asarray(np.inf, dtype)), stored))
