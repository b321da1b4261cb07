"""OQ505, OQ506: what integer kernels sum, and whether int32 holds it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.biases.uses import operands, product
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import Array, constant_tensor, onnx_op
from onnxq.numerics.bias import largest_sum, wide
from onnxq.numerics.spec import QTYPES, TensorSpec
from onnxq.rules._weights import read_integers
from onnxq.states import QUANTIZE, is_q

_INT32 = 2**31 - 1


@graph_rule("OQ505", "float-bias-overflow", "error", targets=("ort-cpu",))
def float_bias_overflow(subject: Subject) -> Iterator[Finding]:
    """A float bias becomes int32 when onnxruntime loads the model, and does not fit.

    What it does:
        Computes bias / (input scale * weight scale) for float biases of layers whose input and weight are dequantized
        and whose output is quantized: those are the ones that onnxruntime turns into integers.

    Why is this bad:
        What does not fit wraps around: the channel has the opposite sign, without a word.

    Use instead:
        A larger weight scale for that channel, or an int32 bias with a scale of its own for 16-bit layers.
    """
    for node in subject.of("Conv", "Gemm", "ConvTranspose"):
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        value = subject.constant(bias)
        if bias is None or value is None or value.dtype.kind != "f" or not _has_quantized_output(node):
            continue
        step = product(node, *operands(node), subject.constant)
        if step is None or step.size not in (1, value.size):
            continue
        size = np.abs(value.astype(np.float64).ravel()) / np.abs(step)
        if (size > _INT32).any():
            at = int(np.argmax(size))
            numbers = {"bias": float(value.ravel()[at]), "int32": float(size[at]), "channel": at}
            yield Finding(node, f"its float bias '{bias.name}' does not fit int32", numbers=numbers)


@graph_rule("OQ506", "accumulator-headroom", "warning", weights=True)
def accumulator_headroom(subject: Subject) -> Iterator[Finding]:
    """Products and bias of a layer may add up to more than int32 holds.

    What it does:
        Adds, for each output channel, the largest sum of products that its integer weights allow with inputs of that
        type and zero point, and its int32 bias. Weights are read only where their type and number allow such a sum.

    Why is this bad:
        Integer kernels sum in int32, and a sum that leaves it wraps around: a large value comes out with the opposite
        sign.

    Example:
        A bias of 2147470000 and products that add up to 14 000: int32 ends at 2147483647.

    Use instead:
        A larger weight scale for that channel, which makes the integers of the bias smaller (`guard-bias` does it), or
        fewer terms in one sum.
    """
    biases = {use.node: one for one, use in subject.biases if one.dtype == ir.DataType.INT32}
    for node in subject.of("Conv", "Gemm", "ConvTranspose", "MatMul"):
        x, w = (subject.linear_of.get(dq) if dq is not None else None for dq in (*operands(node), None)[:2])
        if x is None or w is None or not _may_overflow(node, x, w, subject.largest_int32):
            continue
        stored = biases.get(node)
        value = subject.integers(stored.data) if stored is not None else None
        at, bias = (stored.node, value.ravel()) if stored is not None and value is not None else (node, _NO_BIAS)
        high, low = _sums(node, x, w)
        if bias.size not in (1, high.size):
            continue
        above, below = high + bias, -1 - low - bias
        over = np.maximum(above, below)
        if over.max(initial=0) > _INT32:
            channel = int(np.argmax(over))
            numbers = {
                "channel": channel,
                "bias": int(bias[channel if bias.size > 1 else 0]),
                "products": int(high[channel] if above[channel] >= below[channel] else low[channel]),
                "int32": _INT32,
            }
            text = f"products and bias of '{node.name}' may add up to more than int32 holds"
            yield Finding(at, text, numbers=numbers)


_NO_BIAS = np.zeros(1, np.int64)


def _may_overflow(node: ir.Node, x: Linear, w: Linear, bias: int) -> bool:
    """Whether types and number of terms allow a sum outside int32, without reading weights."""
    dims = w.subject.dims(node.inputs[1])
    most = _largest_product(x.dtype, w.dtype) if x.dtype is not None and w.dtype is not None else 0
    if not most or dims is None or None in dims or constant_tensor(w.data) is None:
        return False
    return ops.terms(node, 1, [d or 0 for d in dims]) * most + bias > _INT32


@cache
def _largest_product(x: ir.DataType, w: ir.DataType) -> int:
    """Bound of one product, whatever the zero points; 0 where products are not summed in int32."""
    kinds = QTYPES.get(x.name.lower()), QTYPES.get(w.name.lower())
    if kinds[0] is None or kinds[1] is None or wide(*(specs := (TensorSpec(kinds[0]), TensorSpec(kinds[1])))):
        return 0
    return largest_sum(*specs, 1)


def _sums(node: ir.Node, x: Linear, w: Linear) -> tuple[Array, Array]:
    """Largest and smallest sum of products of each output channel, int64; nothing where the weight cannot be read."""
    none = np.zeros(0, np.int64)
    array, dims = read_integers(w), w.dims or ()
    axis = ops.channel_axis(node, 1, len(dims))
    kind = QTYPES[x.dtype.name.lower()] if x.dtype is not None else None
    direct = w.out is not None and any(reader is node for reader, _ in w.out.uses())
    batched = node.op_type == "MatMul" and len(dims) != 2
    if array is None or axis is None or kind is None or batched or not direct:
        return none, none
    groups = ops.scale_tiles(node)
    if array.shape[0] % max(groups, 1) or (w.zero is not None and w.zero.size not in (1, array.shape[axis])):
        return none, none  # other rules say so
    zero = int(x.zero.ravel()[0]) if x.zero is not None and x.zero.size else 0
    moved = array if w.zero is None or not w.zero.any() else array.astype(np.int32) - _along(w.zero, axis, array.ndim)
    rows = moved.reshape(groups, -1, *array.shape[1:]) if groups > 1 else moved[None]
    others = tuple(i for i in range(1, rows.ndim) if i != axis + 1)
    up = np.maximum(rows, 0).sum(axis=others, dtype=np.int64).ravel()
    down = np.minimum(rows, 0).sum(axis=others, dtype=np.int64).ravel()
    least, most = kind.qmin - zero, kind.qmax - zero
    return up * most + down * least, up * least + down * most


def _along(zero: Array, axis: int, rank: int) -> Array:
    return zero.reshape([-1 if i == axis else 1 for i in range(rank)])


def _has_quantized_output(node: ir.Node) -> bool:
    """Whether a QuantizeLinear follows, perhaps behind a Relu or Clip."""
    while node.outputs:
        readers = [reader for reader, _ in node.outputs[0].uses()]
        if any(is_q(reader, QUANTIZE) for reader in readers):
            return True
        if len(readers) != 1 or not onnx_op(readers[0], "Relu", "Clip"):
            return False
        node = readers[0]
    return False
