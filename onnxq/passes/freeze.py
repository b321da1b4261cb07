"""`freeze`: float weights behind a QuantizeLinear become the integers it makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.carry import Carried, constant_behind
from onnxq.chosen import Chosen, wanted
from onnxq.edit import (
    Namer,
    add_initializer,
    become_initializer,
    graph_of,
    nested_graphs,
    plain_initializers,
    remove_dead,
    replace_uses,
)
from onnxq.facts import Fact
from onnxq.look import attr_int, uses
from onnxq.numerics.spec import Encoding
from onnxq.pairs import at_source, carried_on, parameter, read_encoding
from onnxq.passbase import Context, Pass
from onnxq.states import QUANTIZE, is_q
from onnxq.weights import quantized_weight
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class Freeze(Pass):
    """``float weight -> Q -> DQ -> op`` becomes ``integer weight -> DQ -> op``; the inverse of `thaw`.

    The integers are those that the QuantizeLinear computes. Each DequantizeLinear stays as it is, with axis, block
    size, output type, metadata and all its readers. Pairs on activations are not touched. Integer weights are lazy:
    quantized when they are written. Transposes in front of the QuantizeLinear then move the integers, other carriers
    (Reshape, Cast) are computed. Works in all scopes but local functions, which hold no initializers.

    Stays, with the reason: a QuantizeLinear of other than integer types, with computed parameters, with a precision of
    its own, or whose integers are a graph output.
    """

    name: ClassVar[str] = "freeze"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Replace every QuantizeLinear of a constant; one note says how many."""
        plain = plain_initializers(model)
        namer, count = Namer(model), 0
        for node in [n for graph in nested_graphs(model.graph) for n in graph if is_q(n, QUANTIZE)]:
            found = constant_behind(node.inputs[0])
            if isinstance(found, str) or not wanted(ctx, node, *(e.node for e in uses(node.outputs[0]))):
                continue
            encoding = read_encoding(node, found.dims)
            why = encoding if isinstance(encoding, str) else _why_not(node)
            if why or isinstance(encoding, str):
                ctx.note("not-frozen", node, f"it stays in front of the weight: {why}")
                continue
            _freeze(node, found, encoding, namer)
            count += 1
        if count:
            remove_dead(model)
            ctx.note(
                "frozen", None, f"{plural(count, 'weight')} now stored as the integers of a QuantizeLinear", count=count
            )
        return plain or bool(count)


def _freeze(node: ir.Node, found: Carried, encoding: Encoding, namer: Namer) -> None:
    """Let integers take the place of what a QuantizeLinear makes."""
    value, out, source = node.inputs[0], node.outputs[0], at_source(encoding, found)
    assert value is not None
    if source is None or not found.nodes:
        become_initializer(out, quantized_weight(value, encoding))
        return
    name = f"{found.source.name}_quantized"
    integers = add_initializer(graph_of(found.source), name, quantized_weight(found.source, source), namer)
    replace_uses(out, carried_on(integers, found.nodes, node, namer, Freeze.name), namer)


def _why_not(node: ir.Node) -> str:
    """Why the integers of a QuantizeLinear are not those that `onnxq.numerics` computes; ``""`` if they are."""
    if node.outputs[0].is_graph_output():
        return "its integers are a graph output"
    scale, precision = parameter(node, 1), attr_int(node, "precision", 0)
    if precision and scale is not None and precision != scale.dtype:
        return f"it divides in {ir.DataType(precision).name.lower()}"
    return ""
