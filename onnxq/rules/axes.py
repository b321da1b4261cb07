"""OQ30x: which axis do the scales lie along?"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq import ops
from onnxq.carry import Reader, constant_behind, readers_behind
from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import onnx_op
from onnxq.opsets.needed import attribute_since
from onnxq.rules._around import quantizer
from onnxq.states import DEQUANTIZE, is_q
from onnxq.wording import shape_text


@graph_rule("OQ301", "axis-out-of-range", "error", fix="set-axis")
def axis_out_of_range(subject: Subject) -> Iterator[Finding]:
    """The axis is outside the tensor.

    What it does:
        Compares `axis` with the rank of the data of each pair that has several scales. Without the attribute the axis
        is 1, which a tensor of rank 1 does not have. Biases are OQ504.

    Why is this bad:
        The model loads and stops when it runs; where onnxruntime fuses the node it takes no notice, so that results
        depend on the optimization level.

    Use instead:
        The axis as an attribute, counted from the front.

    Fix safety:
        Safe: only done where exactly one axis has as many entries as there are scales.
    """
    for one, length, dims in _several(subject):
        if not -len(dims) <= one.axis < len(dims) and not _is_bias(one):
            default = "" if one.has_axis else ", its default,"
            text = f"its axis {one.axis}{default} is outside a tensor of rank {len(dims)}"
            numbers = {"axis": one.axis, "rank": len(dims), "scales": length}
            fits = dims.count(length) == 1 and (len(dims) == 1 or None not in dims)
            yield Finding(one.node, text, "Write the axis that the scales lie along.", numbers, None, fits)


@graph_rule("OQ302", "scale-length", "error", fix="set-axis")
def scale_length(subject: Subject) -> Iterator[Finding]:
    """There are more or fewer scales than entries along the axis.

    What it does:
        Compares the number of scales, where there is more than one, with the length of the axis.

    Why is this bad:
        onnxruntime creates a session and stops when it runs, or fuses the node and ignores the axis.

    Use instead:
        The axis that has as many entries as there are scales; or scales for this one.

    Fix safety:
        Safe: only done where exactly one axis has as many entries as there are scales.
    """
    for one, length, dims in _several(subject):
        if one.block_size or not -len(dims) <= one.axis < len(dims):
            continue
        along = dims[one.axis]
        if along is not None and along != length:
            text = f"it has {length} scales, and axis {one.axis} of {shape_text(dims)} is {along} long"
            numbers = {"scales": length, "axis": one.axis, "length": along}
            yield Finding(one.node, text, numbers=numbers, fixable=dims.count(length) == 1 and None not in dims)


@graph_rule("OQ303", "not-output-channel", "error")
def not_output_channel(subject: Subject) -> Iterator[Finding]:
    """The scales of a weight lie along another axis than its output channels.

    What it does:
        Follows each constant with scales per channel to the operators that read it, through Transpose, Reshape and the
        like, and compares the axis with that of their output channels. Square weights are looked at like any other: the
        length does not tell.

    Why is this bad:
        Integer kernels have one scale for each output channel. With a square weight onnxruntime fuses the node as if
        the axis were the right one: relative errors of 0.8 to 1.6, without a word. With others the layer runs in float.

    Example:
        `DequantizeLinear(axis=1)` for the weight of a Conv, which has its output channels on axis 0.

    Use instead:
        Axis 0 for Conv and for Gemm with transB=1, 1 for ConvTranspose and Gemm, the last for MatMul. The weight has to
        be quantized anew: scales along one axis cannot be turned into scales along another.
    """
    for one, length, dims in _several(subject):
        if one.quantizes or one.block_size or not -len(dims) <= one.axis < len(dims) or one.out is None:
            continue
        if one.dtype == ir.DataType.INT32 or not _constant(one):  # a bias has nothing but output channels
            continue
        known = tuple(d if d is not None else -1 for d in dims)
        axis = one.axis % len(dims)
        for use in readers_behind(one.out, known, axis):
            wanted = _channels(use)
            if wanted not in (None, use.axis):
                at = f"axis {one.axis}" + ("" if use.axis == axis else f", which is {use.axis} where it is read")
                text = (
                    f"its {length} scales lie along {at}, and {_reader(use)} has its output channels on axis {wanted}"
                )
                yield Finding(one.node, text, "Quantize the weight anew along that axis.", _numbers(use, wanted))


def _reader(use: Reader) -> str:
    return f"{use.node.op_type} '{use.node.name}'"


def _numbers(use: Reader, wanted: int | None) -> dict[str, int | None]:
    return {"axis": use.axis, "channels": wanted}


@graph_rule("OQ304", "per-channel-activation", "warning")
def per_channel_activation(subject: Subject) -> Iterator[Finding]:
    """An activation has a scale for each channel.

    What it does:
        Looks for QuantizeLinear nodes with several scales whose input is computed. With `--target ort-cpu` it is an
        error in front of a Conv without bias.

    Why is this bad:
        Integer kernels take one scale for an activation: the layers around it run in float. onnxruntime makes a
        QLinearConv of a Conv without bias all the same, and stops when it runs.

    Use instead:
        One scale; where channels differ much, move the difference into the weights first.
    """
    for one, length in subject.per_axis:
        if one.quantizes and not one.block_size and one.data is not None and _is_activation(one):
            text = f"it quantizes an activation with {length} scales"
            yield Finding(one.node, text, "", {"scales": length}, Severity.ERROR if _stops(subject, one) else None)


def _stops(subject: Subject, one: Linear) -> bool:
    """Whether onnxruntime's default session stops at it (measured with 1.32: uint8, Conv, no bias, a pair behind)."""
    if subject.target is None or subject.target.name != "ort-cpu" or one.dtype != ir.DataType.UINT8 or one.out is None:
        return False
    pairs = [node for node, _ in one.out.uses() if is_q(node, DEQUANTIZE)]
    layers = [node for pair in pairs for node, _ in pair.outputs[0].uses() if onnx_op(node, "Conv")]
    return any(len(node.inputs) < 3 and quantizer(subject, node.outputs[0]) is not None for node in layers)


