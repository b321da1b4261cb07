"""`contrib-to-standard`: pairs of onnxruntime's domain become ONNX's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.edit import Namer
from onnxq.facts import Fact
from onnxq.look import all_nodes, nested_graphs, roots
from onnxq.ops import MICROSOFT
from onnxq.passbase import Context, Pass
from onnxq.qoperators.contrib_pairs import FORMS
from onnxq.qoperators.raising import Raiser
from onnxq.states import DEQUANTIZE, QUANTIZE
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class ContribToStandard(Pass):
    """``com.microsoft`` QuantizeLinear or DequantizeLinear -> the standard one, where the opset has such a pair.

    The axis gets written, since the two domains have different defaults. The import of the domain goes with its last
    node. Works in all scopes.

    Stays, with a note: a type that the opset's pairs do not have; upgrade-opset first helps.
    """

    name: ClassVar[str] = "contrib-to-standard"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every such node; one note says how many."""
        namer, count = Namer(model), 0
        for root, imports in roots(model):
            raiser = Raiser(model, ctx, namer, self.name, imports, root is not model.graph)
            for node in [n for graph in nested_graphs(root) for n in graph]:
                if node.domain != MICROSOFT or node.op_type not in (QUANTIZE, DEQUANTIZE) or not wanted(ctx, node):
                    continue
                why = raiser.rewrite(node, FORMS[MICROSOFT, node.op_type])
                if why:
                    ctx.note("contrib-kept", node, f"it stays in domain {MICROSOFT}: {why}")
                count += not why
        if not count:
            return False
        if all(node.domain != MICROSOFT for node in all_nodes(model)):
            for _, imports in roots(model):
                imports.pop(MICROSOFT, None)
        text = f"{plural(count, 'pair node')} of domain {MICROSOFT} now of ai.onnx"
        ctx.note("contrib-standardized", None, text, count=count)
        return True
