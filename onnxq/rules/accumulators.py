"""OQ505, OQ506: what integer kernels sum, and whether int32 holds it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.biases.uses import bias_uses, operands, product
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import onnx_op
from onnxq.numerics.bias import largest_sum, wide
from onnxq.numerics.spec import QTYPES, TensorSpec
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


@graph_rule("OQ506", "accumulator-headroom", "warning")
def accumulator_headroom(subject: Subject) -> Iterator[Finding]:
    """Products and bias of a layer may add up to more than int32 holds.

    What it does:
        Adds the largest sum of products that the types of input and weight allow, over as many terms as the layer has,
        and the largest int32 bias. Weights are not read: it is what the types allow, not what these weights reach.

    Why is this bad:
        Integer kernels sum in int32, and a sum that leaves it wraps around: a large value comes out with the opposite
        sign.

    Example:
        A MatMul of uint8 and int8 over 70 000 terms: 70 000 * 255 * 128 is 2.28e9, and int32 ends at 2.15e9.

    Use instead:
        Fewer terms in one sum, weights of fewer bits, or a larger weight scale for channels with a large bias
        (`guard-bias` does it).
    """
    largest: dict[ir.Node, tuple[int, ir.Node]] = {}
    for one in subject.stored:
        value = subject.constant(one.data) if one.dtype == ir.DataType.INT32 else None
        if value is not None and value.size:
            size = max(int(value.max()), -int(value.min()))
            for use in bias_uses(one.node):
                largest[use.node] = max(
                    (size, one.node), largest.get(use.node, (0, one.node)), key=lambda pair: pair[0]
                )
    for node in subject.of("Conv", "Gemm", "ConvTranspose", "MatMul"):
        found = _largest_products(subject, node)
        bias, dq = largest.get(node, (0, node))
        if found is not None and found[0] + bias > _INT32:
            products, terms = found
            numbers = {"terms": terms, "products": products, "bias": bias, "int32": _INT32}
            at, whose = (dq, f" of '{node.name}'") if products <= _INT32 else (node, "")
            text = f"{terms} products{whose} and the bias may add up to {products + bias:.3g}, beyond int32"
            yield Finding(at, text, numbers=numbers)


def _largest_products(subject: Subject, node: ir.Node) -> tuple[int, int] | None:
    """Bound of the sum of products of a layer, and how many there are; None where no kernel sums in int32."""
    pairs = [subject.linear_of.get(dq) if dq is not None else None for dq in operands(node)]
    specs = [_spec(one) if one is not None else None for one in pairs]
    x, w = specs[0], specs[1] if len(specs) > 1 else None
    dims = subject.dims(node.inputs[1]) if len(node.inputs) > 1 else None
    if x is None or w is None or dims is None or wide(x, w):
        return None
    terms = ops.terms(node, 1, [d or 0 for d in dims])
    return largest_sum(x, w, terms), terms


def _spec(one: Linear) -> TensorSpec | None:
    kind = QTYPES.get(one.dtype.name.lower()) if one.dtype is not None else None
    symmetric = one.zero_value is None or (one.zero is not None and not one.zero.any())
    return TensorSpec(kind, kind.signed and symmetric) if kind is not None else None


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
