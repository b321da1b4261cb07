"""OQ707, OQ708, OQ711: pairs of activations that keep layers in float, or serve none (onnxruntime 1.32, x64)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.layers import data_inputs
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import onnx_op
from onnxq.rules._around import (
    FOLDS,
    LAYERS,
    MOVERS,
    bits,
    dequantizer,
    eight_bits,
    half,
    is_stored,
    quantizer,
)
from onnxq.states import DEQUANTIZE, is_q
from onnxq.targets import IntegerOp


@graph_rule("OQ707", "int8-fan-out", "warning", targets=("ort-cpu",), fix="split-pairs")
def int8_fan_out(subject: Subject) -> Iterator[Finding]:
    """int8 activations have several readers.

    What it does:
        Looks for int8 QuantizeLinear of activations with several DequantizeLinear, or one with several readers, behind
        or in front of a Conv, MatMul or Gemm between pairs.

    Why is this bad:
        On x64 onnxruntime turns int8 activations into uint8, for which it has fast kernels, but only where one reader
        reads one DequantizeLinear. The layers around others run in float: 1.4 times the speed of the float model for a
        ResNet instead of 3.3 times.

    Use instead:
        uint8 activations; or a pair for each reader.

    Fix safety:
        Safe: each reader gets a pair of its own with the same scale and zero point.
    """
    for one in subject.linears:
        if one.quantizes or one.dtype != ir.DataType.INT8 or one.out is None or is_stored(subject, one):
            continue
        siblings = [node for node, _ in one.data.uses() if is_q(node, DEQUANTIZE)] if one.data is not None else []
        readers = len(one.out.uses()) + one.out.is_graph_output()
        if (readers < 2 and len(siblings) < 2) or siblings[:1] != [one.node]:
            continue
        layer = _hurt(subject, one)
        if layer is not None:
            count = max(readers, len(siblings))
            text = f"its int8 values have {count} readers: {layer.op_type} '{layer.name}' runs in float"
            yield Finding(one.node, text, numbers={"readers": count})


def _hurt(subject: Subject, one: Linear) -> ir.Node | None:
    """A layer that is not fused because the int8 pair in front of or behind it stays int8."""
    for node, index in one.out.uses() if one.out is not None else ():
        if onnx_op(node, "Conv", "MatMul") and index < 2 and eight_bits(subject, node):
            return node
        quantized = onnx_op(node, "Gemm") and quantizer(subject, node.outputs[0], FOLDS) is not None
        if quantized and not index and eight_bits(subject, node):
            return node
    q = one.data.producer() if one.data is not None else None
    value = q.inputs[0] if q is not None and q.inputs else None
    front = value.producer() if value is not None else None
    while front is not None and onnx_op(front, *FOLDS, *MOVERS) and front.inputs[0] is not None:
        front = front.inputs[0].producer()
    return front if front is not None and onnx_op(front, *LAYERS) and eight_bits(subject, front) else None


@graph_rule("OQ708", "isolated-pair", "info", targets=("ort-cpu",))
def isolated_pair(subject: Subject) -> Iterator[Finding]:
    """A pair rounds values for operators that run in float.

    What it does:
        Looks for 8-bit pairs of activations where neither the operator in front nor one behind has an integer kernel
        with pairs around it.

    Why is this bad:
        The values lose accuracy, two operators more run, and nothing becomes faster.

    Use instead:
        No pair there.
    """
    target = subject.target
    for one in subject.linears if target is not None else ():
        if not one.quantizes or bits(one) != 8 or subject.is_constant(one.data) or one.out is None or half(one):
            continue
        behind = [subject.linear_of[n] for n, _ in one.out.uses() if is_q(n, DEQUANTIZE)]
        if len(behind) != len(one.out.uses()) or not behind or one.out.is_graph_output():
            continue
        front = _source(one.data)
        around = [front] if front is not None else []
        around += [node for dq in behind for node in _readers(dq.out)]
        given_out = any(dq.out is not None and dq.out.is_graph_output() for dq in behind)
        if not (front is None and given_out) and not any(_on_integers(subject, node) for node in around):
            names = " and ".join(sorted({node.op_type for node in around})) or "nothing"
            yield Finding(one.node, f"around the pair stands only what runs in float: {names}")


def _source(value: ir.Value | None) -> ir.Node | None:
    """What computes a value, in front of ops that only move or clip it."""
    node = value.producer() if value is not None else None
    while node is not None and onnx_op(node, *FOLDS, *MOVERS, "Flatten", "Gather") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _readers(value: ir.Value | None) -> Iterator[ir.Node]:
    """What computes with a value, behind ops that only move it."""
    pending = [value]
    while pending:
        value = pending.pop()
        for node, index in value.uses() if value is not None else ():
            if not index and onnx_op(node, *MOVERS, "Flatten", "Gather", "Split", "Identity"):
                pending += node.outputs
            else:
                yield node


def _on_integers(subject: Subject, node: ir.Node) -> bool:
    """Whether an operator has an integer kernel, and quantized operands."""
    rules: dict[str, IntegerOp] = dict(subject.target.integer_ops) if subject.target is not None else {}
    if is_q(node, DEQUANTIZE) or is_q(node, "QuantizeLinear") or node.domain or node.op_type.startswith("QLinear"):
        return True
    rule = rules.get(node.op_type)
    if rule is None or rule.kind in ("moves", "folds"):
        return rule is not None and rule.kind == "moves"
    return all(dequantizer(subject, edge.value, (*MOVERS, *FOLDS)) is not None for edge in data_inputs(node, rule))


@graph_rule("OQ711", "float-scale-16", "warning", targets=("ort-cpu",))
def float_scale_16(subject: Subject) -> Iterator[Finding]:
    """An 8-bit pair of activations has a float16 scale.

    What it does:
        Looks for 8-bit QuantizeLinear with float16 scales in front of Conv, MatMul or Gemm.

    Why is this bad:
        onnxruntime's CPU provider has integer kernels for float32 scales only: the layer runs in float between casts.

    Use instead:
        A float32 model with pairs, and Casts at its ends.
    """
    for one in subject.linears:
        if not one.quantizes or bits(one) != 8 or not half(one) or one.out is None or subject.is_constant(one.data):
            continue
        readers = [node for dq, _ in one.out.uses() for node in _readers(dq.outputs[0])]
        layer = next((node for node in readers if onnx_op(node, *LAYERS)), None)
        if layer is not None:
            yield Finding(one.node, f"its scale is float16: {layer.op_type} '{layer.name}' runs in float")
