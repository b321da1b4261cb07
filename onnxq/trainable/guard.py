"""Trained biases fit int32, or what they are counted in becomes coarser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.edit import Array, Namer, replace_initializer
from onnxq.facts import Edge
from onnxq.look import attr_float, constant, only_use, onnx_op
from onnxq.numerics.bias import LARGEST, own_scale, product_scale
from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import resolved_axis
from onnxq.pairs import parameter
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

_MARGIN = 1 + 2.0**-20  # more than two float32 roundings


def fitting(node: ir.Node, encoding: Encoding, namer: Namer, ctx: Context) -> Encoding:
    """An encoding that holds a float bias: the given one, or one with a coarser scale where that overflows int32.

    The integer kernels of onnxruntime count a bias in input scale x weight scale, whatever its own scale says. So where
    the scale is that product, the weight gets a coarser scale in these channels; else the bias gets one of its own.

    Args:
        node: What reads the float bias, and is read by the layer.
        encoding: int32, per tensor or per channel.
        namer: Fresh names.
        ctx: Takes the note.
    """
    values = constant(node.inputs[0])
    assert values is not None
    size = np.abs(values.astype(np.float64))
    if encoding.axis is not None:
        axis = resolved_axis(encoding.spec.granularity, values.ndim)
        size = size.max(tuple(i for i in range(values.ndim) if i != axis), initial=0)
    else:
        size = np.asarray(size.max(initial=0))
    least = size / LARGEST
    if (least <= encoding.scale).all():
        return encoding
    channels = int((least > encoding.scale).sum())
    weight = _weight_of(node, encoding)
    if weight is None:
        scale = own_scale(encoding.scale, size)
        text = f"trained biases of {channels} channels would overflow int32: the bias has a scale of its own there"
        ctx.note("own-bias-scale", node, text, Severity.WARNING, channels=channels)
        return replace(encoding, scale=scale)
    q, dq, s_x, s_w = weight
    raised = np.maximum(s_w, (least / s_x * _MARGIN).astype(s_w.dtype))
    old = parameter(q, 1)
    assert old is not None and old.shape is not None
    data = raised.reshape(old.shape.numpy())
    replace_initializer(old, data, namer, lambda edge: edge in (Edge(q, 1), Edge(dq, 1)))
    text = f"trained biases of {channels} channels would overflow int32: the weights have coarser scales there"
    ctx.note("raised-weight-scale", node, text, channels=channels)
    scale = np.broadcast_to(product_scale(s_x, raised, encoding.scale.dtype), encoding.scale.shape)
    return replace(encoding, scale=np.array(scale))


def _weight_of(node: ir.Node, encoding: Encoding) -> tuple[ir.Node, ir.Node, float, Array] | None:
    """Pair of the layer's weight, scale of its input, scales of its weight, where their product is the bias's scale."""
    edge = only_use(node.outputs[0])
    if edge is None or edge.index != 2 or not onnx_op(edge.node, "Conv", "ConvTranspose", "Gemm"):
        return None
    x, dq = (v.producer() if v is not None else None for v in edge.node.inputs[:2])
    q = dq.inputs[0].producer() if dq is not None and is_q(dq, DEQUANTIZE) and dq.inputs[0] is not None else None
    if x is None or dq is None or q is None or not (is_q(x, DEQUANTIZE) and is_q(q, QUANTIZE)):
        return None
    s_x, s_w = constant(parameter(x, 1)), constant(parameter(dq, 1))
    if s_x is None or s_w is None or s_x.size != 1 or s_w.ndim > 1 or len(q.outputs[0].uses()) > 1:
        return None
    s_w = s_w.reshape(()) if s_w.size == 1 and encoding.scale.ndim == 0 else s_w
    if s_w.ndim and s_w.shape != encoding.scale.shape:
        return None
    factor = attr_float(edge.node, "alpha", 1.0) / attr_float(edge.node, "beta", 1.0)
    product = product_scale(float(s_x.reshape(())) * factor, s_w, encoding.scale.dtype)
    return (q, dq, float(s_x.reshape(())) * factor, s_w) if np.array_equal(product, encoding.scale) else None
