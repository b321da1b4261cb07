"""Integers of 4 and 2 bits as ONNX stores them: flat, row-major, several a byte, the first value in the lowest bits.

``n`` values take ``ceil(n * bits / 8)`` bytes; bits that are left in the last byte are 0 when written and ignored when
read. Worked example: int4 [1, -2, 7] is 0xE1 0x07 (1 in the low half of the first byte, -2 = 0xE above it).
Source: the comments on ``raw_data`` in onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxq.errors import DataError
from onnxq.numerics.spec import QTYPES, QType
from onnxq.numerics.tiles import Array, in_c_order
from onnxq.wording import plural

CHUNK = 1 << 17
"""Values that are packed at a time; they and the temporaries stay in the cache."""

# Values that share a byte lie in one word, the first in its lowest byte on the usual machines.
_WORD: dict[int, np.dtype[Any]] = {4: np.dtype("<u2"), 2: np.dtype("<u4")}


def packed_size(count: int, bits: int) -> int:
    """Bytes of ``count`` values."""
    return -(-count * bits // 8)


def pack(values: Array, qtype: QType) -> Array:
    """Pack integers; needs little more memory than the result, also for a transposed array.

    Args:
        values: Integers of any shape and integer type, or of ml_dtypes' own 4- and 2-bit types.
        qtype: A type of 4 or 2 bits.

    Returns:
        uint8 of shape [ceil(n * bits / 8)].

    Raises:
        DataError: A value does not fit, with its flat index; or the values are no integers.
    """
    if values.dtype.kind not in "iu" and values.dtype.name not in QTYPES:
        raise DataError(f"{values.dtype} values are no integers: {qtype} takes them quantized")
    bits, per = qtype.bits, 8 // qtype.bits
    out = np.empty(packed_size(values.size, bits), np.uint8)
    done, rest = 0, np.empty(0, np.uint8)
    for piece in _pieces(values):
        raw = _checked(piece, qtype, done * per + rest.size)
        if rest.size:
            raw = np.concatenate([rest, raw])
        full = raw.size // per
        _pack_words(raw[: full * per], bits, out[done : done + full])
        done, rest = done + full, raw[full * per :].copy()
    if rest.size:
        last = np.zeros(per, np.uint8)
        last[: rest.size] = rest
        _pack_words(last, bits, out[done:])
    return out


def unpack(packed: Array, qtype: QType, shape: tuple[int, ...]) -> Array:
    """Inverse of `pack`; bits behind the last value do not matter.

    Args:
        packed: uint8 of shape [ceil(n * bits / 8)].
        qtype: A type of 4 or 2 bits.
        shape: Shape of the n values.

    Returns:
        Integers in the carrier type, int8 or uint8.

    Raises:
        DataError: Bytes and shape do not fit.
    """
    bits, per = qtype.bits, 8 // qtype.bits
    count = int(np.prod(shape, dtype=np.int64))
    if packed.size != packed_size(count, bits):
        need = packed_size(count, bits)
        raise DataError(f"{qtype}{list(shape)} takes {plural(need, 'byte')}, not {packed.size}")
    out = np.empty(packed.size * per, np.uint8)
    step = CHUNK // per
    for start in range(0, packed.size, step):
        word = packed[start : start + step].astype(_WORD[bits])
        if bits == 2:
            word |= word << 12
            word &= 0x000F000F
            word |= word << 6
            word &= 0x03030303
        else:
            word |= word << 4
            word &= 0x0F0F
        values = word.view(np.uint8)
        if qtype.signed:
            middle = np.uint8(1 << (bits - 1))
            values ^= middle
            values -= middle
        out[start * per : start * per + values.size] = values
    return out[:count].view(qtype.carrier).reshape(shape)


def misfit(values: Array, qtype: QType) -> tuple[int, int] | None:
    """The first value that a type does not hold, and its flat index; None if all fit."""
    start = 0
    for piece in _pieces(values):
        if not _fits(piece, qtype):
            index = int(np.argmax((piece < qtype.qmin) | (piece > qtype.qmax)))
            return int(piece[index]), start + index
        start += piece.size
    return None


def _pieces(values: Array) -> Iterator[Array]:
    """The values in row-major order as contiguous arrays of one axis, most of them of ``CHUNK`` values."""
    if values.flags.c_contiguous:
        flat = values.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            yield flat[start : start + CHUNK]
        return
    inner = values.size // len(values)
    if inner > CHUNK:
        for part in values:
            yield from _pieces(part)
        return
    step = CHUNK // inner
    for start in range(0, len(values), step):
        yield in_c_order(values[start : start + step]).reshape(-1)


def _fits(piece: Array, qtype: QType) -> bool:
    if piece.dtype.kind == "V":  # ml_dtypes: as narrow as the type
        return piece.dtype.name == qtype.name
    return bool(piece.max() <= qtype.qmax) and (piece.dtype.kind == "u" or bool(piece.min() >= qtype.qmin))


def _checked(piece: Array, qtype: QType, start: int) -> Array:
    """The low bits of values that fit, one a byte; the other bits are anything."""
    if not _fits(piece, qtype):
        if piece.dtype.kind == "V":
            piece = piece.astype(np.int8)
        found = misfit(piece, qtype)
        if found is not None:
            value, index = found
            limits = f"{qtype.qmin} ... {qtype.qmax}"
            raise DataError(f"{value} at flat index {start + index} does not fit {qtype} ({limits})")
    return piece.view(np.uint8) if piece.dtype.itemsize == 1 else piece.astype(np.uint8)


def _pack_words(raw: Array, bits: int, out: Array) -> None:
    word = raw.view(_WORD[bits])
    if bits == 4:
        high = word >> 4
        high &= 0xF0
        word = word & 0x0F
        word |= high
    else:
        packed = word & 0x03
        for shift, mask in ((6, 0x0C), (12, 0x30), (18, 0xC0)):
            part = word >> shift
            part &= mask
            packed |= part
        word = packed
    np.copyto(out, word, casting="unsafe")
