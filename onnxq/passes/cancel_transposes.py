"""`cancel-transposes`: Transposes that undo each other go away, also around Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import Namer, all_nodes, may_become_output, replace_uses
from onnxq.facts import Edge
from onnxq.look import attr_int, attr_ints, constant_tensor, dims_of, graph_of, onnx_op, uses
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

Perm = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CancelTransposes(Pass):
    """``Transpose(p) -> [Q ->] [DQ ->] Transpose(inverse of p)`` -> what stands between the two.

    A Transpose that moves nothing goes, too. The axis of a pair goes back to where the data has it. Every reader of the
    pair must undo the first Transpose, else nothing is done; of two adjacent Transposes the second goes, and the first
    when nobody else reads it. Pairs in blocks stay, since their scales lie as the data does. Graph outputs keep their
    names. Undoes `canonical-axis`.
    """

    name: ClassVar[str] = "cancel-transposes"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Cancel in all scopes; True if any Transpose went."""
        work = _Work(Namer(model))
        # Readers first: what is cancelled behind a Transpose gives it new readers.
        for node in reversed(list(all_nodes(model))):
            if onnx_op(node, "Transpose") and node.graph is not None and node.inputs[0] is not None:
                work.cancel(node)
        if work.gone:
            ctx.note("transposes-cancelled", None, f"{work.gone} Transposes undid each other", nodes=work.gone)
        return bool(work.gone)


@dataclass
class _Work:
    namer: Namer
    gone: int = 0

    def cancel(self, first: ir.Node) -> None:
        """Take away what undoes ``first``, and ``first`` itself when nothing reads it any more."""
        source, out = first.inputs[0], first.outputs[0]
        perm = _perm(first)
        if source is None or _is_ref(first):
            return
        if perm is not None and perm == tuple(range(len(perm))):
            self._bypass(first, source)
            return
        was_read = bool(out.uses())
        for edge in uses(out):
            if edge.node.graph is None or edge.index != 0:
                continue
            if onnx_op(edge.node, "Transpose"):
                if _inverse(first, edge.node):
                    self._bypass(edge.node, source)
            elif perm is not None and _undone(edge, perm):
                self._around(edge.node, source, perm)
        if was_read and not out.uses() and not out.is_graph_output():
            self._remove(first)

    def _around(self, head: ir.Node, source: ir.Value, perm: Perm) -> None:
        """Let a pair read the data as it lies."""
        ends = _ends(head)
        for node in dict.fromkeys((head, *ends)):
            if "axis" in node.attributes or not _one_scale(node):
                axis = perm[attr_int(node, "axis", 1) % len(perm)]
                node.attributes["axis"] = ir.AttrInt64("axis", axis)
            if node.outputs[0].type is not None:
                node.outputs[0].shape = source.shape
        head.replace_input_with(0, source)
        for dq in ends:
            for edge in uses(dq.outputs[0]):
                self._bypass(edge.node, dq.outputs[0])

    def _bypass(self, node: ir.Node, source: ir.Value) -> None:
        """Let ``source`` stand in for what a Transpose makes; not where that would cost a graph output its name."""
        out = node.outputs[0]
        if out.is_graph_output() and not may_become_output(source, graph_of(out)):
            return
        source.type, source.shape = source.type or out.type, source.shape or out.shape
        replace_uses(out, source, self.namer)
        self._remove(node)

    def _remove(self, node: ir.Node) -> None:
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        self.gone += 1


def _undone(edge: Edge, perm: Perm) -> bool:
    """Whether a Q/DQ pair reads a Transpose, and everything behind the pair undoes it."""
    head = edge.node
    ends = _ends(head)
    if not ends or any(attr_int(n, "block_size", 0) for n in (head, *ends)):
        return False
    if head is not ends[0] and head.outputs[0].is_graph_output():
        return False
    back = tuple(perm.index(i) for i in range(len(perm)))
    for dq in ends:
        out = dq.outputs[0]
        readers = uses(out)
        if out.is_graph_output() or not readers:
            return False
        for reader in readers:
            if not onnx_op(reader.node, "Transpose") or _is_ref(reader.node) or _perm(reader.node, len(perm)) != back:
                return False
            last = reader.node.outputs[0]
            if last.is_graph_output() and (len(readers) > 1 or not may_become_output(out, graph_of(last))):
                return False
    return True


def _ends(head: ir.Node) -> Sequence[ir.Node]:
    """The last nodes of a pair: the DQ itself, or all readers of a Q; none if something else reads the Q."""
    if is_q(head, DEQUANTIZE):
        return [head]
    if not is_q(head, QUANTIZE):
        return []
    readers = uses(head.outputs[0])
    if any(not is_q(r.node, DEQUANTIZE) or r.index != 0 for r in readers):
        return []
    return [r.node for r in readers]


def _one_scale(node: ir.Node) -> bool:
    tensor = constant_tensor(node.inputs[1])
    return dims_of(node.inputs[1]) == () or (tensor is not None and not len(tensor.shape))


def _is_ref(node: ir.Node) -> bool:
    return any(attr.is_ref() for attr in node.attributes.values())


def _perm(node: ir.Node, rank: int | None = None) -> Perm | None:
    """The permutation; None where it is the default one and nobody knows the rank."""
    given = None if _is_ref(node) else attr_ints(node, "perm")
    if given is not None:
        return tuple(given)
    dims = dims_of(node.inputs[0]) or dims_of(node.outputs[0])
    rank = len(dims) if dims is not None else rank
    return None if rank is None else tuple(range(rank))[::-1]


def _inverse(first: ir.Node, second: ir.Node) -> bool:
    """Whether the second Transpose, reading the first, gives the data back as it was."""
    if _is_ref(first) or _is_ref(second):
        return False
    a, b = attr_ints(first, "perm"), attr_ints(second, "perm")
    if a is None and b is None:
        return True  # both reverse all axes
    size = len(a if a is not None else b or ())
    p, q = _perm(first, size), _perm(second, size)
    return p is not None and q is not None and [p[i] for i in q] == list(range(size))
