"""`dequantize`: a quantized model back to float."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import Namer, nested_graphs, plain_initializers, remove_dead, replace_uses
from onnxq.look import onnx_op
from onnxq.ops import MICROSOFT
from onnxq.passbase import Context, Pass
from onnxq.passes.freeze import Freeze
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from onnxq.qoperators.floating import Floats, Saturation
from onnxq.qoperators.raising import Raiser, Refused
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class Dequantize(Pass):
    """Everything back to float: the same model without rounding of activations.

    Integer operators first become Q/DQ form (`qoperator-to-qdq`). Then constants behind a DequantizeLinear become the
    floats it makes of them: weights, biases, tables of embeddings, lazily; ``float -> Q -> DQ`` constants, too, as
    rounded. Pairs on activations vanish, also those that are quantized at run time, and data movement between Q and DQ
    moves floats. Works in all scopes.

    Quantizers leave a Relu or Clip out where the saturation of a pair does its work. So a pair whose range begins or
    ends at zero becomes a Clip, unless what it reads keeps these limits anyway or is an input.

    Stays, with a note: a DequantizeLinear of integers that come in as an input or are computed in another way, a
    QuantizeLinear whose integers are an output, pairs whose two halves differ, operators without a Q/DQ form
    (``not-raised``).

    Attributes:
        saturation: Pairs that keep their limits as a Clip: ``zero`` those from or to zero, ``all`` every one (the
            numbers are those of the quantized model but for rounding, whatever comes in), ``none`` no pair.
    """

    name: ClassVar[str] = "dequantize"

    saturation: Saturation = "zero"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Make it float; one note says how many weights and pairs."""
        changed = plain_initializers(model)
        changed |= QoperatorToQdq().run(model, ctx)
        changed |= Freeze().run(model, ctx)
        namer, weights, pairs, limited = Namer(model), 0, 0, 0
        for graph, imports, function in _scopes(model):
            raiser = Raiser(model, ctx, namer, self.name, imports, function)
            floats = Floats(raiser, self.saturation)
            stays = []
            for node in [n for g in nested_graphs(graph) for n in g if is_q(n, DEQUANTIZE)]:
                try:
                    replace_uses(node.outputs[0], floats.of(node), namer)
                    pairs += 1
                except Refused as refused:
                    stays.append((node, str(refused)))
            remove_dead(model)
            floats.take_names()
            for node, why in stays:
                ctx.note("not-dequantized", node, f"stays: {why}")
            for node, why in _others(graph):
                ctx.note("not-dequantized", node, f"stays: {why}")
            weights, limited = weights + len(floats.weights), limited + floats.limited
        if not pairs:
            return changed
        _drop_import(model)
        text = f"{plural(pairs, 'DequantizeLinear node')} gone, {plural(weights, 'constant')} now float"
        ctx.note("dequantized", None, text, pairs=pairs, weights=weights)
        if limited:
            why = f"{plural(limited, 'pair')} became a Clip: a Relu or Clip may have been left out in front of them"
            ctx.note("limits-kept", None, why, clips=limited)
        return True


def _scopes(model: ir.Model) -> Iterator[tuple[ir.Graph, dict[str, int], bool]]:
    """Main graph and bodies of local functions: each with its opsets, and whether it is a function."""
    yield model.graph, model.opset_imports, False
    for function in model.functions.values():
        yield function.graph, function.opset_imports, True


def _others(graph: ir.Graph) -> Iterator[tuple[ir.Node, str]]:
    """What is left of pairs besides DequantizeLinear nodes, and why."""
    for node in (n for g in nested_graphs(graph) for n in g):
        if is_q(node, QUANTIZE) or onnx_op(node, "DynamicQuantizeLinear"):
            out = node.outputs[0]
            readers = ", ".join(sorted({f"{user.op_type} '{user.name}'" for user in out.consumers()}))
            yield node, "its integers are a graph output" if out.is_graph_output() else f"{readers} reads its integers"


def _drop_import(model: ir.Model) -> None:
    """Take onnxruntime's domain off the imports when nothing needs it any more."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    if all(node.domain != MICROSOFT for graph in graphs for g in nested_graphs(graph) for node in g):
        model.opset_imports.pop(MICROSOFT, None)
