"""`qoperator-to-qdq`: operators on integers become float operators between Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.edit import Namer, all_nodes, nested_graphs, plain_initializers, remove_dead
from onnxq.facts import Fact
from onnxq.ops import MICROSOFT
from onnxq.passbase import Context, Pass
from onnxq.qoperators import disguised
from onnxq.qoperators.moves import moves_integers, raise_movement
from onnxq.qoperators.raising import Raiser
from onnxq.qoperators.table import FORMS, why_none
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class QoperatorToQdq(Pass):
    """Operators on integers (``QLinear*``, ``*Integer``, onnxruntime's own) -> ``DQ -> float op -> Q``.

    ``QLinearConv`` becomes ``Q(Conv(DQ(x), DQ(w), DQ(bias)))``, and so on for every operator with a Q/DQ form. A
    ``ConvInteger`` or ``MatMulInteger`` takes the scales that are multiplied behind it into its pairs; where there are
    none, it becomes ``Cast(Conv(DQ(x), DQ(w)))`` with scale 1 if every sum provably stays below 2^24, where float32 is
    exact. ``DynamicQuantizeLinear`` stays, and a DequantizeLinear follows it. An int32 bias keeps its meaning: its
    scale is ``s_x * s_w``, for a QGemm ``alpha * s_a * s_b``, one a channel where the weight has one a channel.

    Exact but for the rounding of floats: results may be one step off where they lie in the middle of two. Axis and zero
    point are explicit everywhere; a single scale is a scalar. A weight or bias whose readers imply different scales is
    copied, so that each can be trained by itself. Data movement on integers (MaxPool, Reshape, ...) gets pairs around
    it, too. A constant bias vector behind a product of rank 3 gets leading axes, or onnxruntime would merge the two
    before it looks for pairs. Where the opset has no such pair, it is written in onnxruntime's domain. Works in
    If/Loop/Scan bodies and in local functions.

    Stays, with a note: what has no Q/DQ form (``DynamicQuantizeLSTM``, ``QMoE``, ...), scales of several values where
    the form has one, computed parameters of unknown shape.
    """

    name: ClassVar[str] = "qoperator-to-qdq"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every node that has a form; one note says how many."""
        namer, count, contrib = Namer(model), 0, 0
        scopes: list[tuple[ir.Graph, MutableMapping[str, int], bool]] = [(model.graph, model.opset_imports, False)]
        scopes += [(f.graph, f.opset_imports, True) for f in model.functions.values()]
        plain = plain_initializers(model)
        for graph, imports, function in scopes:
            raiser = Raiser(model, ctx, namer, self.name, imports, function)
            nodes = [node for inner in nested_graphs(graph) for node in inner if wanted(ctx, node)]
            count += _raise(nodes, raiser)
            contrib += raiser.contrib
        if not count:
            return plain
        remove_dead(model)
        for _, imports, _ in scopes:
            _drop_import(model, imports)
        ctx.note("raised", None, f"{plural(count, 'operator')} on integers now between Q/DQ pairs", nodes=count)
        if contrib:
            why = f"{plural(contrib, 'pair')} in onnxruntime's domain: opset {model.opset_imports.get('', 0)} has none"
            ctx.note("contrib-pairs", None, f"{why} such; upgrade-opset before this pass avoids it", pairs=contrib)
        return True


def _raise(nodes: Iterable[ir.Node], raiser: Raiser) -> int:
    """Rewrite nodes; returns how many."""
    count = 0
    for node in nodes:
        if node.graph is None:
            continue
        form = raise_movement if moves_integers(node) else FORMS.get((node.domain, node.op_type))
        form = form or disguised.form_of(node)
        why = raiser.rewrite(node, form) if form is not None else why_none(node)
        if why:
            raiser.ctx.note("not-raised", node, f"stays {node.op_type}: {why}")
        count += form is not None and not why
    return count


def _drop_import(model: ir.Model, imports: MutableMapping[str, int]) -> None:
    """Without a node of onnxruntime's domain its import goes, too."""
    if MICROSOFT in imports and all(node.domain != MICROSOFT for node in all_nodes(model)):
        del imports[MICROSOFT]
