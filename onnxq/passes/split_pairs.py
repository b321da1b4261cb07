"""`split-pairs`: every reader of a quantized activation gets a pair of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.chosen import Chosen, wanted
from onnxq.edit import Namer, add_initializer, all_nodes, copy_metadata
from onnxq.facts import Fact
from onnxq.look import constant_tensor, graph_of, uses
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class SplitPairs(Pass):
    """``Q -> DQ -> several readers`` and ``Q -> several DQ`` become one ``Q -> DQ`` for each reading node; exact.

    onnxruntime turns int8 activations into uint8 only where each QuantizeLinear has one DequantizeLinear and that one
    has one reader; its training build refuses a QuantizeLinear with several. The first reader keeps the pair that is
    there, as do graph outputs. Copies read copies of scale and zero point, or onnxruntime would merge them again
    (measured with 1.32). Weights are not touched. Works in all scopes.
    """

    name: ClassVar[str] = "split-pairs"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Split every pair that has several readers; a note names each QuantizeLinear."""
        namer, changed = Namer(model), False
        for q in [n for n in all_nodes(model) if is_q(n, QUANTIZE) and isinstance(constant_behind(n.inputs[0]), str)]:
            dqs = list(dict.fromkeys(e.node for e in uses(q.outputs[0]) if not e.index and is_q(e.node, DEQUANTIZE)))
            readers = [(dq, reader) for dq in dqs for reader in _readers(dq)]
            if len(readers) < 2 or not wanted(ctx, q, q.outputs[0], *dqs, *(dq.outputs[0] for dq in dqs)):
                continue
            own: set[ir.Node] = set()
            after = q
            for index, (dq, reader) in enumerate(readers):
                if not index:
                    own.add(dq)
                    continue
                twins = {value: _twin(value, namer) for value in q.inputs[1:] if value is not None}
                new_q = _copy(q, q.inputs[0], after, twins, namer)
                if dq in own:
                    new_dq = _copy(dq, new_q.outputs[0], dq if dq.graph is not q.graph else new_q, twins, namer)
                    for edge in uses(dq.outputs[0]):
                        if edge.node is reader:
                            reader.replace_input_with(edge.index, new_dq.outputs[0])
                    after = new_dq if new_dq.graph is q.graph else new_q
                else:
                    for place, value in enumerate((new_q.outputs[0], *(_twinned(v, twins) for v in dq.inputs[1:]))):
                        dq.replace_input_with(place, value)
                    own.add(dq)
                    after = new_q
            ctx.note(
                "pair-split", q, f"each of its {plural(len(readers), 'reader')} has a pair now", readers=len(readers)
            )
            changed = True
        return changed


def _readers(dq: ir.Node) -> list[ir.Node | None]:
    """The nodes that read a DequantizeLinear, in the order of their uses; None in front where it is a graph output."""
    found: list[ir.Node | None] = [None] if dq.outputs[0].is_graph_output() else []
    return found + list(dict.fromkeys(edge.node for edge in uses(dq.outputs[0])))


def _twin(value: ir.Value, namer: Namer) -> ir.Value:
    """A copy of a constant; what is computed is read as it is."""
    node, tensor = value.producer(), constant_tensor(value)
    if tensor is None:
        return value
    if node is None:
        twin = ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()))
        return add_initializer(graph_of(value), value.name or "parameter", twin, namer)
    return _copy(node, None, node, {}, namer).outputs[0]


def _twinned(value: ir.Value | None, twins: dict[ir.Value, ir.Value]) -> ir.Value | None:
    return twins.get(value, value) if value is not None else None


def _copy(
    node: ir.Node, data: ir.Value | None, after: ir.Node, twins: dict[ir.Value, ir.Value], namer: Namer
) -> ir.Node:
    """A copy of a node behind another, with other data and the twins of its parameters."""
    inputs = [data, *(_twinned(value, twins) for value in node.inputs[1:])] if node.inputs else []
    new = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), name=namer(node.name or node.op_type))
    copy_metadata(new, node, SplitPairs.name)
    out, old = new.outputs[0], node.outputs[0]
    out.name, out.type, out.shape = namer(old.name or "quantized"), old.type, old.shape
    assert after.graph is not None
    after.graph.insert_after(after, new)
    return new
