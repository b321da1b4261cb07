"""QuantizeLinear and DequantizeLinear in NumPy, bit for bit what ONNX describes and onnxruntime computes.

``q = saturate(rint(x / s) + zp)`` with a true division in the scale's type and round-half-even before the zero point is
added; ``x = (q - zp) * s``. NaN becomes the smallest integer (as in onnxruntime), values out of range and infinities
saturate. A float16 scale means a quotient of 11 bits, so that 16-bit integers lose their low bits. With 8-bit float
types there is no zero point: ``q = saturate(x / s)``, rounded to the nearest number of the type, ties to even; NaN
stays NaN, infinities saturate.
Sources: the QuantizeLinear and DequantizeLinear operator texts of ONNX; onnxruntime's CPU kernels, by measurement.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import Array, walk


def quantize(x: Array, encoding: Encoding, *, out: Array | None = None) -> Array:
    """Float values as integers, or as numbers of an 8-bit float type.

    Args:
        x: Values of any float type; the quotient is rounded to the scale's type (int32: float64, which int32 needs).
        encoding: Scale, zero point and granularity; its axis is resolved.
        out: C-contiguous array of ``x``'s shape and the carrier type that takes the result.

    Returns:
        An array of ``x``'s shape and type ``encoding.spec.qtype.carrier`` (int4 values lie in int8).

    Raises:
        OptionError: The encoding does not fit the shape of ``x``.
    """
    qtype = encoding.spec.qtype
    work = np.dtype(np.float64 if qtype.bits > 16 else np.float32)
    if out is None:
        out = np.empty(x.shape, qtype.carrier)
    shift = bool(encoding.zero_point.any())
    half = encoding.scale.dtype == np.float16 and qtype.bits <= 16 and not qtype.is_float
    low, high = work.type(qtype.qmin), work.type(qtype.qmax)
    params = encoding.scale.astype(work), encoding.zero_point.astype(work)
    # Overflow to infinity is right here: it saturates.
    with np.errstate(over="ignore", invalid="ignore"):
        for xs, qs, s, z in walk(encoding.spec.granularity, (x, out), params):
            v = xs.astype(work, copy=False) / s
            if half:
                v = v.astype(np.float16).astype(work)
            if qtype.is_float:
                np.maximum(v, low, out=v)
            else:
                np.rint(v, out=v)
                if shift:
                    v += z
                np.fmax(v, low, out=v)  # fmax, since it also takes NaN to qmin
            np.minimum(v, high, out=v)
            np.copyto(qs, v, casting="unsafe")
    return out


def dequantize(q: Array, encoding: Encoding, dtype: npt.DTypeLike = np.float32) -> Array:
    """Integers as float values, computed in float32 (int32 data in float64) and narrowed to ``dtype`` at the end.

    Args:
        q: Integers of any integer type, ml_dtypes' 4-bit ones included.
        encoding: Scale, zero point and granularity; its axis is resolved.
        dtype: Type of the result.

    Raises:
        OptionError: The encoding does not fit the shape of ``q``.
    """
    out: Array = np.empty(q.shape, dtype)
    work: np.dtype[Any] = np.dtype(np.float64 if encoding.spec.qtype.bits > 16 else np.float32)
    shift = bool(encoding.zero_point.any())
    params = encoding.scale.astype(work), encoding.zero_point.astype(work)
    with np.errstate(over="ignore"):
        for qs, xs, s, z in walk(encoding.spec.granularity, (q, out), params):
            v = qs.astype(work)
            if shift:
                v -= z
            np.multiply(v, s, out=xs, casting="unsafe", dtype=work)
    return out


def fake_quantize(x: Array, encoding: Encoding, dtype: npt.DTypeLike = np.float32) -> Array:
    """What a Q/DQ pair makes of ``x``."""
    return dequantize(quantize(x, encoding), encoding, dtype)
