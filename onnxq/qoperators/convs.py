"""Integer convolutions: QLinearConv of both domains, and ConvInteger with what stands behind it."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.look import attr_int, dims_of
from onnxq.ops import MICROSOFT
from onnxq.qoperators.biases import dequantized_bias
from onnxq.qoperators.raising import Raiser, Refused, Rewrite
from onnxq.qoperators.sums import exact_sum
from onnxq.qoperators.tails import find_tail


def qlinear_conv(node: ir.Node, raiser: Raiser) -> str:
    """``Q(Conv(DQ(x), DQ(w), DQ(int32 bias)))``; NHWC tensors are transposed around the Conv."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*node.inputs, None)[:9]
    assert x and x_scale and w and w_scale and y_scale
    read = raiser.dequantized(node, x, x_scale, x_zero)
    inputs = [read, raiser.dequantized(node, w, w_scale, w_zero, 0)]
    if bias is not None:
        inputs.append(dequantized_bias(raiser, node, bias, [x_scale, w_scale]))
    kept = [attr for name, attr in node.attributes.items() if name != "channels_last"]
    if not attr_int(node, "channels_last", 0):
        made = raiser.float_op(node, "Conv", inputs, kept)
    else:
        rank = _rank(x, w)
        to_first, to_last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
        inputs[0] = raiser.float_op(node, "Transpose", inputs[:1], {"perm": to_first}, name=read.name)
        inputs[0].shape = _permuted(read, to_first)
        made = raiser.float_op(node, "Conv", inputs, kept)
        made.shape = _permuted(node.outputs[0], to_first)
        made = raiser.float_op(
            node, "Transpose", [made], {"perm": to_last}, name=f"{made.name}_last", like=node.outputs[0]
        )
    raiser.quantized_output(node, made, y_scale, y_zero)
    return ""


def _rank(*values: ir.Value) -> int:
    for value in values:
        if value.shape is not None:
            return len(value.shape)
    raise Refused("its rank is unknown: run infer-shapes first")


def _permuted(value: ir.Value, perm: list[int]) -> ir.Shape | None:
    return None if value.shape is None else ir.Shape([value.shape[i] for i in perm])


def conv_integer(node: ir.Node, raiser: Raiser) -> str:
    """``Conv(DQ(x), DQ(w), bias)`` with the scales that are multiplied behind it; ``Cast(Conv(...))`` without such."""
    x, w, x_zero, w_zero = (*node.inputs, None, None)[:4]
    assert x and w
    dims = dims_of(w)
    tail = find_tail(node, raiser, None if dims is None else len(dims) - 1, len(dims or ()))
    if tail is None:
        made = raiser.float_op(
            node, "Conv", exact_sum(node, raiser, axis=0), node.attributes.values(), dtype=ir.DataType.FLOAT
        )
        raiser.take_over(node.outputs[0], raiser.as_int32(node, made))
        return ""
    inputs = [
        raiser.dequantized(node, x, tail.x_scale, x_zero),
        raiser.dequantized(node, w, tail.w_scale, w_zero, 0),
    ]
    end = tail.end
    if tail.int_bias is not None:
        inputs.append(dequantized_bias(raiser, node, tail.int_bias, [tail.x_scale, tail.w_scale]))
    elif tail.rounded is not None:
        why = f"bias '{tail.rounded.name}' was rounded down to a multiple of s_x * s_w at run time; now it is not"
        raiser.ctx.note("bias-not-rounded", node, why)
        inputs.append(tail.rounded)
    elif dims is not None and dims[0] is not None:
        bias, end = tail.float_bias(node, raiser, dims[0])
        inputs += [bias] if bias is not None else []
    made = raiser.float_op(node, "Conv", inputs, node.attributes.values(), like=end)
    raiser.take_over(end, made)
    return ""


FORMS: dict[tuple[str, str], Rewrite] = {
    ("", "QLinearConv"): qlinear_conv,
    (MICROSOFT, "QLinearConv"): qlinear_conv,
    ("", "ConvInteger"): conv_integer,
}
