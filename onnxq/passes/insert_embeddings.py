"""`insert-embeddings`: embedding tables become integers, dequantized behind the look-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer, graph_of, remove_dead
from onnxq.facts import Edge, Encodings, Fact, Plan
from onnxq.look import onnx_op
from onnxq.lookups import Table, add_table, dequantize_behind, looked_up
from onnxq.nbits import Refused
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context, Pass
from onnxq.weights import quantized_weight, weight_tensor
from onnxq.wording import plural

_Tables = dict[tuple[ir.Value, Encoding, int], Table]
_OPSET = 21  # first with blocks


@dataclass(frozen=True, kw_only=True)
class InsertEmbeddings(Pass):
    """`Plan`, `Encodings` -> graph: ``Gather(table)`` -> ``Gather(integer table) -> DequantizeLinear``.

    With one scale a row or a block, scale and zero point are looked up by Gathers of their own. The edges written here
    leave both facts, so that `insert-qdq` behind it does not see them. The zero point is always written: onnxruntime
    1.32 needs two thirds of the time with it. Gathers of one table share the integers.

    Stays for `insert-qdq`, which dequantizes the whole table in every run, with a note: types below 8 bits, which no
    Gather takes; blocks of several rows; a Gather whose output is quantized, too; models below opset 21.
    """

    name: ClassVar[str] = "insert-embeddings"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    keeps: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    idempotent: ClassVar[bool] = False  # its facts describe look-ups that it replaces

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every look-up in a table that is planned to be integers; True if there was one."""
        plan, encodings = ctx.get(Plan), ctx.get(Encodings)
        namer = Namer(model)
        tables: _Tables = {}
        edges = [e for e in encodings.weights if e.index == 0 and onnx_op(e.node, "Gather")]
        done, opset = 0, model.opset_imports.get("", 0)
        for edge in edges:
            encoding = encodings.weights[edge]
            try:
                if edge.node.outputs[0] in plan.activations:
                    raise Refused("its output is quantized, too")
                if opset < _OPSET:
                    raise Refused(f"opset {opset} has no blocks, {_OPSET} has: run upgrade-opset first")
                table = _table(edge, encoding, tables, namer)
            except Refused as refused:
                why = f"'{edge.value.name}' is dequantized as a whole in every run: {refused}"
                ctx.note("embedding-as-a-whole", edge.node, why)
                continue
            dequantize_behind(edge.node, table, namer, self.name)
            edge.node.metadata_props[PASS_KEY] = self.name
            encodings.weights.pop(edge)
            plan.weights.pop(edge, None)
            done += 1
        if done:
            remove_dead(model)
            why = f"{plural(done, 'look-up')} in integer tables, dequantized behind"
            ctx.note("embeddings", None, why, lookups=done, tables=len(tables))
        return bool(done)


def _table(edge: Edge, encoding: Encoding, tables: _Tables, namer: Namer) -> Table:
    value, tensor = edge.value, weight_tensor(edge.value)
    assert tensor is not None
    along = looked_up(edge.node, len(tensor.shape))
    key = (value, encoding, along)
    if key not in tables:
        integers = quantized_weight(value, encoding)
        tables[key] = add_table(graph_of(value), value.name or "table", integers, encoding, along, namer)
    return tables[key]
