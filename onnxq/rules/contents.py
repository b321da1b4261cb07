"""OQ209, OQ210, OQ212: what the integers of weights say. Weights are read one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import Array
from onnxq.numerics.bias import LARGEST
from onnxq.numerics.spec import QTYPES, QType
from onnxq.rules._weights import extent, read_integers, scale_axis
from onnxq.wording import plural

_SAMPLE = 1 << 16
"""Values that tell how a weight is distributed."""

_LEAST = 32
"""Fewer values tell nothing."""


@graph_rule("OQ209", "dead-channel", "warning", weights=True)
def dead_channel(subject: Subject) -> Iterator[Finding]:
    """All weights of an output channel are zero.

    What it does:
        Reads integer weights, and looks for channels in which every integer is the zero point.

    Why is this bad:
        The channel gives out its bias and nothing else. With one scale for the whole weight it is what is left of a
        channel with small values (a warning); with a scale for each channel it was zero before (an info), and costs
        time for nothing.

    Use instead:
        A scale for each channel; leave channels out that are zero in the float model.
    """
    for one, kind in _weights(subject):
        axis = _channel_axis(one)
        found = extent(one, axis) if axis is not None else None
        if found is None or found[0].size < 2:
            continue
        zero = _zero(one, found[0].size)
        dead = (found[0] == zero) & (found[1] == zero)
        if dead.any():
            several = scale_axis(one) is not None
            text = (
                f"{plural(int(dead.sum()), 'channel')} of {dead.size} of its {kind.name} weight hold nothing but zeros"
            )
            numbers = {"channel": int(np.argmax(dead)), "dead": int(dead.sum()), "channels": int(dead.size)}
            yield Finding(one.node, text, numbers=numbers, severity=Severity.INFO if several else None)


@graph_rule("OQ210", "unsigned-weight-signed-content", "warning", weights=True)
def unsigned_weight_signed_content(subject: Subject) -> Iterator[Finding]:
    """An unsigned weight holds what look like the bytes of signed integers.

    What it does:
        Reads 8-bit unsigned weights without a zero point or with 0, and looks for those whose values lie at both ends
        of the range with little between: -3 as a byte is 253.

    Why is this bad:
        Small negative weights come out as the largest ones. It happens where the type of a tensor is changed without
        its values.

    Use instead:
        The signed type and zero point 0, or values moved by 128 and zero point 128.
    """
    for one, kind in _weights(subject):
        unmoved = one.zero_value is None or (one.zero is not None and not one.zero.any())
        array = read_integers(one) if kind.name == "uint8" and unmoved else None
        if array is None or array.size < _LEAST:
            continue
        flat = array.reshape(-1)
        sample = flat[:: max(1, flat.size // _SAMPLE)]
        counts = np.bincount(sample >> 5, minlength=8)
        # The bytes of a bell around 0 lie at both ends and thin out towards the middle.
        hollow = 2 * max(counts[3], counts[4]) < min(counts[0], counts[7])
        ends, middle = min(counts[:2].sum(), counts[6:].sum()), counts[2:6].sum()
        if hollow and 5 * ends > 4 * middle and len(np.unique(sample)) > _FEW:
            numbers = {"to 63": int(counts[:2].sum()), "between": int(middle), "from 192": int(counts[6:].sum())}
            yield Finding(one.node, "its uint8 weight looks like the bytes of signed integers", numbers=numbers)


@graph_rule("OQ212", "unused-range", "warning", weights=True)
def unused_range(subject: Subject) -> Iterator[Finding]:
    """Weights use less than a quarter of the range of their integers.

    What it does:
        Reads integer weights of 8 and more bits, and compares the largest distance from the zero point with what the
        type holds: in each channel where each has a scale, else in the whole weight. Channels of zeros are OQ209,
        weights that fit 4 bits are OQ402, and channels whose int32 bias would not fit a smaller scale are left out.

    Why is this bad:
        Two bits are lost: the scale is four times what it needs to be, and so is the error of rounding. It is what
        ranges leave that were taken from elsewhere.

    Use instead:
        Scales from the largest weight of each channel.
    """
    for one, kind in _weights(subject):
        axis = scale_axis(one)
        found = extent(one, axis) if kind.bits >= 8 and math.prod(d or 0 for d in one.dims or ()) >= _LEAST else None
        if found is None or _fits_four_bits(*found, kind):
            continue
        low, high = found
        zero = _zero(one, low.size)
        used = np.maximum(high - zero, zero - low)
        room = np.maximum(kind.qmax - zero, zero - kind.qmin)
        few = (used > 0) & (4 * used < room)
        few = few & (4 * _largest_bias(one, used.size) <= LARGEST) if few.any() else few
        if few.any():
            at = int(np.argmax(few))
            numbers = {"largest": int(used.flat[at]), "room": int(room.flat[at if room.size > 1 else 0])}
            if axis is None:
                yield Finding(
                    one.node, f"its {kind.name} weight uses less than a quarter of the range", numbers=numbers
                )
                continue
            count = plural(int(few.sum()), "channel")
            text = f"{count} of {few.size} of its {kind.name} weight use less than a quarter of the range"
            yield Finding(one.node, text, numbers={**numbers, "channel": at, "channels": int(few.sum())})


_FEW = 4
"""Weights of so few different values are binary, ternary or nearly so, whatever their bytes."""


def _zero(one: Linear, size: int) -> Array:
    """The zero point, one or one a channel; 0 without any."""
    zero = one.zero
    if zero is None or not zero.size:
        return np.zeros((), np.int64)
    return zero.ravel() if zero.size == size else np.asarray(zero.flat[0])


def _largest_bias(one: Linear, size: int) -> Array:
    """The int32 bias of the layers that read a weight, without sign: one, or one a channel; 0 without any."""
    largest = np.zeros(size, np.int64)
    for node, index in one.out.uses() if one.out is not None else ():
        bias = node.inputs[2] if index == 1 and len(node.inputs) > 2 and not node.domain else None
        maker = bias.producer() if bias is not None else None
        dq = one.subject.linear_of.get(maker) if maker is not None else None
        stored = one.subject.integers(dq.data) if dq is not None and dq.dtype == ir.DataType.INT32 else None
        if stored is not None and stored.size:
            flat = np.abs(stored.ravel())
            largest = np.maximum(largest, flat if flat.size == size else flat.max())
    return largest


def _fits_four_bits(low: Array, high: Array, kind: QType) -> bool:
    least, most = (-8, 7) if kind.signed else (0, 15)
    return kind.bits == 8 and least <= int(low.min()) and int(high.max()) <= most


_KINDS = {ir.DataType[name.upper()]: kind for name, kind in QTYPES.items()}


def _weights(subject: Subject) -> Iterator[tuple[Linear, QType]]:
    """Each DequantizeLinear of a stored weight: integers that are no bias, of rank 2 and more."""
    for one in subject.stored:
        kind, dims = _KINDS.get(one.dtype) if one.dtype is not None else None, one.dims
        if kind is not None and not kind.is_float and kind.bits < 32 and dims is not None and len(dims) > 1:
            yield one, kind


def _channel_axis(one: Linear) -> int | None:
    """The output-channel axis where the first layer reads the weight; None where none does, or it is a table."""
    for node, index in one.out.uses() if one.out is not None else ():
        if (node.domain, node.op_type) != ("", "Gather"):
            axis = ops.channel_axis(node, index, len(one.dims or ()))
            if axis is not None:
                return axis
    return None
