"""The layout of MatMulNBits: columns of a weight [K, N] cut into blocks along K, each block packed into bytes.

An integer of ``bits`` bits is unsigned; several share a byte, the first in the lowest bits. Blocks of one column follow
each other, a short last block is filled up with zeros: [N, blocks, block size * bits / 8] bytes. Scales are
[N, blocks]; zero points are packed along the blocks of a column, [N, ceil(blocks * bits / 8)] bytes.
Source: the operator text of com.microsoft.MatMulNBits.
"""

from __future__ import annotations

import numpy as np

from onnxq.numerics.spec import QType
from onnxq.numerics.tiles import Array

_BYTES = 64  # of a column, turned at a time: what is read and written stays in the cache


def unsigned(values: Array, qtype: QType) -> Array:
    """Integers as unsigned ones: ``v + 2^(bits - 1)`` for signed types, ``v`` for unsigned ones.

    Args:
        values: Integers of ``qtype``, one a byte, in its carrier type or ml_dtypes' own (whose high bits are free).
        qtype: A type of at most 8 bits.

    Returns:
        uint8, the shape of ``values``.
    """
    middle, mask = 1 << (qtype.bits - 1), (1 << qtype.bits) - 1
    raw = values.view(np.uint8) & np.uint8(mask)
    return raw ^ np.uint8(middle) if qtype.signed else raw


def pack(values: Array, bits: int) -> Array:
    """Pack uint8 values below ``2^bits`` along the last axis, low bits first; the last byte is filled with zeros."""
    per = 8 // bits
    short = -values.shape[-1] % per
    if short:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], short), np.uint8)], axis=-1)
    out = np.ascontiguousarray(values[..., ::per])
    for i in range(1, per):
        out |= values[..., i::per] << np.uint8(i * bits)
    return out


def unpack(packed: Array, bits: int, count: int) -> Array:
    """Inverse of `pack`: ``count`` uint8 values along the last axis."""
    per = 8 // bits
    out = np.empty((*packed.shape, per), np.uint8)
    for i in range(per):
        out[..., i] = packed >> np.uint8(i * bits)
    out &= np.uint8((1 << bits) - 1)
    return out.reshape(*packed.shape[:-1], packed.shape[-1] * per)[..., :count]


def to_blocks(weight: Array, qtype: QType, size: int) -> Array:
    """A weight [K, N] of ``qtype`` as blocks of ``size`` rows: uint8 [N, ceil(K / size), size * bits / 8]."""
    (rows, columns), bits = weight.shape, qtype.bits
    blocks, per = -(-rows // size), 8 // bits
    out = np.zeros((columns, blocks * (size // per)), np.uint8)
    for start in range(0, rows, _BYTES * per):
        part = unsigned(weight[start : start + _BYTES * per], qtype)
        packed = np.zeros((-(-len(part) // per), columns), np.uint8)
        for i in range(per):
            values = part[i::per]
            packed[: len(values)] |= values << np.uint8(i * bits)
        out[:, start // per : start // per + len(packed)] = packed.T
    return out.reshape(columns, blocks, size // per)


def from_blocks(blocks: Array, bits: int, rows: int) -> Array:
    """Inverse of `to_blocks`: unsigned integers as uint8 [``rows``, N]."""
    columns, per = blocks.shape[0], 8 // bits
    flat = blocks.reshape(columns, -1)
    out = np.empty((rows, columns), np.uint8)
    for start in range(0, rows, _BYTES * per):
        part = out[start : start + _BYTES * per]
        packed = np.ascontiguousarray(flat[:, start // per : start // per + _BYTES].T)
        for i in range(per):
            values = part[i::per]
            np.right_shift(packed[: len(values)], np.uint8(i * bits), out=values)
        part &= np.uint8((1 << bits) - 1)
    return out
