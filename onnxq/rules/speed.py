"""OQ701, OQ702, OQ706, OQ712: why a layer does not reach an integer kernel of onnxruntime's CPU provider.

Measured with 1.32 on x64, by the graph that it makes of a model.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.look import onnx_op
from onnxq.rules._around import (
    FOLDS,
    LAYERS,
    MOVERS,
    added_bias,
    bits,
    clip_behind,
    dequantizer,
    eight_bits,
    half,
    limits,
    only_reader,
    quantizer,
    redundant,
    tail_of,
)


@graph_rule("OQ701", "no-output-q", "warning", targets=("ort-cpu",))
def no_output_q(subject: Subject) -> Iterator[Finding]:
    """A layer with 8-bit input and weight runs in float, since nothing quantizes its output.

    What it does:
        Looks for Conv between DequantizeLinear and no QuantizeLinear; and for Gemm and MatMul whose output is not
        quantized, with a float bias, or with a Relu or Clip in front of a single reader. Relu, Clip and data movement
        may stand between a layer and its pair.

    Why is this bad:
        onnxruntime makes QLinearConv only between pairs. A Gemm without output pair needs an int32 bias, and takes a
        Relu behind it for one that belongs to a pair. Else the layer runs in float and dequantizes its weight on every
        run: 0.6 times the speed of the float model for a transformer block, 0.03 times for a single token.

    Use instead:
        A pair behind the layer; for Gemm and MatMul at the end of a network, an int32 bias.
    """
    for node in subject.of(*LAYERS):
        if eight_bits(subject, node) and quantizer(subject, tail_of(subject, node), (*FOLDS, *MOVERS)) is None:
            why = _float_end(subject, node)
            if why:
                yield Finding(node, f"it runs in float: {why}")


def _float_end(subject: Subject, node: ir.Node) -> str:
    """Why a layer without output pair runs in float; empty where it does not."""
    if onnx_op(node, "Conv"):
        return "nothing quantizes its output"
    bias = node.inputs[2] if onnx_op(node, "Gemm") and len(node.inputs) > 2 else added_bias(subject, node)
    clip = clip_behind(tail_of(subject, node))
    if clip is not None:
        return f"nothing quantizes its output behind {clip.op_type} '{clip.name}'"
    if bias is None or dequantizer(subject, bias) is not None:
        return ""
    return f"nothing quantizes its output, and its bias '{bias.name}' is float"


@graph_rule("OQ702", "symmetric-before-relu", "warning", targets=("ort-cpu",))
def symmetric_before_relu(subject: Subject) -> Iterator[Finding]:
    """A Relu or Clip cannot go into the pair behind it.

    What it does:
        Looks for Relu and Clip between an 8-bit layer and a QuantizeLinear whose range goes beyond what they let
        through: a Relu needs the least integer as zero point, a Clip the ends of its interval.

    Why is this bad:
        onnxruntime leaves the operator, and the layer in front of it, in float: 0.4 times the speed of the float model
        for a MobileNet, 1.4 times instead of 3.6 times for a ResNet. Half of the integers are never used.

    Example:
        `Conv -> Relu -> QuantizeLinear(zero_point=128)` with uint8

    Use instead:
        Asymmetric activations: zero point 0 with uint8, -128 with int8.
    """
    for node in subject.of(*FOLDS):
        behind = quantizer(subject, node.outputs[0], MOVERS)
        front = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        ends = limits(behind) if behind is not None and bits(behind) == 8 else None
        if behind is None or ends is None or front is None or redundant(node, behind):
            continue
        layer = _layer_before(subject, front)
        if layer is not None and not half(behind):
            numbers = {"least": ends[0], "greatest": ends[1]}
            text = f"{layer.op_type} '{layer.name}' in front of it runs in float: the pair behind it goes from"
            yield Finding(node, f"{text} {ends[0]:.3g} to {ends[1]:.3g}", numbers=numbers)


def _layer_before(subject: Subject, front: ir.Node) -> ir.Node | None:
    """The 8-bit layer, or Add of two 8-bit values, whose output a Relu alone reads."""
    if len(front.outputs[0].uses()) != 1 or front.outputs[0].is_graph_output():
        return None
    if onnx_op(front, *LAYERS):
        return front if eight_bits(subject, front) else None
    if not onnx_op(front, "Add"):
        return None
    for value in front.inputs:
        product = value.producer() if value is not None else None
        if onnx_op(product, "MatMul") and product is not None and added_bias(subject, product) is not None:
            return product if eight_bits(subject, product) else None
    return front if all(bits(dequantizer(subject, value)) == 8 for value in front.inputs) else None


@graph_rule("OQ706", "residual-matmul", "warning", targets=("ort-cpu",))
def residual_matmul(subject: Subject) -> Iterator[Finding]:
    """A MatMul of rank 2 goes into an Add of two computed values without a pair between.

    What it does:
        Looks for MatMul of two matrices with 8-bit input and weight, read by an Add alone, whose other operand is not
        constant.

    Why is this bad:
        onnxruntime joins the two to a Gemm before it looks for pairs, finds a bias that is no constant, and runs the
        product in float, with the weight dequantized on every run.

    Use instead:
        A pair between MatMul and Add.
    """
    for node in subject.of("MatMul"):
        add = only_reader(node.outputs[0])
        if add is None or not onnx_op(add, "Add") or not eight_bits(subject, node):
            continue
        other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
        pair = dequantizer(subject, other)
        held, dims, weight = pair.data if pair else other, subject.dims(node.inputs[0]), subject.dims(node.inputs[1])
        if subject.is_constant(held) or other is node.outputs[0] or dims is None or weight is None:
            continue
        if len(dims) == 2 == len(weight):
            yield Finding(node, f"it is joined with Add '{add.name}' to a Gemm that runs in float")


@graph_rule("OQ712", "gemm-without-zero-point", "warning", targets=("ort-cpu",))
def gemm_without_zero_point(subject: Subject) -> Iterator[Finding]:
    """A pair around an 8-bit Gemm leaves its zero point out.

    What it does:
        Looks for Gemm, and MatMul with a bias Add, whose input, weight or output pair has no zero point.

    Why is this bad:
        onnxruntime makes QGemm only of pairs that write the zero point, also where it is 0: the layer runs in float.
        Conv and MatMul do not mind.

    Use instead:
        Zero points that are written down.
    """
    for node in subject.of("Gemm", "MatMul"):
        if (onnx_op(node, "MatMul") and added_bias(subject, node) is None) or not eight_bits(subject, node):
            continue
        behind = quantizer(subject, tail_of(subject, node), (*FOLDS, *MOVERS))
        pairs = [dequantizer(subject, value, MOVERS) for value in node.inputs[:2]] + [behind]
        bare = next((one for one in pairs if one is not None and one.zero_value is None), None)
        if bare is not None:
            yield Finding(bare.node, f"it has no zero point: {node.op_type} '{node.name}' runs in float")
