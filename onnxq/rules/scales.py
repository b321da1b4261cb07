"""OQ20x: scales, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject, is_float
from onnxq.look import Array, attr_int
from onnxq.ops import MICROSOFT
from onnxq.qoperators.layouts import LAYOUTS


@graph_rule("OQ201", "scale-not-positive", "error")
def scale_not_positive(subject: Subject) -> Iterator[Finding]:
    """A scale is zero or negative.

    What it does:
        Looks at the scales of every QuantizeLinear, DequantizeLinear and integer operator that are constants. Weights
        in blocks may have negative ones: that is how 4-bit quantizers give the largest value the integer -8.

    Why is this bad:
        A scale of 0 divides by zero: values become the ends of the range, or NaN. A negative scale turns the sign, and
        integer kernels assume that it is positive. Nothing refuses such a file.

    Use instead:
        The step of the encoding; 1 for a channel that is zero.
    """
    for node, value, scale, bad in _suspects(subject, _not_positive):
        if _in_blocks(node):
            bad = scale == 0
            if not bad.any():
                continue
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
    for node, value, scale, bad in _suspects(subject, _not_finite):
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
    for node, value, scale, bad in _suspects(subject, _subnormal):
        yield Finding(node, f"its scale '{value.name}' is below the normal numbers", numbers=_which(scale, bad))


def _in_blocks(node: ir.Node) -> bool:
    return node.op_type in ("MatMulNBits", "GatherBlockQuantized") or attr_int(node, "block_size", 0) > 0


def _not_positive(scale: Array) -> Array:
    return np.asarray(scale <= 0)


def _not_finite(scale: Array) -> Array:
    return ~np.isfinite(scale)


def _subnormal(scale: Array) -> Array:
    smallest = ml_dtypes.finfo(scale.dtype).smallest_normal  # type: ignore[no-untyped-call]
    return np.asarray((scale > 0) & (scale < smallest))


Scale = tuple[ir.Node, ir.Value, Array]


def _suspects(subject: Subject, test: Callable[[Array], Array]) -> Iterator[tuple[ir.Node, ir.Value, Array, Array]]:
    """Scales that a test finds something in, and where; all of one type are tested at once first."""
    by_type: dict[np.dtype[Any], list[Scale]] = {}
    for one in _scales(subject):
        by_type.setdefault(one[2].dtype, []).append(one)
    for scales in by_type.values():
        if test(np.concatenate([scale.ravel() for *_, scale in scales])).any():
            for node, value, scale in scales:
                bad = test(scale)
                if bad.any():
                    yield node, value, scale, bad


def _scales(subject: Subject) -> Iterator[Scale]:
    """Each use of a constant scale of a float type."""
    uses = [(one.node, one.scale_value) for one in subject.linears if one.scale_value is not None]
    for domain, op_type in _OTHERS:
        for node in subject.of(op_type, domain=domain):
            uses += [(node, v) for v in (_input(node, i) for i in _scale_inputs(node)) if v is not None]
    for node, value in uses:
        scale = subject.constant(value)
        if scale is not None and scale.size and is_float(scale.dtype):
            yield node, value, scale


_OTHERS: dict[tuple[str, str], tuple[int, ...]] = {
    **{(row.domain, row.op_type): () for row in LAYOUTS.values()},
    (MICROSOFT, "MatMulIntegerToFloat"): (2, 3),
    (MICROSOFT, "DynamicQuantizeMatMul"): (2,),
    (MICROSOFT, "MatMulNBits"): (2,),
    (MICROSOFT, "GatherBlockQuantized"): (2,),
    (MICROSOFT, "QAttention"): (3, 4),
}
"""Scale inputs of integer operators (operator texts); those of `LAYOUTS` stand there."""
_BY_NAME = {(row.domain, row.op_type): row for row in LAYOUTS.values()}


def _scale_inputs(node: ir.Node) -> tuple[int, ...]:
    layout = _BY_NAME.get((node.domain, node.op_type))
    if layout is None:
        return _OTHERS[(node.domain, node.op_type)]
    return (*(i + 1 for i in layout.operands_of(node)), layout.output)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _which(scale: Array, bad: Array) -> dict[str, object]:
    first = int(np.argmax(bad.ravel()))
    numbers: dict[str, object] = {"scale": float(scale.ravel()[first])}
    return numbers if scale.size == 1 else {**numbers, "channel": first, "channels": int(bad.sum())}
