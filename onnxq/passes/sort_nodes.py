"""sort-nodes: every node after the nodes whose values it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import bodies
from onnxq.errors import UnsupportedError
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class SortNodes(Pass):
    """Nodes in any order -> topological order, as ONNX demands and onnxruntime does not.

    What a node's bodies capture counts as read by the node. A graph that is in order already is not touched; the sort
    is stable. Works in all scopes and in local functions.
    """

    name: ClassVar[str] = "sort-nodes"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Sort the graphs that need it.

        Raises:
            UnsupportedError: A graph has a circle.
        """
        changed = False
        for root in (model.graph, *(f.graph for f in model.functions.values())):
            if _in_order(root):
                continue
            try:
                root.sort()
            except ValueError:
                raise UnsupportedError(f"graph '{root.name}' has nodes that depend on each other in a circle") from None
            ctx.note("nodes-sorted", None, f"the nodes of graph '{root.name}' were not in topological order")
            changed = True
        return changed


def _in_order(root: ir.Graph) -> bool:
    """Depth first, a captured value is made before the node around the body: one running number tells."""
    number: dict[ir.Node, int] = {}
    reads: list[tuple[ir.Node, int]] = []

    def visit(graph: ir.Graph) -> None:
        for node in graph:
            here = number[node] = len(number)
            for value in node.inputs:
                maker = None if value is None else value.producer()
                if maker is not None:
                    reads.append((maker, here))
            for body in bodies(node):
                visit(body)

    visit(root)
    return all(number.get(maker, -1) < here for maker, here in reads)
