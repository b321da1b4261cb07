"""`set-axis`: pairs with several scales say along which axis they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.facts import Fact
from onnxq.look import all_nodes, attr_int, constant_tensor, dims_of
from onnxq.pairs import parameter
from onnxq.passbase import Context, Pass
from onnxq.skeleton import inferred_shapes
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

Dims = tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class SetAxis(Pass):
    """Q or DQ with several scales -> the same with ``axis`` written down, counted from the front.

    An axis that is as long as there are scales stays, as does one of unknown length; the default of 1 is written. One
    that is outside the tensor, or of another length, gives way to the only axis that has as many entries as there are
    scales. Blocked pairs get their default or negative axis written from the front. Works in all scopes.

    Stays, with a note: a pair that no axis fits, or more than one.
    """

    name: ClassVar[str] = "set-axis"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Write the axis of every pair that needs it; a note names each."""
        changed = False
        for node, scales, dims in _several(model, ctx):
            given = node.attributes.get("axis")
            if given is not None and given.is_ref():
                continue
            old = attr_int(node, "axis", 1)
            axis = _fitting(old, scales, dims)
            if axis is None:
                fits = [i for i, d in enumerate(dims) if d == scales]
                which = f"axes {fits} are" if fits else "no axis is"
                ctx.note("axis-kept", node, f"axis {old} does not fit {scales} scales, and {which} as long", axis=old)
            elif given is None or axis != old:
                node.attributes.add(ir.AttrInt64("axis", axis))
                what = f"axis {old}" if given is not None else "no axis"
                ctx.note("axis-set", node, f"it had {what}; its scales lie along axis {axis}", axis=axis)
                changed = True
        return changed


def _fitting(axis: int, scales: int, dims: Dims) -> int | None:
    """The axis to write, None where none or several would do; ``scales`` is 0 for blocks."""
    inside = -len(dims) <= axis < len(dims)
    if inside and (not scales or dims[axis] in (scales, None)):
        return axis % len(dims)
    fits = [i for i, d in enumerate(dims) if d == scales]
    return fits[0] if len(fits) == 1 and (len(dims) == 1 or None not in dims) else None


def _several(model: ir.Model, ctx: Context) -> Iterator[tuple[ir.Node, int, Dims]]:
    """Pairs with several scales, how many (0: blocks), and the shape of the data."""
    shapes: dict[ir.Value, Dims] | None = None
    for node in all_nodes(model):
        if not (is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)) or not wanted(ctx, node):
            continue
        scale, blocked = _dims(parameter(node, 1)), attr_int(node, "block_size", 0) > 0
        if scale is None or (not blocked and (len(scale) != 1 or scale[0] in (None, 1))):
            continue
        dims = _dims(node.inputs[0]) or dims_of(node.outputs[0])
        if dims is None:
            shapes = inferred_shapes(model) if shapes is None else shapes
            dims = shapes.get(node.inputs[0]) if node.inputs[0] is not None else None
        if dims:
            yield node, 0 if blocked else int(scale[0] or 0), dims


def _dims(value: ir.Value | None) -> Dims | None:
    tensor = constant_tensor(value)
    return dims_of(value) if tensor is None else tuple(int(d) for d in tensor.shape.numpy())
