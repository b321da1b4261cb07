"""OQ703–OQ705, OQ709, OQ710, OQ713: weights alone in few bits, tables, joined ranges (onnxruntime 1.32, x64)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.numerics.spec import QTYPES
from onnxq.rules._around import FOLDS, MOVERS, bits, dequantizer, is_stored, no_nbits, quantizer, weights
from onnxq.wording import plural

_NOTICED = 1 << 14
"""Entries of a table that are dequantized in some microseconds."""
_STEPS = 255 / 50
"""Steps of the joint scale that a range still gets, below which it is lost among larger ones."""


@graph_rule("OQ703", "tied-weight", "warning", targets=("ort-cpu",), fix="copy-tied-weights")
def tied_weight(subject: Subject) -> Iterator[Finding]:
    """The integers of a weight-only product have several readers.

    What it does:
        Looks for weights of 2, 4 or 8 bits of which onnxruntime would make MatMulNBits, read by several operators or
        DequantizeLinear nodes.

    Why is this bad:
        onnxruntime makes MatMulNBits only of weights with one reader. Else the weight is dequantized on every run: 0.03
        to 0.07 times the speed of the float model for a single token.

    Use instead:
        A copy of the integers for each product.

    Fix safety:
        Safe: the copies hold the same numbers; the file grows by them.
    """
    told = set[ir.Node]()
    for one, node in weights(subject):
        if one.node not in told and no_nbits(subject, one, node) == "tied":
            told.add(one.node)
            readers = sum(len(dq.outputs[0].uses()) for dq, _ in one.data.uses()) if one.data is not None else 0
            name = one.data.name if one.data is not None else ""
            text = f"'{name}' has {plural(readers, 'reader')}: it is dequantized on every run"
            yield Finding(one.node, text, numbers={"readers": readers})


@graph_rule("OQ704", "weight-only-layout", "warning", targets=("ort-cpu",), fix="set-axis")
def weight_only_layout(subject: Subject) -> Iterator[Finding]:
    """The weight of a weight-only product lies in a way that has no kernel.

    What it does:
        Looks for weights of 2, 4 or 8 bits with one scale a column whose axis is -1 instead of 1, and for Gemm with
        transB=1, where activations are float.

    Why is this bad:
        onnxruntime does not make MatMulNBits of it and dequantizes the weight on every run: 0.03 to 0.07 times the
        speed of the float model for a single token.

    Use instead:
        `axis=1`; a Gemm with transB=0 (`untranspose-gemm` with `when: always`).

    Fix safety:
        Safe: -1 and 1 are the same axis of a matrix. But the default session then rounds activations to 8 bits (OQ710).
    """
    for one, node in weights(subject):
        why = no_nbits(subject, one, node)
        if dequantizer(subject, node.inputs[0], MOVERS) is not None:
            continue  # 16 bits are rounded to 8 there, so that float may be meant
        if why == "axis-from-end":
            text = f"its axis is -1, which is 1: {node.op_type} '{node.name}' dequantizes the weight on every run"
            yield Finding(one.node, text, numbers={"axis": -1})
        elif why == "transposed":
            text = f"{node.op_type} '{node.name}' has transB=1 and dequantizes the weight on every run"
            yield Finding(one.node, text, "Turn the weight: untranspose-gemm with `when: always`.", fixable=False)


@graph_rule("OQ705", "whole-table", "warning", targets=("ort-cpu",))
def whole_table(subject: Subject) -> Iterator[Finding]:
    """A table is dequantized as a whole, and then a few rows of it are looked up.

    What it does:
        Looks for Gather nodes whose data come from the DequantizeLinear of a constant. An info for small tables.

    Why is this bad:
        Every run dequantizes every row: 16.6 ms instead of 0.02 ms for 50000 words of 768 int8 numbers.

    Use instead:
        Gather the integers, then dequantize; or GatherBlockQuantized for 4 bits.
    """
    for node in subject.of("Gather"):
        one = dequantizer(subject, node.inputs[0], ("Identity",)) if node.inputs else None
        dims = one.dims if one is not None else None
        if one is None or not is_stored(subject, one) or dims is None:
            continue
        size = math.prod(d or 0 for d in dims)
        text = f"the whole table of shape {list(dims)} is dequantized on every run"
        severity = None if size >= _NOTICED else Severity.INFO
        yield Finding(node, text, "Gather first, then dequantize.", {"entries": size}, severity=severity)


@graph_rule("OQ713", "weight-only-before-relu", "warning", targets=("ort-cpu",))
def weight_only_before_relu(subject: Subject) -> Iterator[Finding]:
    """A Relu or Clip keeps a weight-only product from its kernel.

    What it does:
        Looks for products of float or 16-bit activations with weights of 2, 4 or 8 bits, read by a Relu or Clip alone
        that has one reader itself and no pair behind it. A bias Add may stand between.

    Why is this bad:
        onnxruntime takes the Relu for one that belongs to a pair, and makes no MatMulNBits: the weight is dequantized
        on every run. With two readers behind the Relu it makes one.

    Use instead:
        `to-matmulnbits` writes the operator itself.
    """
    for one, node in weights(subject):
        if no_nbits(subject, one, node) == "clip":
            text = f"{node.op_type} '{node.name}' in front of a Relu or Clip dequantizes the weight on every run"
            yield Finding(one.node, text, "Write MatMulNBits: to-matmulnbits.")


@graph_rule("OQ709", "concat-ranges", "warning")
def concat_ranges(subject: Subject) -> Iterator[Finding]:
    """A Concat brings values of very different ranges under one scale.

    What it does:
        Compares the range of each quantized input with the step of the QuantizeLinear behind the Concat. A range of
        fewer than 5 steps is lost: with 8 bits, scales that differ by more than 50 times.

    Why is this bad:
        The small values become a handful of numbers, or all zero.

    Use instead:
        No pair behind the Concat, 16 bits there, or a scale of its own for each part: quantize them behind the Concat's
        readers.
    """
    for node in subject.of("Concat"):
        behind = quantizer(subject, node.outputs[0], (*FOLDS, *MOVERS))
        step = _scale(behind)
        if not step:
            continue
        for index, value in enumerate(node.inputs):
            one = dequantizer(subject, value, MOVERS)
            scale, spec = _scale(one), QTYPES.get(one.dtype.name.lower()) if one is not None and one.dtype else None
            if one is None or not scale or spec is None or spec.is_float:
                continue
            steps = scale * (spec.qmax - spec.qmin) / step
            if steps < _STEPS:
                numbers = {"input": index, "scale": scale, "scale behind": step, "steps": steps}
                text = f"its input '{value.name if value else ''}' spans {steps:.1f} steps of the scale behind it"
                yield Finding(node, text, numbers=numbers)
                break


def _scale(one: Linear | None) -> float:
    return float(one.scale.ravel()[0]) if one is not None and one.scale is not None and one.scale.size == 1 else 0.0


@graph_rule("OQ710", "activations-rounded", "warning", targets=("ort-cpu",))
def activations_rounded(subject: Subject) -> Iterator[Finding]:
    """onnxruntime rounds the activations of a product to 8 bits that the file leaves in 16 bits or float.

    What it does:
        Looks for products of 16-bit or float activations with weights of 2, 4 or 8 bits of which onnxruntime makes
        MatMulNBits. An info where the activations are float.

    Why is this bad:
        MatMulNBits gets accuracy level 4, which quantizes activations to int8 as it runs. With outliers that costs
        5 dB where the file says 16 bits (41.9 dB became 36.6 dB), and no message says so.

    Use instead:
        The session option `session.qdq_matmulnbits_accuracy_level=1`, slower; or, for 16 bits, `axis=-1`, which keeps
        the product in float.
    """
    for one, node in weights(subject):
        if no_nbits(subject, one, node) or one.node.graph is not node.graph:
            continue
        front = dequantizer(subject, node.inputs[0], MOVERS)
        kind = f"{bits(front)}-bit" if front is not None else "float"
        severity = Severity.INFO if front is None else None
        yield Finding(node, f"its {kind} activations are rounded to 8 bits as it runs", severity=severity)
