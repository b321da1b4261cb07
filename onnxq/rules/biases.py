"""OQ50x: int32 biases, whose scale runtimes take to be the product of the two others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.biases.uses import TOLERANCE, BiasUse
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.look import Array
from onnxq.numerics.bias import LARGEST
from onnxq.numerics.spec import QTYPES


@graph_rule("OQ501", "bias-scale", "error", fix="encode-biases")
def bias_scale(subject: Subject) -> Iterator[Finding]:
    """The scale of an int32 bias is not the product of the scales of input and weight.

    What it does:
        Compares the scale of each int32 bias of an 8-bit layer with alpha * input scale * weight scale / beta, channel
        by channel. Layers of 16 bits, which no integer kernel runs, may have a scale of their own.

    Why is this bad:
        Integer kernels add the bias to the sum of products as it is: its own scale counts for nothing. onnxruntime
        fuses a Gemm without looking, and a Conv where the scales are small; the result is off by the quotient.

    Use instead:
        A scale of exactly float32(input scale * weight scale), axis 0, zero point 0.

    Fix safety:
        Safe: the bias is encoded anew at the product; its values stay what they are, to half a step.
    """
    for bias, use in subject.biases:
        scale = bias.scale
        if bias.dtype != ir.DataType.INT32 or scale is None or _is_product(subject, use, scale) or use.wide:
            continue
        product = use.product(subject.constant)
        if product is None or (scale.size not in (1, product.size) and product.size != 1):
            continue
        off = np.abs(scale.ravel() / product - 1)
        if not off.max(initial=0) <= TOLERANCE:  # NaN is none
            at = int(np.argmax(off))
            numbers = {
                "scale": float(scale.ravel()[at if scale.size > 1 else 0]),
                "product": float(product[at if product.size > 1 else 0]),
                "off": float(off[at]),
                "channel": at,
            }
            layer = f"{use.node.op_type} '{use.node.name}'"
            yield Finding(bias.node, f"its scale is not input scale x weight scale of {layer}", numbers=numbers)


def _is_product(subject: Subject, use: BiasUse, scale: Array) -> bool:
    """Whether the scale is the product to the last bit, as it nearly always is: the quick way to tell."""
    x, w = (subject.linear_of.get(dq) if dq is not None else None for dq in (use.x, use.w))
    if use.node.attributes.data and use.node.op_type in ("Gemm", "ConvTranspose"):
        return False  # alpha, beta, groups
    if x is None or w is None or w.block_size or x.scale is None or w.scale is None:
        return False
    if x.scale.size != 1 or w.scale.shape != scale.shape or not np.array_equal(x.scale * w.scale, scale):
        return False
    return bool((scale > 0).all())


@graph_rule("OQ502", "bias-zero-point", "error", fix="encode-biases")
def bias_zero_point(subject: Subject) -> Iterator[Finding]:
    """An int32 tensor has a zero point other than 0.

    What it does:
        Looks at the zero points of DequantizeLinear nodes that read int32.

    Why is this bad:
        ONNX wants it to be 0, and integer kernels take it to be: onnxruntime ignores it in a fused Gemm.

    Use instead:
        Zero point 0, or none.

    Fix safety:
        Safe: the bias is encoded anew with zero point 0; its values stay what they are.
    """
    for one in subject.dequantizers:
        stored = subject.constant(one.zero_value) if one.dtype == ir.DataType.INT32 else None
        if stored is not None and stored.any() and one.zero is not None:
            worst = int(one.zero.ravel()[int(np.argmax(np.abs(one.zero)))])
            yield Finding(one.node, "its int32 input has a zero point other than 0", numbers={"zero point": worst})


@graph_rule("OQ503", "bias-saturated", "error")
def bias_saturated(subject: Subject) -> Iterator[Finding]:
    """An int32 bias lies at the end of its range.

    What it does:
        Looks for entries of int32 biases within 256 of the ends of int32.

    Why is this bad:
        Such a number was cut: the real bias is larger, and the channel is wrong. It happens where a channel of the
        weight is nearly zero, so that the product of the scales is tiny.

    Use instead:
        A larger weight scale for that channel, before the weight is quantized (`guard-bias` does it).
    """
    for one in subject.stored if subject.largest_int32 > LARGEST else ():
        bias = subject.integers(one.data) if one.dtype == ir.DataType.INT32 else None
        cut = np.abs(bias) > LARGEST if bias is not None else None
        if bias is None or cut is None or not cut.any():
            continue
        at = int(np.argmax(cut))
        numbers = {"value": int(bias.ravel()[at]), "channel": at, "channels": int(cut.sum())}
        yield Finding(one.node, "its bias is cut off at the end of int32", numbers=numbers)


@graph_rule("OQ504", "bias-axis", "error", fix="set-axis")
def bias_axis(subject: Subject) -> Iterator[Finding]:
    """The scales of a bias have no axis, and the default of 1 is outside a tensor of rank 1.

    What it does:
        Looks for int32 tensors of rank 1 with several scales whose axis is not 0.

    Why is this bad:
        By the letter the model is invalid: onnxruntime stops when it runs it unoptimized, and runs when it fuses the
        layer. Other runtimes refuse it.

    Use instead:
        `axis=0`.

    Fix safety:
        Safe: rank 1 has only one axis.
    """
    for one, _ in subject.per_axis:
        dims = one.dims if one.dtype == ir.DataType.INT32 and not one.quantizes else None
        if dims is not None and not -len(dims) <= one.axis < len(dims):
            default = "" if one.has_axis else " by default"
            text = f"its axis is {one.axis}{default}, and its bias has rank {len(dims)}"
            yield Finding(one.node, text, numbers={"axis": one.axis, "rank": len(dims)}, fixable=len(dims) == 1)


@graph_rule("OQ507", "bias-type", "warning")
def bias_type(subject: Subject) -> Iterator[Finding]:
    """A bias is stored in 8 or 16 bits.

    What it does:
        Looks for biases of Conv, ConvTranspose and Gemm behind a DequantizeLinear of less than 32 bits.

    Why is this bad:
        Integer kernels take int32 biases: the layer runs in float. 256 steps are few for a bias.

    Use instead:
        int32 at input scale * weight scale.
    """
    for bias, use in subject.biases:
        spec = QTYPES.get(bias.dtype.name.lower()) if bias.dtype is not None else None
        if spec is not None and not spec.is_float and spec.bits < 32:
            yield Finding(bias.node, f"the bias of {use.node.op_type} '{use.node.name}' is {spec.name}")
