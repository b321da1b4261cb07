"""`canonical-axis`: per-channel weight pairs for toolchains that take a channel axis of 1 only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer, all_nodes, replace_uses
from onnxq.facts import Fact, Goal
from onnxq.look import attr_int, constant_tensor
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.weights import weight_tensor


@dataclass(frozen=True, kw_only=True)
class CanonicalAxis(Pass):
    """``weight -> [Q ->] DQ(axis a) -> op`` becomes ``weight -> Transpose -> [Q ->] DQ(axis 1) -> Transpose -> op``.

    The two Transposes swap axis ``a`` and axis 1, so that they are inverse to each other and the numbers stay. Every
    reader of the DQ reads behind the second one. Weights of one dimension (biases) have no axis 1 and stay; blocked
    pairs stay, too, with a note. `cancel-transposes` takes the Transposes out again.

    Attributes:
        axis_form: ``canonical``, ``native`` (nothing is done), or ``target``: what the target asks for; without a
            target nothing is done.
    """

    name: ClassVar[str] = "canonical-axis"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})

    axis_form: Literal["target", "native", "canonical"] = "target"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite pairs in all scopes; True if any was."""
        goal, form = ctx.maybe(Goal), self.axis_form
        if form == "target":
            form = goal.target.axis_form if goal else "native"
        if form == "native":
            return False
        namer, moved = Namer(model), 0
        for node in all_nodes(model):
            if not (is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)) or weight_tensor(node.inputs[0]) is None:
                continue
            axis = _movable_axis(node, ctx)
            if axis is not None:
                moved += _move(node, axis, namer)
        if moved:
            ctx.note("axis-moved", None, f"Transposes put the channel axis of {moved} weight pairs at 1", pairs=moved)
        return bool(moved)


def _movable_axis(head: ir.Node, ctx: Context) -> int | None:
    """The channel axis of a weight pair, counted from the front, if it is not 1 and can be brought there."""
    weight, scale = weight_tensor(head.inputs[0]), constant_tensor(head.inputs[1])
    if weight is None or scale is None or len(weight.shape) < 2:
        return None
    dims = [int(d) for d in weight.shape.numpy()]
    axis = attr_int(head, "axis", 1)
    if attr_int(head, "block_size", 0):
        why = f"its pair is in blocks along axis {axis}: Transposes would have to reorder its scales, too"
        ctx.note("axis-not-moved", head, why)
        return None
    axis %= len(dims)
    per_axis = tuple(scale.shape.numpy()) == (dims[axis],)
    if not per_axis or axis == 1:
        return None
    readers = [reader for reader, _ in head.outputs[0].uses()]
    if is_q(head, QUANTIZE) and (head.outputs[0].is_graph_output() or not all(is_q(r, DEQUANTIZE) for r in readers)):
        ctx.note("axis-not-moved", head, "its integers are read by something else than DequantizeLinear")
        return None
    return axis


def _move(head: ir.Node, axis: int, namer: Namer) -> int:
    """Put Transposes around a pair that starts with ``head``; returns how many DequantizeLinear were rewritten."""
    data = head.inputs[0]
    weight = weight_tensor(data)
    assert data is not None and weight is not None
    dims = [int(d) for d in weight.shape.numpy()]
    perm = list(range(len(dims)))
    perm[1], perm[axis] = axis, 1
    swapped = ir.Shape([dims[i] for i in perm], frozen=True)
    before = _transpose(data, perm, f"{data.name}_canonical", namer)
    before.outputs[0].type, before.outputs[0].shape = ir.TensorType(weight.dtype), swapped
    _graph(head).insert_before(head, before)
    head.replace_input_with(0, before.outputs[0])
    ends = [head] if is_q(head, DEQUANTIZE) else list(dict.fromkeys(r for r, _ in head.outputs[0].uses()))
    for node in dict.fromkeys((head, *ends)):
        node.attributes["axis"] = ir.AttrInt64("axis", 1)
    for dq in ends:
        out = dq.outputs[0]
        behind = _transpose(out, perm, f"{out.name}_native", namer)
        behind.outputs[0].type, behind.outputs[0].shape = out.type, ir.Shape(dims)
        _graph(dq).insert_after(dq, behind)
        replace_uses(out, behind.outputs[0], namer)
        behind.replace_input_with(0, out)
    for node in (head, *ends):
        node.outputs[0].shape = swapped
    return len(ends)


def _graph(node: ir.Node) -> ir.Graph | ir.Function:
    assert node.graph is not None
    return node.graph


def _transpose(value: ir.Value, perm: list[int], output: str, namer: Namer) -> ir.Node:
    node = ir.Node(
        "",
        "Transpose",
        [value],
        [ir.AttrInt64s("perm", perm)],
        name=namer(f"{output}_Transpose"),
        metadata_props={PASS_KEY: CanonicalAxis.name},
    )
    node.outputs[0].name = namer(output)
    return node
