"""`copy-tied-weights`: every product gets a weight-only weight of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.dead import remove_unread
from onnxq.edit import Namer, add_initializer, copy_metadata
from onnxq.facts import Edge, Fact
from onnxq.look import constant_tensor, graph_of, nbytes, nested_graphs, onnx_op, uses
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class CopyTiedWeights(Pass):
    """Stored integers that several products read -> a copy with DequantizeLinear, scale and zero point for each.

    onnxruntime makes MatMulNBits only of a weight that has one reader, and counts readers of the scale, too; else the
    weight is dequantized on every run. The first reader keeps what is there, as do other operators: an embedding that
    is the output layer, too. Products with quantized activations are not touched, since integer kernels share weights.
    The file grows by the copies. Works in all scopes but local functions, which hold no initializers.
    """

    name: ClassVar[str] = "copy-tied-weights"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Copy for every product but the first; one note for each weight says how much the file grows."""
        namer, readers = Namer(model), dict[ir.Value, list[tuple[ir.Node, Edge | None]]]()
        for node in [n for graph in nested_graphs(model.graph) for n in graph if is_q(n, DEQUANTIZE)]:
            data = node.inputs[0]
            if data is not None and data.is_initializer() and constant_tensor(data) is not None:
                products = [edge for edge in uses(node.outputs[0]) if _product(edge)]
                others = len(products) < len(uses(node.outputs[0])) or node.outputs[0].is_graph_output()
                readers.setdefault(data, []).extend([(node, None)] * others + [(node, edge) for edge in products])
        changed = False
        for data, found in readers.items():
            found.sort(key=lambda one: one[1] is not None)  # other operators first: they keep what is there
            copied = [(dq, edge) for dq, edge in found[1:] if edge is not None and wanted(ctx, data, dq, edge.node)]
            for dq, edge in copied:
                _copy(dq, edge, namer)
            if copied:
                tensor = constant_tensor(data)
                size = nbytes(tensor) * len(copied) if tensor is not None else 0
                text = f"{plural(len(copied), 'product')} that read it, too, now with a copy each"
                ctx.note("weight-copied", data, text, copies=len(copied), bytes=size)
                changed = True
        return changed


def _product(edge: Edge) -> bool:
    """Whether a use is the weight of a product whose activation is float."""
    if not onnx_op(edge.node, "MatMul", "Gemm") or edge.index != 1:
        return False
    activation = edge.node.inputs[0]
    return activation is not None and not is_q(activation.producer(), DEQUANTIZE)


def _copy(dq: ir.Node, edge: Edge, namer: Namer) -> None:
    inputs = [_stored(value, namer) for value in dq.inputs]
    new = ir.Node(dq.domain, dq.op_type, inputs, dq.attributes.values(), name=namer(dq.name or dq.op_type))
    copy_metadata(new, dq, CopyTiedWeights.name)
    out, old = new.outputs[0], dq.outputs[0]
    out.name, out.type, out.shape = namer(old.name or "dequantized"), old.type, old.shape
    graph = edge.node.graph
    assert graph is not None
    graph.insert_before(edge.node, new)
    edge.node.replace_input_with(edge.index, out)
    if not dq.outputs[0].uses() and not dq.outputs[0].is_graph_output():
        remove_unread([dq.outputs[0]])


def _stored(value: ir.Value | None, namer: Namer) -> ir.Value | None:
    """A copy of an initializer; what a node makes is read as it is."""
    tensor = constant_tensor(value)
    if value is None or tensor is None or not value.is_initializer():
        return value
    shape = ir.Shape(tensor.shape.numpy())
    twin = ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape)
    return add_initializer(graph_of(value), value.name or "weight", twin, namer)
