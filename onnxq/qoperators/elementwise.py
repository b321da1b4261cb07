"""Integer operators without weights: elementwise ones, joins, pools, Softmax.

``Q(op(DQ x, …))`` is exact for Sigmoid, LeakyRelu, Where, Concat and GlobalAveragePool; Add, Mul, AveragePool and
Softmax differ from onnxruntime's integer kernels by one step now and then, at ties (measured with 1.32).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.look import attr_int, attr_ints, dims_of
from onnxq.ops import MICROSOFT
from onnxq.pairs import parameter
from onnxq.qoperators.layouts import LAYOUTS, Layout
from onnxq.qoperators.raising import Raiser, Refused, Rewrite

SOFTMAX_ALONG_AXIS_SINCE = 13
"""First opset whose Softmax runs along one axis; before, it ran over all axes from that one on."""

_INTEGER_MAX_POOL_SINCE = 12


def _required(node: ir.Node, index: int) -> ir.Value:
    value = parameter(node, index)
    if value is None:
        raise Refused(f"input {index} is missing")
    return value


def _operands(node: ir.Node, raiser: Raiser, layout: Layout) -> list[ir.Value]:
    """The operands as floats, behind the inputs that are not quantized."""
    made = [_required(node, i) for i in layout.plain]
    for i in layout.operands_of(node):
        made.append(raiser.dequantized(node, _required(node, i), _required(node, i + 1), parameter(node, i + 2)))
    return made


def _finish(node: ir.Node, raiser: Raiser, layout: Layout, y: ir.Value) -> str:
    out, dtype = node.outputs[0], _required(node, layout.operands[0]).dtype
    if out.dtype is None and dtype is not None:
        out.dtype = dtype
    raiser.quantized_output(node, y, _required(node, layout.output), parameter(node, layout.output + 1))
    return ""


def _plain(layout: Layout) -> Rewrite:
    def rewrite(node: ir.Node, raiser: Raiser) -> str:
        y = raiser.float_op(node, layout.float_op, _operands(node, raiser, layout), node.attributes.values())
        return _finish(node, raiser, layout, _typed_as_operands(y, layout))

    return rewrite


def _typed_as_operands(y: ir.Value, layout: Layout) -> ir.Value:
    node = y.producer()
    operand = node.inputs[len(layout.plain)] if node is not None else None
    y.type = operand.type if operand is not None else y.type
    return y


def _pool(layout: Layout) -> Rewrite:
    """AveragePool and GlobalAveragePool; the layout with channels last becomes one with channels second."""

    def rewrite(node: ir.Node, raiser: Raiser) -> str:
        (x,) = _operands(node, raiser, layout)
        last = attr_int(node, "channels_last", 0) != 0
        kernel = attr_ints(node, "kernel_shape")
        rank = len(kernel) + 2 if kernel is not None else len(dims_of(x) or ())
        if last and not rank:
            raise Refused("its channels are last, and the rank of its input is unknown")
        kept = [attr for attr in node.attributes.values() if attr.name != "channels_last"]
        y = _channels_second(node, raiser, x, rank, kept) if last else raiser.float_op(node, layout.float_op, [x], kept)
        return _finish(node, raiser, layout, y)

    def _channels_second(
        node: ir.Node, raiser: Raiser, x: ir.Value, rank: int, attributes: Sequence[ir.Attr]
    ) -> ir.Value:
        return between_transposes(node, raiser, layout.float_op, x, rank, attributes)

    return rewrite


def between_transposes(
    node: ir.Node, raiser: Raiser, op_type: str, x: ir.Value, rank: int, attributes: Sequence[ir.Attr]
) -> ir.Value:
    """An operator that has its channels second on a tensor that has them last."""
    there, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    base = node.name or node.op_type
    first = raiser.float_op(node, "Transpose", [x], {"perm": there}, name=f"{base}_channels_second")
    first.shape = _permuted(x.shape, there)
    y = raiser.float_op(node, op_type, [first], attributes)
    y.shape = _permuted(node.outputs[0].shape, there)
    return raiser.float_op(node, "Transpose", [y], {"perm": back}, name=f"{base}_channels_last", like=node.outputs[0])


def _permuted(shape: ir.Shape | None, perm: list[int]) -> ir.Shape | None:
    return None if shape is None or len(shape) != len(perm) else ir.Shape([shape[i] for i in perm])


def _max_pool(node: ir.Node, raiser: Raiser) -> str:
    """NhwcMaxPool, which moves integers as MaxPool does: no pair is needed."""
    if raiser.opset < _INTEGER_MAX_POOL_SINCE:
        raise Refused(f"MaxPool takes integers from opset {_INTEGER_MAX_POOL_SINCE} on, the model has {raiser.opset}")
    kernel, x = attr_ints(node, "kernel_shape") or [], _required(node, 0)
    y = between_transposes(node, raiser, "MaxPool", x, len(kernel) + 2, list(node.attributes.values()))
    raiser.take_over(node.outputs[0], y)
    return ""


def _softmax(layout: Layout) -> Rewrite:
    """Softmax as the opset in the attribute ``opset`` has it, which need not be the model's."""

    def rewrite(node: ir.Node, raiser: Raiser) -> str:
        (x,) = _operands(node, raiser, layout)
        along = attr_int(node, "opset", 0) >= SOFTMAX_ALONG_AXIS_SINCE
        axis, rank = attr_int(node, "axis", -1), len(dims_of(x) or ()) or None
        last = axis == -1 or (rank is not None and axis == rank - 1)
        if last or along is (raiser.opset >= SOFTMAX_ALONG_AXIS_SINCE):
            y = raiser.float_op(node, "Softmax", [x], {"axis": axis})
        elif along:
            y = _along(node, raiser, x, axis, rank)
        else:
            y = _over_the_rest(node, raiser, x, axis)
        return _finish(node, raiser, layout, y)

    return rewrite


