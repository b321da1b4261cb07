"""Sums of integer products that float32 computes exactly: all that an integer product without scales can become."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxq.look import Array, constant, dims_of
from onnxq.numerics.spec import QTYPES
from onnxq.qoperators.raising import Raiser, Refused

EXACT = 1 << 24
"""Up to here float32 holds every integer."""


def exact_sum(node: ir.Node, raiser: Raiser, axis: int | None) -> list[ir.Value | None]:
    """Both operands of a ConvInteger or MatMulInteger, dequantized with scale 1.

    Args:
        node: The operator.
        raiser: Makes the nodes.
        axis: Output-channel axis of the second operand; None where its rank is unknown.

    Raises:
        Refused: Nothing shows that no partial sum leaves the integers that float32 holds.
    """
    x, w, x_zero, w_zero = (*node.inputs, None, None)[:4]
    assert x and w
    largest = _largest_sum(node, x, x_zero, w, w_zero)
    if largest > EXACT:
        raise Refused(f"no scale is multiplied behind it, and sums up to {largest} are not exact in float32")
    one = raiser.constant(node, "one", np.ones((), np.float32))
    return [raiser.dequantized(node, x, one, x_zero), raiser.dequantized(node, w, one, w_zero, axis)]


def _largest_sum(node: ir.Node, x: ir.Value, x_zero: ir.Value | None, w: ir.Value, w_zero: ir.Value | None) -> int:
    """A bound for every partial sum: the largest |x| times the sum of an output's |w|, or of as many of the largest."""
    weight, zero, conv = constant(w), constant(w_zero), node.op_type == "ConvInteger"
    if weight is None or (w_zero is not None and zero is None):
        return _terms(x, w, conv) * _reach(x, x_zero) * _reach(w, w_zero)
    values = weight.astype(np.int64)
    if zero is not None:
        values -= zero.astype(np.int64).reshape(-1, *[1] * (weight.ndim - 1)) if conv and zero.size > 1 else zero
    summed = tuple(range(1, weight.ndim)) if conv else (max(weight.ndim - 2, 0),)
    sums: Array = np.abs(values).sum(axis=summed)
    return int(sums.max(initial=0)) * _reach(x, x_zero)


def _terms(x: ir.Value, w: ir.Value, conv: bool) -> int:
    dims = dims_of(w)
    known = None if dims is None else dims[1:] if conv else dims[-2:-1] or dims
    if not conv and (known is None or None in known) and dims_of(x):
        known = (dims_of(x) or ())[-1:]
    if known is None or None in known:
        raise Refused("no scale is multiplied behind it, and how many products it sums is unknown")
    return math.prod(d or 0 for d in known)


def _reach(value: ir.Value, zero: ir.Value | None) -> int:
    """The largest |q - zero point|."""
    qtype, zeros = QTYPES.get(value.dtype.name.lower()) if value.dtype else None, constant(zero)
    if qtype is None or (zero is not None and zeros is None):
        return 255
    points = np.zeros((), np.int64) if zeros is None else zeros.astype(np.int64)
    return int(max(qtype.qmax - points.min(), points.max() - qtype.qmin))
