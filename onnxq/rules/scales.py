"""OQ20x: scales, as numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.look import Array
from onnxq.qoperators.layouts import LAYOUTS


@graph_rule("OQ201", "scale-not-positive", "error")
def scale_not_positive(subject: Subject) -> Iterator[Finding]:
    """A scale is zero or negative.

    What it does:
        Looks at the scales of every QuantizeLinear, DequantizeLinear and integer operator that are constants.

    Why is this bad:
        A scale of 0 divides by zero: values become the ends of the range, or NaN. A negative scale turns the sign, and
        integer kernels assume that it is positive. Nothing refuses such a file.

    Use instead:
        The step of the encoding; 1 for a channel that is zero.
    """
    for node, value, scale in _scales(subject):
        bad = scale <= 0
        if bad.any():
            yield Finding(node, f"its scale '{value.name}' is not positive", numbers=_which(scale, bad))


@graph_rule("OQ202", "scale-not-finite", "error")
def scale_not_finite(subject: Subject) -> Iterator[Finding]:
    """A scale is NaN or infinite.

    What it does:
        Looks at the scales of every QuantizeLinear, DequantizeLinear and integer operator that are constants.

    Why is this bad:
        Every value that passes becomes NaN or one end of the range. It is what calibration on NaN, or a scale that left
        float16, leaves behind.

    Use instead:
        Calibrate on data that are finite.
    """
    for node, value, scale in _scales(subject):
        bad = ~np.isfinite(scale)
        if bad.any():
            yield Finding(node, f"its scale '{value.name}' is not finite", numbers=_which(scale, bad))


@graph_rule("OQ203", "scale-subnormal", "error")
def scale_subnormal(subject: Subject) -> Iterator[Finding]:
    """A scale is so small that the float type has no normal number for it.

    What it does:
        Compares scales with the smallest normal number of their own type.

    Why is this bad:
        Runtimes flush such numbers to zero, and what is divided by them overflows. It is what an all-zero channel
        leaves behind whose scale was not set to 1.

    Use instead:
        A scale of 1 where all values are zero; float32 scales where float16 is too narrow.
    """
    for node, value, scale in _scales(subject):
        bad = (scale > 0) & (scale < np.finfo(scale.dtype).smallest_normal)
        if bad.any():
            yield Finding(node, f"its scale '{value.name}' is below the normal numbers", numbers=_which(scale, bad))


def _scales(subject: Subject) -> Iterator[tuple[ir.Node, ir.Value, Array]]:
    """Constant scales: node, value, float array."""
    for one in subject.linears:
        if one.scale_value is not None and one.scale is not None and one.scale.dtype.kind == "f":
            yield one.node, one.scale_value, one.scale
    for layout in LAYOUTS.values():
        for node in subject.of(layout.op_type, domain=layout.domain):
            for index in (*(i + 1 for i in layout.operands_of(node)), layout.output):
                value = node.inputs[index] if index < len(node.inputs) else None
                scale = subject.constant(value)
                if value is not None and scale is not None and scale.dtype.kind == "f":
                    yield node, value, scale


def _which(scale: Array, bad: Array) -> dict[str, object]:
    first = int(np.argmax(bad.ravel()))
    numbers: dict[str, object] = {"scale": float(scale.ravel()[first])}
    return numbers if scale.size == 1 else {**numbers, "channel": first, "channels": int(bad.sum())}
