"""QuantizeLinear and DequantizeLinear in NumPy, bit for bit what ONNX describes and onnxruntime computes.

``q = saturate(rint(x / s) + zp)`` with a true division in the scale's type and round-half-even before the zero point is
added; ``x = (q - zp) * s``. NaN becomes the smallest integer (as in onnxruntime), values out of range and infinities
saturate. A float16 scale means a quotient of 11 bits, so that 16-bit integers lose their low bits. With 8-bit float
types there is no zero point: ``q = saturate(x / s)``, rounded to the nearest number of the type, ties to even; NaN
stays NaN, infinities saturate.
Sources: the QuantizeLinear and DequantizeLinear operator texts of ONNX; onnxruntime's CPU kernels, by measurement.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxq.numerics.packing import pack, packed_size
from onnxq.numerics.spec import Blocked, Encoding
from onnxq.numerics.tiles import Array, resolved_axis, walk

_STRIP = 1 << 20  # values that are quantized before they are packed


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


def quantize_packed(x: Array, encoding: Encoding) -> Array:
    """What `pack` makes of what `quantize` makes of ``x``, without ever holding more than a strip of unpacked integers.

    Args:
        x: Values of any float type.
        encoding: Scale, zero point and granularity of a 4- or 2-bit type; its axis is resolved.

    Returns:
        uint8 of shape [ceil(n * bits / 8)].

    Raises:
        OptionError: The encoding does not fit the shape of ``x``.
    """
    granularity, qtype = encoding.spec.granularity, encoding.spec.qtype
    if x.ndim == 0 or x.size <= _STRIP:
        return pack(quantize(x, encoding), qtype)
    axis = resolved_axis(granularity, x.ndim)
    block = granularity.size if isinstance(granularity, Blocked) and axis == 0 else 1
    unit = math.lcm(block, 8 // qtype.bits)  # rows that end with a block and with a byte
    inner = x.size // len(x)
    step = max(unit, _STRIP // inner // unit * unit)
    sliced = axis == 0 or isinstance(granularity, Blocked)
    out = np.empty(packed_size(x.size, qtype.bits), np.uint8)
    for start in range(0, len(x), step):
        part = encoding
        if sliced:
            rows = slice(start // block, (start + step) // block)
            part = replace(encoding, scale=encoding.scale[rows], zero_point=encoding.zero_point[rows])
        packed = pack(quantize(x[start : start + step], part), qtype)
        at = packed_size(start * inner, qtype.bits)
        out[at : at + packed.size] = packed
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
