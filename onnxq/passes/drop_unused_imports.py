"""`drop-unused-imports`: opset imports of domains that no node is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.look import all_nodes
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class DropUnusedImports(Pass):
    """Opset import of a domain without nodes and local functions -> nothing.

    Runtimes that do not know a domain refuse a model that imports it. The standard domain stays in any case.
    """

    name: ClassVar[str] = "drop-unused-imports"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Drop them; one note says which."""
        used = {node.domain for node in all_nodes(model)} | {f.domain for f in model.functions.values()}
        unused = sorted(set(model.opset_imports) - used - {"", "ai.onnx"})
        for domain in unused:
            del model.opset_imports[domain]
        if unused:
            ctx.note("imports-removed", None, f"no node belongs to the domains {', '.join(unused)}")
        return bool(unused)
