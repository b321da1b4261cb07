"""`qdq-to-qoperator`: Q/DQ pairs around float operators become operators on integers."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.edit import Namer, all_nodes, nested_graphs, plain_initializers, remove_dead
from onnxq.look import onnx_op
from onnxq.ops import MICROSOFT
from onnxq.passbase import Context, Pass
from onnxq.passes.freeze import Freeze
from onnxq.qoperators.layouts import LAYOUTS
from onnxq.qoperators.lowering import is_dq, lower
from onnxq.qoperators.lowering_floats import convolve_dynamic, dynamic_source, move, multiply_dynamic, multiply_to_float
from onnxq.qoperators.movement import moved
from onnxq.qoperators.raising import Raiser, Rewrite
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class QdqToQoperator(Pass):
    """``DQ -> float operator -> Q`` becomes the operator on integers, for runtimes that want that form.

    Conv becomes QLinearConv, MatMul QLinearMatMul, Gemm QGemm; Add, Mul, Sigmoid, LeakyRelu, Softmax, Where, Concat,
    AveragePool and GlobalAveragePool the ``QLinear`` operator of onnxruntime's domain. A MatMul with a float output
    becomes MatMulIntegerToFloat, one whose input is quantized at run time DynamicQuantizeMatMul, a Conv ConvInteger.
    Data movement with the same encoding on both sides moves integers. Relu and Clip go where the saturation of the
    output does their work.
    The inverse of `qoperator-to-qdq`, over the same table; results differ by a step at most, at ties.

    The int32 bias has the scale of input times weight, which integer kernels take for granted; a bias at another scale
    or in float is encoded anew, with a note. Works in all scopes.

    Stays in Q/DQ form, with a note: operators without a form on integers, other types than 8 bits, mixtures of types,
    scales along other axes, a Relu or Clip that cuts off more.

    Attributes:
        domain: ``all`` uses onnxruntime's own operators, too; ``onnx`` only those of ONNX.
    """

    name: ClassVar[str] = "qdq-to-qoperator"

    domain: Literal["all", "onnx"] = "all"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every node that has such a form; one note says how many."""
        changed = plain_initializers(model)
        changed |= Freeze().run(model, ctx)
        namer, count = Namer(model), 0
        scopes: list[tuple[ir.Graph, MutableMapping[str, int], bool]] = [(model.graph, model.opset_imports, False)]
        scopes += [(f.graph, f.opset_imports, True) for f in model.functions.values()]
        for graph, imports, function in scopes:
            raiser = Raiser(model, ctx, namer, self.name, imports, function)
            for node in [n for inner in nested_graphs(graph) for n in inner]:
                count += self._lower(node, raiser)
            if MICROSOFT not in imports and any(n.domain == MICROSOFT for g in nested_graphs(graph) for n in g):
                imports[MICROSOFT] = 1
        if not count:
            return changed
        remove_dead(model)
        if all(node.domain != MICROSOFT for node in all_nodes(model)):
            model.opset_imports.pop(MICROSOFT, None)
        ctx.note("lowered", None, f"{plural(count, 'operator')} now on integers", nodes=count)
        return True

    def _lower(self, node: ir.Node, raiser: Raiser) -> bool:
        """Whether a node was rewritten; notes why it stays where it stands behind a pair."""
        if node.graph is None or is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE):
            return False
        behind_pair = any(is_dq(value) is not None for value in node.inputs)
        if not behind_pair or not any(v.uses() or v.is_graph_output() for v in node.outputs):
            return False
        forms = self._forms(node)
        why = f"no operator{'' if self.domain == 'all' else ' of ONNX'} on integers computes it"
        for form in forms:
            why = raiser.rewrite(node, form)
            if not why:
                return True
        raiser.ctx.note("not-lowered", node, f"stays between Q/DQ pairs: {why}")
        return False

    def _forms(self, node: ir.Node) -> list[Rewrite]:
        """The forms to try, the best one first."""
        layout, contrib = LAYOUTS.get(node.op_type) if node.domain == "" else None, self.domain == "all"
        if onnx_op(node, "MatMul") and dynamic_source(node.inputs[0]) is not None:
            return [lambda n, r: multiply_dynamic(n, r, contrib)]
        if onnx_op(node, "Conv") and dynamic_source(node.inputs[0]) is not None:
            return [convolve_dynamic]
        forms: list[Rewrite] = [move] if moved(node) else []
        if layout is not None and (contrib or layout.domain == ""):
            forms.append(lower)
        if contrib and onnx_op(node, "MatMul"):
            forms.append(multiply_to_float)
        return forms
