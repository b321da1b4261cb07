"""Rewritten pairs (`onnxq.trainable.scaled`) folded back into scale and zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, replace_initializer, replace_uses
from onnxq.facts import Edge
from onnxq.look import constant, constant_tensor, graph_of, only_use, onnx_op
from onnxq.numerics.spec import QTYPES, Encoding
from onnxq.pairs import parameter
from onnxq.states import QUANTIZE, is_q
from onnxq.trainable import record
from onnxq.trainable.record import Form


@dataclass(frozen=True, eq=False)
class Found:
    """A pair as `Scaler` writes it.

    Attributes:
        source: What goes into Div.
        q: The QuantizeLinear.
        dq: The DequantizeLinear.
        last: The Mul.
        scale: The constant s.
        shift: The constant z; None where all have the zero point of the pair.
        ends: Bounds of the Clip; None where there is none.
    """

    source: ir.Value
    q: ir.Node
    dq: ir.Node
    last: ir.Node
    scale: ir.Value
    shift: ir.Value | None
    ends: tuple[float, float] | None


def find(dq: ir.Node) -> Found | None:
    """The rewritten pair around a DequantizeLinear; None where it is none."""
    q = _maker(dq.inputs[0])
    one = constant(parameter(q, 1)) if q is not None and is_q(q, QUANTIZE) else None
    if q is None or one is None or one.size != 1 or float(one.reshape(())) != 1:
        return None
    last, shift, ends = _reader(dq), None, None
    if last is not None and onnx_op(last, "Sub"):
        shift, last = last.inputs[1], _reader(last)
    if last is None or not onnx_op(last, "Mul"):
        return None
    front = _maker(q.inputs[0])
    if front is not None and onnx_op(front, "Clip"):
        low, high = constant(parameter(front, 1)), constant(parameter(front, 2))
        if low is None or high is None:
            return None
        ends, front = (float(low), float(high)), _maker(front.inputs[0])
    if shift is not None:
        if front is None or not onnx_op(front, "Add") or front.inputs[1] is not shift:
            return None
        front = _maker(front.inputs[0])
    if front is None or not onnx_op(front, "Div") or front.inputs[0] is None or front.inputs[1] is None:
        return None
    if front.inputs[1] is not last.inputs[1] or constant_tensor(front.inputs[1]) is None:
        return None
    return Found(front.inputs[0], q, dq, last, front.inputs[1], shift, ends)


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _reader(node: ir.Node) -> ir.Node | None:
    edge = only_use(node.outputs[0])
    return edge.node if edge is not None and edge.index == 0 else None


def fold(found: Found, opset: int, namer: Namer) -> str:
    """Make a pair of scale and zero point of a rewritten one, in the form that it had.

    Returns:
        Why it stays as it is, in words; ``""`` if it was folded.
    """
    known = record.read(found.dq.metadata_props).get("form")
    form: Form | str = Form.from_json(known) if known else _guess(found, opset)
    if isinstance(form, str):
        return form
    scale, zero = constant(found.scale), constant(parameter(found.q, 2))
    shift = constant(found.shift)
    assert scale is not None
    zero = np.zeros((), np.int32) if zero is None else zero.astype(np.int32)
    zeros = np.broadcast_to(zero.reshape(()), scale.shape) if shift is None else shift.astype(np.int32)
    if len(form.granularity) == 2:
        axis, size = form.granularity
        scale, zeros = (np.take(v, np.arange(0, v.shape[axis], size), axis) for v in (scale, zeros))
    elif form.granularity:
        scale, zeros = scale.reshape(-1), zeros.reshape(-1)
    encoding = form.encoding(scale, np.asarray(zeros))
    source = _within(found, form, encoding, namer)
    parameters = form.parameters(graph_of(found.scale), encoding, namer)
    replace_uses(found.last.outputs[0], found.dq.outputs[0], namer)
    form.write(found.q, found.dq, source, parameters)
    return ""


def unsettle(dq: ir.Node) -> bool:
    """Inverse of `Scaler.settle` for a pair that is not rewritten; True if it was one."""
    q, known = _maker(dq.inputs[0]), record.read(dq.metadata_props).get("form")
    if known is None or q is None or not is_q(q, QUANTIZE):
        return False
    data, scale, zero = q.inputs[0], parameter(q, 1), parameter(q, 2)
    assert data is not None and scale is not None and zero is not None
    Form.from_json(known).write(q, dq, data, (scale, zero))
    return True


def _within(found: Found, form: Form, encoding: Encoding, namer: Namer) -> ir.Value:
    """The data of a pair; constants lose what Clip cut off where the type would not."""
    tensor = constant_tensor(found.source)
    if found.ends is None or tensor is None:
        return found.source
    zero = 0 if found.shift is not None else int(np.unique(encoding.zero_point)[0])
    if (found.ends[0] + zero, found.ends[1] + zero) == (form.qtype.qmin, form.qtype.qmax):
        return found.source
    scale, ends = constant(found.scale), found.ends
    assert scale is not None

    def cut() -> ir.TensorProtocol:
        return ir.Tensor(np.clip(tensor.numpy(), scale * np.float32(ends[0]), scale * np.float32(ends[1])))

    data = ir.LazyTensor(cut, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()))
    front = next(n for n, i in found.source.uses() if i == 0 and n.inputs[1] is found.scale)
    return replace_initializer(found.source, data, namer, lambda edge: edge == Edge(front, 0))


def _guess(found: Found, opset: int) -> Form | str:
    """The form of a pair that has no record: a channel axis is the one that s runs along."""
    shape = [int(d) for d in found.scale.shape.numpy()] if found.scale.shape is not None else []
    along = [i for i, d in enumerate(shape) if d != 1]
    zero = parameter(found.q, 2)
    dtype = "uint8" if zero is None or zero.dtype is None else zero.dtype.name.lower()
    if len(along) > 1:
        return f"its scale has shape {shape}, and no record says the blocks it stands for"
    if found.ends is not None:
        offset = 0.0 if zero is None else float(np.asarray(constant(zero)).reshape(()))
        ends = (found.ends[0] + offset, found.ends[1] + offset)
        narrow = [q for q in QTYPES.values() if q.bits < 8 and (q.qmin, q.qmax) == ends and q.since <= opset]
        dtype = narrow[0].name if narrow else dtype
    axis = {"axis": along[0]} if along else {}
    size = [shape[along[0]]] if along else []
    return Form(dtype, along, size, [True, True], size, dq=axis, q=axis)
