"""`validate-qdq`: the gate behind every recipe that writes pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.carry import constant_behind, readers_behind
from onnxq.diagnostics import Severity
from onnxq.errors import ValidationError
from onnxq.look import all_nodes, attr_int, constant, constant_tensor, dims_of, onnx_op
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.wording import plural

Array = np.ndarray[Any, Any]
Finding = tuple[str, str]
Check = Callable[[ir.Node], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class ValidateQdq(Pass):
    """graph -> graph, or a `ValidationError` that lists each broken rule.

    Rules: every QuantizeLinear is read by DequantizeLinear only, with the same scale, zero point, axis, block size and
    type; scales are finite, positive and normal, and as many as the axis is long; zero points have the type of the
    integers and the shape of the scale; the axis is in range and is the output-channel axis of the op that reads a
    weight; an int32 bias has zero point 0.
    """

    name: ClassVar[str] = "validate-qdq"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Check every pair in all scopes; the graph stays as it is.

        Raises:
            ValidationError: At least one rule is broken.
        """
        broken = []
        for node in all_nodes(model):
            checks: tuple[Check, ...] = ()
            if is_q(node, QUANTIZE):
                checks = (_parameters, _readers)
            elif is_q(node, DEQUANTIZE):
                checks = (_parameters, _bias, _channel_axis)
            for check in checks:
                for code, why in check(node):
                    ctx.note(code, node, why, Severity.ERROR)
                    broken.append(f"{node.name} ({node.op_type}): {why} [{code}]")
        if broken:
            more = f"\n  … and {len(broken) - 10} more" if len(broken) > 10 else ""
            raise ValidationError(f"{plural(len(broken), 'broken Q/DQ rule')}:\n  " + "\n  ".join(broken[:10]) + more)
        return False


def _readers(q: ir.Node) -> Iterator[Finding]:
    out = q.outputs[0]
    if out.is_graph_output():
        yield "q-is-output", "its integers are a graph output"
    elif not out.uses():
        yield "q-without-dq", "no DequantizeLinear reads it"
    for reader, _ in out.uses():
        if not is_q(reader, DEQUANTIZE):
            yield "q-without-dq", f"{reader.name} ({reader.op_type}) reads its integers"
            continue
        for index, what in ((1, "scale"), (2, "zero point")):
            mine, theirs = _input(q, index), _input(reader, index)
            if mine is not theirs and not _equal(constant(mine), constant(theirs), index == 2):
                yield "pair-mismatch", f"{what} differs from that of {reader.name}"
        scale = constant_tensor(_input(q, 1))
        if (scale is None or scale.size > 1) and _axis(q, out) != _axis(reader, out):
            yield "pair-mismatch", f"axis differs from that of {reader.name}"
        if attr_int(q, "block_size", 0) != attr_int(reader, "block_size", 0):
            yield "pair-mismatch", f"block_size differs from that of {reader.name}"


def _axis(node: ir.Node, integers: ir.Value) -> int:
    """The axis, counted from the front where the rank is known."""
    axis, dims = attr_int(node, "axis", 1), dims_of(integers) or dims_of(node.inputs[0])
    return axis + len(dims) if axis < 0 and dims is not None else axis


def _parameters(node: ir.Node) -> Iterator[Finding]:
    scale, zero = constant(_input(node, 1)), constant_tensor(_input(node, 2))
    if scale is None:
        return
    least, most = _normal(scale.dtype)
    good = (scale >= least) & (scale <= most)
    if not good.all():
        yield "bad-scale", f"{int((~good).sum())} of {plural(scale.size, 'scale')} not finite, positive and normal"
    if zero is not None:
        if tuple(zero.shape.numpy()) != scale.shape and not (zero.size == scale.size == 1):
            yield "zero-point-shape", f"zero point of shape {list(zero.shape.numpy())}, scale of {list(scale.shape)}"
        integers = node.inputs[0] if node.op_type == DEQUANTIZE else node.outputs[0]
        if integers is not None and integers.dtype is not None and integers.dtype != zero.dtype:
            yield "zero-point-type", f"zero point is {zero.dtype.name}, the integers are {integers.dtype.name}"
    if scale.size > 1:
        yield from _granularity(node, scale)


@cache
def _normal(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Smallest normal and largest number of a float type, also of those that NumPy does not know."""
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(limits.smallest_normal), float(limits.max)


def _granularity(node: ir.Node, scale: Array) -> Iterator[Finding]:
    dims = dims_of(node.inputs[0]) or dims_of(node.outputs[0])
    if dims is None:
        return
    axis, block = attr_int(node, "axis", 1), attr_int(node, "block_size", 0)
    if not -len(dims) <= axis < len(dims):
        yield "axis-range", f"axis {axis} of a tensor of rank {len(dims)}"
        return
    length = dims[axis]
    if block:
        wanted = [d if i != axis % len(dims) or d is None else -(-d // block) for i, d in enumerate(dims)]
        if scale.ndim != len(dims) or any(w not in (None, s) for w, s in zip(wanted, scale.shape, strict=True)):
            yield "block-shape", f"scale of shape {list(scale.shape)}, blocks of {block} need {wanted}"
    elif scale.ndim != 1 or (length is not None and scale.size != length):
        yield "scale-length", f"scale of shape {list(scale.shape)}, axis {axis} is {length} long"


def _bias(dq: ir.Node) -> Iterator[Finding]:
    data, zero = _input(dq, 0), constant(_input(dq, 2))
    if data is not None and data.dtype == ir.DataType.INT32 and zero is not None and zero.any():
        yield "bias-zero-point", "an int32 bias has a zero point other than 0"


def _channel_axis(dq: ir.Node) -> Iterator[Finding]:
    data, scale = _input(dq, 0), constant_tensor(_input(dq, 1))
    q = data.producer() if data is not None else None
    weight = constant_behind(_input(q, 0) if q is not None and is_q(q, QUANTIZE) else data)
    if isinstance(weight, str) or scale is None or scale.size <= 1 or attr_int(dq, "block_size", 0) or not weight.dims:
        return
    axis = attr_int(dq, "axis", 1) % len(weight.dims)
    for use in readers_behind(dq.outputs[0], weight.dims, axis):
        wanted = ops.channel_axis(use.node, use.index, len(use.dims))
        # A table has no output channels: a scale for each row or each column are both right.
        if wanted not in (None, use.axis) and not onnx_op(use.node, "Gather"):
            at = f"axis {axis}" if use.axis == axis else f"axis {axis}, which is {use.axis} where it is read"
            yield "wrong-axis", f"{at}, but {use.node.op_type} '{use.node.name}' has its output channels on {wanted}"


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _equal(a: Array | None, b: Array | None, absent_is_zero: bool) -> bool:
    if absent_is_zero and (a is None) != (b is None):
        present = a if a is not None else b
        return present is not None and not present.any()
    return a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)
