"""`copy-tied-weights`: every product gets a weight-only weight of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.edit import Namer, add_initializer, copy_metadata
from onnxq.facts import Edge, Fact
from onnxq.look import constant_tensor, graph_of, nbytes, nested_graphs, onnx_op, uses
from onnxq.pairs import parameter
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, is_q


@dataclass(frozen=True, kw_only=True)
class CopyTiedWeights(Pass):
    """Stored integers, or their scale, that several readers share -> a copy for each product, with a DequantizeLinear.

    onnxruntime makes MatMulNBits only of a weight and a scale that have one reader each (measured with 1.32); else the
    weight is dequantized on every run. The first product keeps what is there; where other operators read it, too, such
    as an embedding that is the output layer, these do. Products with quantized activations are not touched, since
    integer kernels share weights. The file grows by the copies. Works in all scopes but local functions, which hold no
    initializers.
    """

    name: ClassVar[str] = "copy-tied-weights"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Copy for every product but the first; a note for each says how much the file grows."""
        namer, found = Namer(model), list[tuple[ir.Node, Edge]]()
        for dq in [n for graph in nested_graphs(model.graph) for n in graph if is_q(n, DEQUANTIZE)]:
            if _stored(dq.inputs[0]) and _stored(parameter(dq, 1)):
                found += [(dq, edge) for edge in uses(dq.outputs[0]) if _product(edge)]
        tied = [(dq, edge) for dq, edge in found if not ctx.has(Chosen) or wanted(ctx, *_places(dq))]
        changed = False
        for dq, edge in reversed(tied):
            if not _shared(dq):
                continue
            old = list(dq.inputs)
            mine = (
                dq if len(dq.outputs[0].uses()) == 1 and not dq.outputs[0].is_graph_output() else _twin(dq, edge, namer)
            )
            size = 0
            for index, value in enumerate(old):
                if value is not None and _stored(value) and len(value.uses()) > 1:
                    mine.replace_input_with(index, _copied(value, namer))
                    size += nbytes(constant_tensor(value))  # type: ignore[arg-type]
            ctx.note(
                "weight-copied", edge.node, f"its weight and scale have no other reader now: +{size} bytes", bytes=size
            )
            changed = True
        return changed


def _stored(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and constant_tensor(value) is not None


def _shared(dq: ir.Node) -> bool:
    """Whether a weight, its scale or its dequantized form has another reader."""
    out = dq.outputs[0]
    return out.is_graph_output() or any(v is not None and len(v.uses()) > 1 for v in (*dq.inputs[:2], out))


def _places(dq: ir.Node) -> list[ir.Node | ir.Value]:
    """Where a finding about a tied weight may be: what is shared, and all who share it."""
    found: list[ir.Node | ir.Value] = []
    for value in dq.inputs[:2]:
        for other, _ in value.uses() if value is not None else ():
            found += [other, *other.outputs, *(node for out in other.outputs for node, _ in out.uses())]
        found += [value] if value is not None else []
    return found


def _product(edge: Edge) -> bool:
    """Whether a use is the weight of a product whose activation is float."""
    if not onnx_op(edge.node, "MatMul", "Gemm") or edge.index != 1:
        return False
    activation = edge.node.inputs[0]
    return activation is not None and not is_q(activation.producer(), DEQUANTIZE)


def _twin(dq: ir.Node, edge: Edge, namer: Namer) -> ir.Node:
    """A DequantizeLinear of the same inputs for one use."""
    new = ir.Node(dq.domain, dq.op_type, dq.inputs, dq.attributes.values(), name=namer(dq.name or dq.op_type))
    copy_metadata(new, dq, CopyTiedWeights.name)
    out, old = new.outputs[0], dq.outputs[0]
    out.name, out.type, out.shape = namer(old.name or "dequantized"), old.type, old.shape
    assert edge.node.graph is not None
    edge.node.graph.insert_before(edge.node, new)
    edge.node.replace_input_with(edge.index, out)
    return new


def _copied(value: ir.Value, namer: Namer) -> ir.Value:
    tensor = constant_tensor(value)
    assert tensor is not None
    twin = ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()))
    return add_initializer(graph_of(value), value.name or "weight", twin, namer)