def _is_activation(one: Linear) -> bool:
    """Whether a QuantizeLinear reads a computed value; a weight may be computed, too, and is told by its readers."""
    if not isinstance(constant_behind(one.data), str) or one.data is None:
        return False
    pairs = [node for node, _ in one.out.uses() if is_q(node, DEQUANTIZE)] if one.out is not None else []
    readers = [use for pair in pairs for use in pair.outputs[0].uses()]
    return not readers or any(index == 0 or ops.info(node) is None for node, index in readers)


@graph_rule("OQ305", "block-shape", "error")
def block_shape(subject: Subject) -> Iterator[Finding]:
    """The block size does not go with the shape of the scale.

    What it does:
        Compares `block_size` with data and scale: along the axis the scale has one entry for each block, the last of
        which may be shorter; all other dimensions are those of the data.

    Why is this bad:
        onnxruntime stops when it loads or runs the model, or fuses it and ignores the blocks.

    Use instead:
        A scale of shape ceil(D / block_size) along the axis.
    """
    for one in subject.linears:
        if not one.block_size:
            continue
        scale, dims = subject.dims(one.scale_value), one.dims
        if one.block_size < 0:
            yield Finding(one.node, f"its block_size is {one.block_size}", numbers={"block_size": one.block_size})
        if one.block_size <= 0 or scale is None or dims is None:
            continue
        if not -len(dims) <= one.axis < len(dims):
            yield Finding(one.node, f"its axis {one.axis} is outside a tensor of rank {len(dims)}")
            continue
        wanted = [d if d is None or i != one.axis % len(dims) else -(-d // one.block_size) for i, d in enumerate(dims)]
        if len(scale) != len(dims) or any(None not in (w, s) and w != s for w, s in zip(wanted, scale, strict=True)):
            has, needs = shape_text(scale), shape_text(wanted)
            text = f"blocks of {one.block_size} along axis {one.axis} of {shape_text(dims)} need a scale of {needs}"
            yield Finding(one.node, f"{text}, and it has {has}", numbers={"block_size": one.block_size})


@graph_rule("OQ306", "attribute-too-new", "error", fix="fit-versions")
def attribute_too_new(subject: Subject) -> Iterator[Finding]:
    """A QuantizeLinear or DequantizeLinear has an attribute that its opset does not know.

    What it does:
        Compares `axis` (opset 13), `saturate` (19), `block_size` and QuantizeLinear's `output_dtype` (21), `precision`
        and DequantizeLinear's `output_dtype` (23) with the imported opset.

    Why is this bad:
        onnxruntime does not load the model; others ignore the attribute.

    Use instead:
        An opset that has the attribute.

    Fix safety:
        Safe: operators that mean something else at the new opset are rewritten.
    """
    for one in subject.linears:
        opset = subject.opset(one.node) if not one.node.domain else 0
        for name in one.node.attributes if opset else ():
            since = attribute_since(one.node, name)
            if opset < since:
                text = f"its attribute '{name}' came with opset {since}, and the model imports {opset}"
                yield Finding(one.node, text, numbers={"opset": opset, "needs": since})


@graph_rule("OQ307", "implicit-axis", "info", fix="set-axis")
def implicit_axis(subject: Subject) -> Iterator[Finding]:
    """Several scales, and the axis is left to its default.

    What it does:
        Looks for pairs with several scales and no `axis`. The default is 1.

    Why is this bad:
        Readers differ in what they take as the default; 0 is what most weights need.

    Use instead:
        The axis as an attribute.

    Fix safety:
        Safe: the default is written down.
    """
    for one, _, dims in _several(subject):
        if not one.has_axis and len(dims) > 1:
            yield Finding(one.node, "its axis is left to the default of 1")


def _several(subject: Subject) -> Iterator[tuple[Linear, int, tuple[int | None, ...]]]:
    """Pairs with a row of several scales, how many, and the shape of the data, where it is known."""
    for one, length in subject.per_axis:
        dims = one.dims
        if dims is not None:
            yield one, length, dims


def _constant(one: Linear) -> bool:
    """Whether a DequantizeLinear reads a constant, or a QuantizeLinear of one."""
    if one.subject.is_constant(one.data):
        return True
    producer = one.data.producer() if one.data is not None else None
    before = one.subject.linear_of.get(producer) if producer is not None else None
    return not isinstance(constant_behind(before.data if before is not None else one.data), str)


def _channels(use: Reader) -> int | None:
    """The output-channel axis where a weight is read; a table has none: rows and columns are both right."""
    return None if onnx_op(use.node, "Gather") else ops.channel_axis(use.node, use.index, len(use.dims))


def _is_bias(one: Linear) -> bool:
    return one.dtype == ir.DataType.INT32
