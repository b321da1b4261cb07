"""Integer matrix products: QLinearMatMul, MatMulInteger with what stands behind it, QGemm, MatMulIntegerToFloat."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.look import attr_float, attr_int, constant, dims_of, only_use, onnx_op
from onnxq.ops import MICROSOFT
from onnxq.qoperators.biases import dequantized_bias
from onnxq.qoperators.parameters import is_single
from onnxq.qoperators.raising import Raiser, Refused, Rewrite
from onnxq.qoperators.sums import exact_sum
from onnxq.qoperators.tails import find_tail

_OPTIONAL_C = 11  # first opset whose Gemm needs no C


def columns(node: ir.Node, right: ir.Value, scale: ir.Value) -> int | None:
    """The axis of a right operand that one scale a column runs along; None for a single scale.

    Raises:
        Refused: The rank is unknown.
    """
    if right.shape is not None:
        return max(len(right.shape) - 1, 0)
    if is_single(scale):
        return None
    raise Refused(f"the rank of '{right.name}' is unknown: run infer-shapes first")


def qlinear_matmul(node: ir.Node, raiser: Raiser) -> str:
    """``Q(MatMul(DQ(a), DQ(b)))``; onnxruntime takes one scale a column of ``b``, and none a row of ``a``."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    assert a and a_scale and b and b_scale and y_scale
    left = raiser.dequantized(node, a, a_scale, a_zero)
    right = raiser.dequantized(node, b, b_scale, b_zero, columns(node, b, b_scale))
    raiser.quantized_output(node, raiser.float_op(node, "MatMul", [left, right]), y_scale, y_zero)
    return ""


def matmul_integer(node: ir.Node, raiser: Raiser) -> str:
    """``MatMul(DQ(a), DQ(b))`` with the scales that are multiplied behind it; ``Cast(MatMul(...))`` without such."""
    a, b, a_zero, b_zero = (*node.inputs, None, None)[:4]
    assert a and b
    axis = None if b.shape is None else max(len(b.shape) - 1, 0)
    rank = _rank(node, a, b)
    tail = find_tail(node, raiser, 1 if axis else None, rank if axis else 0)
    if tail is None:
        made = raiser.float_op(node, "MatMul", exact_sum(node, raiser, axis), dtype=ir.DataType.FLOAT)
        raiser.take_over(node.outputs[0], raiser.as_int32(node, made))
        return ""
    left = raiser.dequantized(node, a, tail.x_scale, a_zero)
    right = raiser.dequantized(node, b, tail.w_scale, b_zero, axis)
    made = raiser.float_op(node, "MatMul", [left, right], like=tail.end)
    if tail.int_bias is not None:
        bias = dequantized_bias(raiser, node, tail.int_bias, [tail.x_scale, tail.w_scale])
        made = raiser.float_op(node, "Add", [made, bias], name=f"{made.name}_biased", like=tail.end)
    else:
        edge = only_use(tail.end)
        other = edge.node.inputs[1 - edge.index] if edge is not None and onnx_op(edge.node, "Add") else None
        if edge is not None and other is not None:
            edge.node.replace_input_with(1 - edge.index, _widened(node, raiser, other, rank))
    raiser.take_over(tail.end, made)
    return ""


def _rank(node: ir.Node, a: ir.Value, b: ir.Value) -> int:
    """The rank of a product, or 1, the least of all, where it is unknown."""
    if node.outputs[0].shape is not None:
        return len(node.outputs[0].shape)
    maker = a.producer()
    left = dims_of(maker.inputs[0] if maker is not None and onnx_op(maker, "DynamicQuantizeLinear") else a)
    return max(len(left), len(b.shape)) if left is not None and b.shape is not None else 1


