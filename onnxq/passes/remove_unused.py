"""remove-unused: nodes, initializers and opset imports that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import all_graphs, remove_dead
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class RemoveUnused(Pass):
    """Node whose outputs nobody reads, initializer nobody reads, import of a domain no node belongs to -> nothing.

    Works in all scopes and in local functions. Graph inputs and outputs stay, and so does the import of the standard
    domain.
    """

    name: ClassVar[str] = "remove-unused"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Remove; one note says how much."""
        count = remove_dead(model)
        if count:
            ctx.note("unused-removed", None, f"{count} unused nodes and initializers removed", count=count)
        used = {node.domain for graph in all_graphs(model) for node in graph} | {"", "ai.onnx"}
        unused = sorted(set(model.opset_imports) - used)
        for domain in unused:
            del model.opset_imports[domain]
        if unused:
            ctx.note("imports-removed", None, f"no node belongs to the domains {', '.join(unused)}")
        return bool(count or unused)
