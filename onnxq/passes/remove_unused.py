"""remove-unused: nodes, outputs, initializers and opset imports that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
from onnx import defs

from onnxq.chosen import Chosen
from onnxq.dead import remove_unread
from onnxq.edit import nested_graphs, remove_dead
from onnxq.facts import Fact
from onnxq.opsets import upgrade as opsets
from onnxq.passbase import Context, Pass
from onnxq.passes.drop_unused_imports import DropUnusedImports
from onnxq.wording import plural

# The number of outputs is the mode of a BatchNormalization, and onnxruntime's Attention (1.32) fails where a past key
# comes in and no present key goes out.
_OUTPUTS_MATTER = ("BatchNormalization", "Attention")
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


@dataclass(frozen=True, kw_only=True)
class RemoveUnused(Pass):
    """Node whose outputs nobody reads, initializer nobody reads, import of a domain no node belongs to -> nothing.

    A node that stays loses its last outputs if nobody reads them and its operator may go without them: the indices of
    a MaxPool, the mask of a Dropout. BatchNormalization and Attention keep theirs.

    Works in all scopes and in local functions. Graph inputs and outputs stay, and so does the import of the standard
    domain.
    """

    name: ClassVar[str] = "remove-unused"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Remove; one note says how much, one that outputs went, one which imports."""
        chosen = ctx.maybe(Chosen)
        if chosen is not None:
            made = [value for node in chosen.nodes for value in node.outputs]
            count = remove_unread([*chosen.values, *made])
        else:
            count = remove_dead(model)
        if count:
            ctx.note("unused-removed", None, f"unused nodes and initializers removed: {count}", count=count)
        if chosen is not None:
            return bool(count)
        outputs = _trim_outputs(model)
        if outputs:
            ctx.note("outputs-removed", None, f"{plural(outputs, 'unused optional output')} removed", count=outputs)
        unused = DropUnusedImports().run(model, ctx)
        return bool(count or outputs or unused)


def _trim_outputs(model: ir.Model) -> int:
    """Take away unused outputs at the end of nodes; returns how many went."""
    count = 0
    parts = [(model.graph, model.opset_imports), *((f.graph, f.opset_imports) for f in model.functions.values())]
    for root, imports in parts:
        opset = imports.get("", 0)
        for graph in nested_graphs(root):
            for node in graph:
                if len(node.outputs) < 2 or node.domain != "" or node.op_type in _OUTPUTS_MATTER:
                    continue
                size = _needed(node, opsets.schema(node.op_type, opset))
                count += len(node.outputs) - size
                node.resize_outputs(size)
    return count


def _needed(node: ir.Node, schema: defs.OpSchema | None) -> int:
    """How many of a node's outputs must stay."""
    size = len(node.outputs)
    if schema is None or size > len(schema.outputs):  # variadic ones: their number is part of what the node does
        return size
    while size > max(schema.min_output, 1) and schema.outputs[size - 1].option == _OPTIONAL:
        last = node.outputs[size - 1]
        if last.uses() or last.is_graph_output():
            break
        size -= 1
    return size