def _along(node: ir.Node, raiser: Raiser, x: ir.Value, axis: int, rank: int | None) -> ir.Value:
    """Softmax along an inner axis in an opset that has it for the last one only."""
    if rank is None:
        raise Refused("its input has an unknown rank, and Softmax runs along one axis from opset 13 on")
    perm = list(range(rank))
    perm[axis % rank], perm[-1] = perm[-1], perm[axis % rank]
    base = node.name or node.op_type
    given: dict[str, Any] = {"perm": perm}
    turned = raiser.float_op(node, "Transpose", [x], given, name=f"{base}_turned")
    turned.shape = _permuted(x.shape, perm)
    y = raiser.float_op(node, "Softmax", [turned], {"axis": -1}, like=turned)
    return raiser.float_op(node, "Transpose", [y], given, name=f"{base}_back", like=node.outputs[0])


def _over_the_rest(node: ir.Node, raiser: Raiser, x: ir.Value, axis: int) -> ir.Value:
    """Softmax over all axes from one on, in an opset that has it along one axis."""
    base, two = node.name or node.op_type, ir.Shape([None, None])
    flat = raiser.float_op(node, "Flatten", [x], {"axis": axis}, name=f"{base}_flat")
    flat.shape = two
    y = raiser.float_op(node, "Softmax", [flat], {"axis": -1}, like=flat)
    dims = dims_of(x)
    if dims is not None and None not in dims:
        shape = raiser.constant(node, f"{base}_shape", np.array(dims, np.int64))
    else:
        shape = raiser.float_op(node, "Shape", [x], name=f"{base}_shape", dtype=ir.DataType.INT64)
    return raiser.float_op(node, "Reshape", [y, shape], name=f"{base}_back", like=node.outputs[0])


_SPECIAL = {"Softmax": _softmax, "AveragePool": _pool, "GlobalAveragePool": _pool}
_PLAIN = ("Add", "Mul", "Sigmoid", "LeakyRelu", "Where", "Concat")

FORMS: dict[tuple[str, str], Rewrite] = {
    (MICROSOFT, "NhwcMaxPool"): _max_pool,
    **{(MICROSOFT, LAYOUTS[op].op_type): _plain(LAYOUTS[op]) for op in _PLAIN},
    **{(MICROSOFT, LAYOUTS[op].op_type): form(LAYOUTS[op]) for op, form in _SPECIAL.items()},
}
"""(domain, op type) -> its rewrite."""
