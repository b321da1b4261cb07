"""Integer weights behind ``Cast (-> Sub zero) -> Mul or Div scale``: a DequantizeLinear in disguise.

``(cast(q) - z) * s`` is what a DequantizeLinear computes, ``/ s`` is one with the scale ``1 / s``. The scale is a
single number, or one along a single axis of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.look import Array, attr_int, constant_tensor, onnx_op
from onnxq.numerics.spec import QTYPES
from onnxq.qoperators.raising import Raiser, Rewrite

_INTEGERS = tuple(ir.DataType[name.upper()] for name, qtype in QTYPES.items() if not qtype.is_float)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class _Weight:
    """What is hidden: integers, a scale of rank 0 or 1, a zero point of its shape in their type, the scale's axis."""

    integers: ir.Value
    scale: Array
    zero: Array
    axis: int | None


def form_of(node: ir.Node) -> Rewrite | None:
    """The rewrite of a Mul or Div that scales a constant of integers; None for any other node."""
    found = _read(node)
    if found is None:
        return None

    def rewrite(node: ir.Node, raiser: Raiser) -> str:
        base = found.integers.name or "weight"
        scale = raiser.constant(node, f"{base}_scale", found.scale)
        zero = raiser.constant(node, f"{base}_zero_point", found.zero)
        made = raiser.dequantized(node, found.integers, scale, zero, found.axis)
        if made.is_graph_output():  # one weight scaled twice, both of it outputs
            made = raiser.float_op(node, "Identity", [made])
        raiser.take_over(node.outputs[0], made)
        return ""

    return rewrite


def _read(node: ir.Node) -> _Weight | None:
    if not onnx_op(node, "Mul", "Div") or len(node.inputs) != 2:
        return None
    for index in (0,) if node.op_type == "Div" else (0, 1):
        found = _integers(node.inputs[index])
        scale = _number(node.inputs[1 - index])
        if found is None or scale is None:
            continue
        integers, dims, zero = found
        if node.op_type == "Div":
            with np.errstate(divide="ignore"):
                scale = np.asarray(1 / scale, scale.dtype)
        return _fitted(integers, dims, scale, zero)
    return None


def _integers(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...], Array] | None:
    """Integers behind Cast, or Cast and Sub; their shape, and what is subtracted."""
    node, zero = value.producer() if value is not None else None, np.zeros(())
    if node is not None and onnx_op(node, "Sub"):
        subtracted = _number(node.inputs[1])
        if subtracted is None or node.inputs[0] is None:
            return None
        node, zero = node.inputs[0].producer(), subtracted
    if node is None or not onnx_op(node, "Cast") or ir.DataType(attr_int(node, "to", 0)) not in _FLOATS:
        return None
    source, tensor = node.inputs[0], constant_tensor(node.inputs[0])
    if source is None or tensor is None or tensor.dtype not in _INTEGERS:
        return None
    return source, tuple(int(d) for d in tensor.shape.numpy()), zero


def _number(value: ir.Value | None) -> Array | None:
    """A constant of floats, also one that is cast or reshaped first."""
    found = constant_behind(value)
    if isinstance(found, str):
        return None
    tensor = found.read()
    return tensor.numpy() if tensor.dtype in _FLOATS else None


def _fitted(integers: ir.Value, dims: tuple[int, ...], scale: Array, zero: Array) -> _Weight | None:
    """Scale and zero point along one axis of the integers; None where they differ along several, or do not fit."""
    tensor = constant_tensor(integers)
    assert tensor is not None
    qtype = QTYPES[tensor.dtype.name.lower()]
    axes = {_axis(p.shape, dims) for p in (scale, zero) if p.size > 1}
    good = np.isfinite(scale).all() and (scale > 0).all()
    whole = (np.rint(zero) == zero).all() and zero.min() >= qtype.qmin and zero.max() <= qtype.qmax
    if len(axes) > 1 or None in axes or not (good and whole) or (qtype.bits > 16 and zero.any()):
        return None
    if max(scale.ndim, zero.ndim) > len(dims):
        return None  # it adds axes
    axis = axes.pop() if axes else None
    shape = () if axis is None else (dims[axis],)
    scale, zero = (
        np.ascontiguousarray(np.broadcast_to(p.reshape(-1 if p.size > 1 else ()), shape)) for p in (scale, zero)
    )
    kind = tensor.dtype.numpy()
    return _Weight(integers, scale.reshape(shape), zero.reshape(shape).astype(qtype.carrier).astype(kind), axis)


def _axis(shape: tuple[int, ...], dims: tuple[int, ...]) -> int | None:
    """The one axis of ``dims`` that a parameter broadcasts from; None if it has several, or does not fit."""
    padded = (1,) * (len(dims) - len(shape)) + shape
    long = [i for i, d in enumerate(padded) if d > 1]
    return long[0] if len(long) == 1 and len(padded) == len(dims) and padded[long[0]] == dims[long[0]] else None
