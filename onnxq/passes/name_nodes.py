"""name-nodes: every node and value has a name of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import Namer, nested_graphs, rename
from onnxq.passbase import Context, Pass
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class NameNodes(Pass):
    """Unnamed or doubled node, doubled value -> a unique name, derived from what the node makes.

    An unnamed node is called ``<op type>_<first output>``: its name does not depend on how many nodes stand before it.
    Names that exist stay: the first holder keeps a doubled name, later ones get a suffix. Graph inputs and outputs
    never change; a value in an If/Loop/Scan body that shadows an outer one, or repeats a name of a sibling body, does.
    Bodies of local functions are templates and stay as they are; `inline-functions` names what it makes of them.
    """

    name: ClassVar[str] = "name-nodes"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Name values first (node names derive from them), then nodes."""
        namer = Namer(model)
        changed = self._values(model, ctx, namer)
        return self._nodes(model, ctx, namer) or changed

    def _values(self, model: ir.Model, ctx: Context, namer: Namer) -> bool:
        taken: dict[str, ir.Value] = {}
        for value in (*model.graph.inputs, *model.graph.outputs):
            taken.setdefault(value.name or "", value)
        changed = False
        for value in _values_of(model):
            old = value.name or ""
            if not old and not value.uses() and not value.is_graph_output():
                continue  # an optional output that is absent
            if old and taken.setdefault(old, value) is value:
                continue
            node = value.producer()
            rename(value, namer(old or f"{node.op_type if node else 'value'}_output"))
            taken[value.name or ""] = value
            changed = True
            if old:
                ctx.note("value-renamed", value, f"'{old}' names another value, too; this one is now '{value.name}'")
        return changed

    def _nodes(self, model: ir.Model, ctx: Context, namer: Namer) -> bool:
        taken: set[str] = set()
        unnamed = []
        changed = False
        for graph in nested_graphs(model.graph):
            for node in graph:
                if not node.name:
                    unnamed.append(node)
                elif node.name in taken:
                    old, node.name = node.name, namer(node.name)
                    ctx.note("node-renamed", node, f"'{old}' names another node, too; this one is now '{node.name}'")
                    changed = True
                taken.add(node.name or "")
        for node in unnamed:
            made = next((v.name for v in node.outputs if v.name), "")
            node.name = namer(f"{node.op_type}_{made}" if made else node.op_type)
        if unnamed:
            ctx.note(
                "nodes-named",
                None,
                f"{plural(len(unnamed), 'node')} had no name; each is now called <op type>_<first output>",
                count=len(unnamed),
            )
        return changed or bool(unnamed)


def _values_of(model: ir.Model) -> Iterator[ir.Value]:
    for graph in nested_graphs(model.graph):
        yield from tuple(graph.inputs)
        yield from tuple(graph.initializers.values())
        for node in graph:
            yield from node.outputs
