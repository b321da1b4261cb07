"""OQ105, OQ107, OQ108: operators that read integers as if they were the numbers they stand for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import onnx_op
from onnxq.numerics.spec import QTYPES
from onnxq.qoperators.layouts import LAYOUTS
from onnxq.states import QUANTIZE, is_q

# Ops that hand integers on, or choose among them, without computing with them.
_MOVES = frozenset(
    [
        "Identity",
        "Transpose",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "Split",
        "Gather",
        "GatherElements",
        "GatherND",
        "Expand",
        "Tile",
        "DepthToSpace",
        "SpaceToDepth",
        "MaxPool",
        "Shape",
        "Size",
        "ReduceMax",
        "ReduceMin",
        "ArgMax",
        "ArgMin",
        "TopK",
        "ReverseSequence",
        "Compress",
        "ScatterElements",
        "ScatterND",
        "Pad",
        "Resize",
        "If",
        "Loop",
        "Scan",
        "Cast",
        "CastLike",
        "BitShift",
        "Bitcast",
        "NonZero",
        "Max",
        "Min",
    ]
)
_KNOWN = _MOVES | {
    "Concat",
    "Where",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
    "MatMulInteger",
    "DequantizeLinear",
    "QuantizeLinear",
}


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
    made = _encodings_made(subject)
    for node, value, scale, zero in _encodings_read(subject):
        before = made.get(value)
        if before is None or (node.op_type == "DequantizeLinear" and is_q(value.producer(), QUANTIZE)):
            continue
        for what, one, other in (("scale", before[0], scale), ("zero point", before[1], zero)):
            a, b = subject.constant(one), subject.constant(other)
            if one is other or a is None or b is None or np.array_equal(a.ravel(), b.ravel()):
                continue
            maker = value.producer()
            text = f"it reads '{value.name}' at another {what} than {maker.op_type if maker else '?'} made it with"
            yield Finding(node, text, numbers={"made": a.ravel()[0].item(), "read": b.ravel()[0].item()})


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
    for value in _encodings_made(subject):
        for node, _ in value.uses():
            if not (node.domain or node.op_type in _KNOWN):
                yield Finding(node, f"it computes with '{value.name}', which holds integers of a quantizer")


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
    made = _encodings_made(subject)
    for node in subject.of("Concat", "Where", "Max", "Min"):
        parts = [(value, made[value]) for value in node.inputs if value is not None and value in made]
        for what, index in (("scale", 0), ("zero point", 1)):
            found = [subject.constant(encoding[index]) for _, encoding in parts]
            known = [a for a in found if a is not None]
            if len(known) > 1 and any(not np.array_equal(known[0].ravel(), a.ravel()) for a in known):
                numbers = {"values": [a.ravel()[0].item() for a in known]}
                yield Finding(node, f"it joins integers of different {what}s", numbers=numbers)
                break


_Encoding = tuple[ir.Value | None, ir.Value | None]


def _encodings_made(subject: Subject) -> dict[ir.Value, _Encoding]:
    """Scale and zero point of values that quantizers make, also behind ops that only move them."""
    made: dict[ir.Value, _Encoding] = {}
    for one in subject.linears:
        if one.quantizes and one.out is not None and _integers(one):
            made[one.out] = (one.scale_value, one.zero_value)
    for layout in LAYOUTS.values():
        for node in subject.of(layout.op_type, domain=layout.domain):
            if layout.output + 1 < len(node.inputs) and node.inputs[layout.output] is not None and node.outputs:
                made[node.outputs[0]] = (node.inputs[layout.output], node.inputs[layout.output + 1])
    pending = list(made)
    for value in pending:
        for node, index in value.uses():
            if index == 0 and onnx_op(node, *_HAND_ON):
                for out in node.outputs:
                    if out not in made:
                        made[out] = made[value]
                        pending.append(out)
    return made


_HAND_ON = (
    "Identity",
    "Transpose",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "MaxPool",
    "Gather",
    "Split",
)


def _encodings_read(subject: Subject) -> Iterator[tuple[ir.Node, ir.Value, ir.Value | None, ir.Value | None]]:
    """Node, the integers it reads, and the scale and zero point it takes them to have."""
    for one in subject.linears:
        if not one.quantizes and one.data is not None:
            yield one.node, one.data, one.scale_value, one.zero_value
    for layout in LAYOUTS.values():
        for node in subject.of(layout.op_type, domain=layout.domain):
            for index in layout.operands_of(node):
                data, scale, zero = (node.inputs[i] if i < len(node.inputs) else None for i in range(index, index + 3))
                if data is not None:
                    yield node, data, scale, zero


def _integers(one: Linear) -> bool:
    spec = QTYPES.get(one.dtype.name.lower()) if one.dtype is not None else None
    return spec is not None and not spec.is_float
