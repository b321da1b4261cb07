"""`repair-pairs`: a DequantizeLinear takes scale, zero point, axis and blocks of the QuantizeLinear it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.dead import remove_unread
from onnxq.diagnostics import Severity
from onnxq.facts import Fact
from onnxq.look import Array, attr_int, constant, constant_tensor, dims_of, nested_graphs, roots
from onnxq.pairs import dtype_of, float_type, integer_type, parameter
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

_OUTPUT_DTYPE_SINCE = 23
_ATTRIBUTES = ("axis", "block_size")


@dataclass(frozen=True, kw_only=True)
class RepairPairs(Pass):
    """``Q(s, z) -> DQ(s', z')`` becomes ``Q(s, z) -> DQ(s, z)``: the one that made the integers is right.

    The DequantizeLinear reads the very values that the QuantizeLinear reads, and gets its axis and block size; the type
    it makes stays. Pairs whose parameters are equal numbers, or are computed, are not touched. Works in all scopes.

    Stays, with a note: a pair whose two scales are of different types below opset 23.
    """

    name: ClassVar[str] = "repair-pairs"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Repair every pair that differs; a note names each."""
        changed = False
        for root, imports in roots(model):
            for dq in [node for graph in nested_graphs(root) for node in graph if is_q(node, DEQUANTIZE)]:
                q = dq.inputs[0].producer() if dq.inputs[0] is not None else None
                if q is None or not is_q(q, QUANTIZE) or not wanted(ctx, dq):
                    continue
                what = differences(q, dq)
                if what:
                    changed |= self._repair(q, dq, what, imports.get("", 0), ctx)
        return changed

    def _repair(self, q: ir.Node, dq: ir.Node, what: list[str], opset: int, ctx: Context) -> bool:
        old, scale, kind = list(dq.inputs[1:3]), parameter(q, 1), float_type(dq)
        mine, theirs = dtype_of(parameter(dq, 1)), dtype_of(scale)
        if mine is not None and theirs is not None and mine != theirs:
            if dq.domain or opset < _OUTPUT_DTYPE_SINCE:
                why = f"its scale is {mine.name.lower()}, that of '{q.name}' {theirs.name.lower()}"
                ctx.note("pair-not-repaired", dq, f"{why}, and no attribute could say what it makes", Severity.WARNING)
                return False
            dq.attributes.add(ir.AttrInt64("output_dtype", int(kind)))
        zero = parameter(q, 2)
        if zero is None and _is_zero(parameter(dq, 2), integer_type(q)) and scale is not None and _single(scale):
            zero = parameter(dq, 2)
        dq.resize_inputs(2 if zero is None else 3)
        dq.replace_input_with(1, scale)
        if zero is not None:
            dq.replace_input_with(2, zero)
        for name in _ATTRIBUTES:
            dq.attributes.pop(name, None)
            if name in q.attributes:
                dq.attributes.add(q.attributes[name])
        remove_unread(old)
        ctx.note("pair-repaired", dq, f"its {' and '.join(what)} is now that of '{q.name}', which makes its integers")
        return True


def differences(q: ir.Node, dq: ir.Node) -> list[str]:
    """What a DequantizeLinear does not have in common with its QuantizeLinear, in words."""
    found = []
    if not _same(parameter(q, 1), parameter(dq, 1), zeros=False):
        found.append("scale")
    zero = parameter(dq, 2)
    kinds = {integer_type(q), dtype_of(zero)} - {None}
    if (zero is not None and len(kinds) > 1) or not _same(parameter(q, 2), zero, zeros=True):
        found.append("zero point")
    scales = [constant_tensor(parameter(node, 1)) for node in (q, dq)]
    several = any(scale is not None and scale.size > 1 for scale in scales)
    if several and _axis(q, q) != _axis(dq, q):
        found.append("axis")
    if attr_int(q, "block_size", 0) != attr_int(dq, "block_size", 0):
        found.append("block size")
    return found


def _same(one: ir.Value | None, other: ir.Value | None, *, zeros: bool) -> bool:
    """Whether two parameters are the same numbers, as far as they are known; one may stand for many."""
    if one is other:
        return True
    a, b = _numbers(one, zeros), _numbers(other, zeros)
    if a is None or b is None:
        return True
    return bool((a == b).all()) if 1 in (a.size, b.size) else np.array_equal(a, b)


def _numbers(value: ir.Value | None, zeros: bool) -> Array | None:
    if value is None and zeros:
        return np.zeros(1)
    found = constant(value)
    return None if found is None else found.ravel().astype(np.float64)


def _is_zero(zero: ir.Value | None, kind: ir.DataType | None) -> bool:
    found = constant(zero)
    return found is not None and dtype_of(zero) == kind and not found.any()


def _single(scale: ir.Value) -> bool:
    tensor = constant_tensor(scale)
    return tensor is not None and tensor.size == 1


def _axis(node: ir.Node, q: ir.Node) -> int:
    """The axis, counted from the front where the rank is known."""
    axis, dims = attr_int(node, "axis", 1), dims_of(q.inputs[0]) or dims_of(q.outputs[0])
    return axis + len(dims) if axis < 0 and dims is not None else axis
