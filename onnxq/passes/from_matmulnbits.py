"""`from-matmulnbits`: onnxruntime's packed weights as standard ONNX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import Namer, all_nodes, nested_graphs, plain_initializers, remove_dead
from onnxq.errors import OptionError
from onnxq.nbits import DOMAIN, LOOKUP, OP
from onnxq.passbase import Context, Pass
from onnxq.qoperators.contrib_pairs import multiply, opset_needed
from onnxq.qoperators.lookups import look_up
from onnxq.qoperators.raising import Raiser
from onnxq.wording import plural

_FORMS = {OP: multiply, LOOKUP: look_up}


@dataclass(frozen=True, kw_only=True)
class FromMatmulnbits(Pass):
    """``com.microsoft.MatMulNBits`` -> ``integer weight [K, N] -> DequantizeLinear -> MatMul (-> Add)``.

    Weights become uint2, uint4 or uint8 with the same integers, scales and zero points; where zero points are left out
    they are the middle, 2^(bits - 1), and get written. One block a column becomes the form of one scale an output
    channel. Every node gets a weight of its own, since onnxruntime makes no MatMulNBits of a shared one. An accuracy
    level cannot be said in ONNX and is dropped, with a note: a session option of onnxruntime sets it.

    ``GatherBlockQuantized`` becomes ``Gather -> DequantizeLinear``; its integers of 2 or 4 bits are stored in 8, since
    Gather takes no narrower ones. An index out of range gives zeros there and is an error here.

    Stays, with a note: float zero points, ``g_idx``, layouts prepared for one device, parts that are no constants,
    blocks of several rows of a table, nodes of local functions. Works in If/Loop/Scan bodies.
    """

    name: ClassVar[str] = "from-matmulnbits"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every node that ONNX can say; one note says how many.

        Raises:
            OptionError: The model's opset has no integers of that width, or no blocks.
        """
        raiser, count = Raiser(model, ctx, Namer(model), self.name, model.opset_imports), 0
        for graph in nested_graphs(model.graph):
            for node in filter(_packed, tuple(graph)):
                name, needed = node.name, opset_needed(node)
                why = raiser.rewrite(node, _FORMS[node.op_type])
                if why and f"need opset {needed}" in why:
                    raise OptionError(f"node '{name}': {why}")
                if why:
                    ctx.note("not-raised", node, f"stays {node.op_type}: {why}")
                count += not why
        for function in model.functions.values():
            for node in (n for graph in nested_graphs(function.graph) for n in graph if _packed(n)):
                why = "a local function holds no initializers: run inline-functions first"
                ctx.note("not-raised", node, f"stays {node.op_type}: {why}")
        if not count:
            return False
        plain_initializers(model)
        remove_dead(model)
        if all(node.domain != DOMAIN for node in all_nodes(model)):
            model.opset_imports.pop(DOMAIN, None)
        ctx.note("raised", None, f"{plural(count, 'node')} of {DOMAIN} became standard ONNX", nodes=count)
        return True


def _packed(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type in _FORMS
