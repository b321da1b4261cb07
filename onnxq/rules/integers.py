"""OQ105, OQ107, OQ108: operators that read integers as if they were the numbers they stand for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import Array, onnx_op
from onnxq.numerics.spec import QTYPES
from onnxq.qoperators.layouts import LAYOUTS
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

# Ops that hand integers on, compare them or choose among them, without computing with them.
_MOVES = frozenset({"ArgMax", "ArgMin", "BitShift", "Bitcast", "Cast", "CastLike", "Clip", "Compress", "Concat",
                    "DepthToSpace", "Equal", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Greater",
                    "GreaterOrEqual", "Identity", "If", "Less", "LessOrEqual", "Loop", "Max", "MaxPool", "Min",
                    "NonZero", "Pad", "ReduceMax", "ReduceMin", "Reshape", "Resize", "ReverseSequence", "Scan",
                    "Scatter", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split",
                    "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where"})  # fmt: skip
_INTEGER_OPS = frozenset({"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"})
_KNOWN = _MOVES | _INTEGER_OPS | {DEQUANTIZE, QUANTIZE}
# Those behind which scale and zero point are what they were.
_HAND_ON = ("Clip", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
            "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")  # fmt: skip


@graph_rule("OQ105", "integers-read-otherwise", "error")
def integers_read_otherwise(subject: Subject) -> Iterator[Finding]:
    """An integer operator takes its input to have another scale or zero point than it was made with.

    What it does:
        Compares the scale and zero point that QLinearConv and the like give for an input with those of the
        QuantizeLinear or integer operator that makes it, and those of a DequantizeLinear with the operator before it.

    Why is this bad:
        Values come out scaled or shifted, and nothing refuses the model.

    Use instead:
        The scale and zero point it was made with, best as the same initializers.
    """
    reads = list(_encodings_read(subject))
    made = _encodings_made(subject) if reads else {}
    for node, value, scale, zero in reads:
        before, maker = made.get(value), value.producer()
        if before is None or maker is None:
            continue
        for what, one, other in (("scale", before[0], scale), ("zero point", before[1], zero)):
            a, b = _row(subject, one), _row(subject, other)
            if one is other or a is None or b is None or np.array_equal(a, b):
                continue
            text = (
                f"it reads '{value.name}', from {maker.op_type} '{maker.name}', at another {what} than it was made with"
            )
            yield Finding(node, text, numbers={"made": a[0].item(), "read": b[0].item()})


def _row(subject: Subject, value: ir.Value | None) -> Array | None:
    """A parameter as a row; 0 for a zero point that is left out, None for what is computed."""
    found = np.zeros(1, np.int64) if value is None else subject.constant(value)
    return None if found is None or not found.size else found.ravel()


@graph_rule("OQ107", "arithmetic-on-integers", "error")
def arithmetic_on_integers(subject: Subject) -> Iterator[Finding]:
    """An operator computes with quantized integers as if they were the numbers they stand for.

    What it does:
        Looks for operators that read the output of a QuantizeLinear or an integer operator and are neither a
        DequantizeLinear, nor an integer operator, nor one that only moves values.

    Why is this bad:
        Zero point and scale are ignored: a sum of integers is not the integer of the sum. Types may fit, so that the
        model loads and computes nonsense.

    Use instead:
        A DequantizeLinear in front of it.
    """
    found: dict[ir.Node, list[str]] = {}
    for value, (_, zero) in _encodings_made(subject).items():
        for node in dict.fromkeys(node for node, _ in value.uses()):
            if not (node.domain or node.op_type in _KNOWN or (node.op_type == "Relu" and _is_zero(subject, zero))):
                found.setdefault(node, []).append(f"'{value.name}'")
    for node, names in found.items():
        hold = "holds" if len(names) == 1 else "hold"
        yield Finding(node, f"it computes with {' and '.join(names)}, which {hold} integers of a quantizer")


def _is_zero(subject: Subject, zero: ir.Value | None) -> bool:
    """Whether a zero point is 0, so that the sign of the integers is that of the numbers."""
    found = subject.integers(zero)
    return found is not None and not found.any()


@graph_rule("OQ108", "joined-scales", "error")
def joined_scales(subject: Subject) -> Iterator[Finding]:
    """Integers of different scales are joined into one tensor.

    What it does:
        Looks for Concat, Where, Max and Min on quantized integers whose scales or zero points differ.

    Why is this bad:
        One scale is used for all of them afterwards: every part but one is wrong.

    Use instead:
        Dequantize in front of it, or one scale for all parts.
    """
    joins = subject.of("Concat", "Where", "Max", "Min")
    made = _encodings_made(subject) if joins else {}
    for node in joins:
        parts = [made[value] for value in node.inputs if value is not None and value in made]
        for what, index in (("scale", 0), ("zero point", 1)):
            known = [row for row in (_row(subject, encoding[index]) for encoding in parts) if row is not None]
            if any(not np.array_equal(known[0], row) for row in known):
                numbers = {"values": [row[0].item() for row in known]}
                yield Finding(node, f"it joins integers of different {what}s", numbers=numbers)
                break


_Encoding = tuple[ir.Value | None, ir.Value | None]


def _encodings_made(subject: Subject) -> dict[ir.Value, _Encoding]:
    """Scale and zero point of values that quantizers make, also behind ops that only move them."""
    made: dict[ir.Value, _Encoding] = {}
    for one in subject.quantizers:
        if one.out is not None and _integers(one):
            made[one.out] = (one.scale_value, one.zero_value)
    for layout in LAYOUTS.values():
        for node in subject.of(layout.op_type, domain=layout.domain):
            scale, zero = _inputs(node, layout.output, 2)
            if scale is not None and node.outputs:
                made[node.outputs[0]] = (scale, zero)
    for node in subject.of("DynamicQuantizeLinear"):
        if len(node.outputs) == 3:
            made[node.outputs[0]] = (node.outputs[1], node.outputs[2])
    pending = list(made)
    for value in pending:
        for node, index in value.uses():
            if index == 0 and onnx_op(node, *_HAND_ON):
                for out in node.outputs:
                    if out not in made:
                        made[out] = made[value]
                        pending.append(out)
    return made


def _inputs(node: ir.Node, start: int, count: int) -> list[ir.Value | None]:
    return [node.inputs[i] if i < len(node.inputs) else None for i in range(start, start + count)]


def _encodings_read(subject: Subject) -> Iterator[tuple[ir.Node, ir.Value, ir.Value | None, ir.Value | None]]:
    """Node, the integers it reads, and the scale and zero point it takes them to have."""
    for one in subject.dequantizers:
        maker = one.data.producer() if one.data is not None else None
        if one.data is not None and maker is not None and not is_q(maker, QUANTIZE):  # between the two it is OQ101
            yield one.node, one.data, one.scale_value, one.zero_value
    for layout in LAYOUTS.values():
        for node in subject.of(layout.op_type, domain=layout.domain):
            for index in layout.operands_of(node):
                data, scale, zero = _inputs(node, index, 3)
                if data is not None:
                    yield node, data, scale, zero


def _integers(one: Linear) -> bool:
    spec = QTYPES.get(one.dtype.name.lower()) if one.dtype is not None else None
    return spec is not None and not spec.is_float