def _widened(node: ir.Node, raiser: Raiser, bias: ir.Value, rank: int) -> ir.Value:
    """A constant bias with leading axes of length 1 behind a product of rank 3 and more.

    onnxruntime (1.32) makes a float Gemm between Reshapes of such a product and a plain vector: with int8 in front of
    it, the model does not load; behind a DynamicQuantizeLinear its input is quantized twice.
    """
    array = constant(bias)
    if rank < 3 or array is None or array.ndim != 1:
        return bias
    return raiser.constant(node, f"{bias.name}_wide", array.reshape([1] * (rank - 1) + [-1]))


def matmul_integer_to_float(node: ir.Node, raiser: Raiser) -> str:
    """``MatMul(DQ(a), DQ(b)) (+ bias)``."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*node.inputs, None, None, None)[:7]
    assert a and b and a_scale and b_scale
    left = raiser.dequantized(node, a, a_scale, a_zero)
    right = raiser.dequantized(node, b, b_scale, b_zero, columns(node, b, b_scale))
    product_and_bias(node, raiser, left, right, bias)
    return ""


def product_and_bias(node: ir.Node, raiser: Raiser, left: ir.Value, right: ir.Value, bias: ir.Value | None) -> None:
    """``MatMul (-> Add)`` takes the output of the node over."""
    made = raiser.float_op(node, "MatMul", [left, right])
    if bias is not None:
        bias = _widened(node, raiser, bias, _rank(node, left, right))
        made = raiser.float_op(node, "Add", [made, bias], name=f"{made.name}_biased", like=node.outputs[0])
    raiser.take_over(node.outputs[0], made)


def qgemm(node: ir.Node, raiser: Raiser) -> str:
    """``[Q](Gemm(DQ(a), DQ(b), DQ(c)))``: c is added to the sums, so that its scale is alpha times both others."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*node.inputs, None, None, None)[:9]
    assert a and a_scale and b and b_scale
    alpha, axis = attr_float(node, "alpha", 1.0), 0 if attr_int(node, "transB", 0) else 1
    left = raiser.dequantized(node, a, a_scale, a_zero)
    inputs = [left, raiser.dequantized(node, b, b_scale, b_zero, axis)]
    if c is not None:
        inputs.append(_addend(node, raiser, c, [a_scale, b_scale], alpha))
    elif raiser.opset < _OPTIONAL_C:
        raise Refused(f"a Gemm without C needs opset {_OPTIONAL_C}, the model has {raiser.opset}")
    made = raiser.float_op(node, "Gemm", inputs, node.attributes.values(), dtype=left.dtype)
    if y_scale is None:
        raiser.take_over(node.outputs[0], made)
    else:
        raiser.quantized_output(node, made, y_scale, y_zero)
    return ""


def _addend(node: ir.Node, raiser: Raiser, c: ir.Value, scales: list[ir.Value], alpha: float) -> ir.Value:
    """C of a QGemm; where every column has a scale and C one number for all of them, it is repeated."""
    dims, columns_ = dims_of(c), 1 if is_single(scales[1]) else (dims_of(scales[1]) or (None,))[0]
    if columns_ == 1:
        return dequantized_bias(raiser, node, c, scales, factor=alpha)
    if dims is None or columns_ is None:
        raise Refused("the shape of its C or of its scales is unknown: run infer-shapes first")
    if not dims or dims[-1] != columns_:
        array = constant(c)
        if array is None:
            raise Refused(f"its C of shape {list(dims)} has one number for columns with scales of their own")
        c = raiser.constant(node, c.name or "C", np.broadcast_to(array, (*array.shape[:-1], columns_)))
    return dequantized_bias(raiser, node, c, scales, len(c.shape or ()) - 1, alpha)


FORMS: dict[tuple[str, str], Rewrite] = {
    ("", "QLinearMatMul"): qlinear_matmul,
    ("", "MatMulInteger"): matmul_integer,
    (MICROSOFT, "QGemm"): qgemm,
    (MICROSOFT, "MatMulIntegerToFloat"): matmul_integer_to_float,
}
