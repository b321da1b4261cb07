"""normalize-gemm: Gemm without factors, and with a bias of one number a channel, as integer kernels know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.affine import Refused, scale_constant
from onnxq.edit import Namer, add_initializer, copy_metadata, nested_graphs, onnx_op, plain_initializers, replace_uses
from onnxq.facts import Edge
from onnxq.layers import is_float, per_channel
from onnxq.look import attr_float, attr_int, constant_tensor
from onnxq.passbase import Context, Pass
from onnxq.provenance import changed


@dataclass(frozen=True, kw_only=True)
class NormalizeGemm(Pass):
    """``alpha A B + beta C`` -> ``A (alpha B) + (beta C)``, where B is constant.

    A bias that is computed, or has one number a row, becomes an Add behind the Gemm; ``beta = 0`` drops the bias. A
    weight or bias that others read is copied. Works in all scopes.

    Stays, with the reason: factors that the weight's type (float16) cannot hold. Two computed operands, and
    ``alpha = 0``, stay, too.
    """

    name: ClassVar[str] = "normalize-gemm"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every Gemm with a constant B; one note says how many."""
        plain = plain_initializers(model)
        namer = Namer(model)
        count = 0
        found = [node for graph in nested_graphs(model.graph) for node in graph if onnx_op(node, "Gemm")]
        for node in filter(_odd, found):
            try:
                _normalize(node, namer)
                count += 1
            except Refused as refused:
                ctx.note("gemm-kept", node, str(refused))
        if count:
            ctx.note("gemm-normalized", None, f"{count} Gemm nodes lost factors or an odd bias", count=count)
        return plain or bool(count)


def _odd(node: ir.Node) -> bool:
    """Whether a Gemm with a constant B has something to normalize."""
    weight = constant_tensor(node.inputs[1])
    if weight is None or constant_tensor(node.inputs[0]) is not None or not is_float(node.inputs[1]):
        return False
    alpha, beta = attr_float(node, "alpha", 1.0), attr_float(node, "beta", 1.0)
    return alpha != 0 and (alpha != 1 or (_bias(node) is not None and (beta != 1 or not _fits(node))))


def _bias(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _fits(node: ir.Node) -> bool:
    """Whether the bias is constant, one number a channel."""
    bias, weight = constant_tensor(_bias(node)), constant_tensor(node.inputs[1])
    assert weight is not None
    channels = int(weight.shape.numpy()[0 if attr_int(node, "transB", 0) else 1])
    return bias is not None and per_channel([int(d) for d in bias.shape.numpy()], channels)


def _normalize(node: ir.Node, namer: Namer) -> None:
    alpha, beta = attr_float(node, "alpha", 1.0), attr_float(node, "beta", 1.0)
    bias = _bias(node)
    constant = constant_tensor(bias) is not None
    if alpha != 1:
        scale_constant(Edge(node, 1), alpha, namer)
        node.attributes.pop("alpha")
    if bias is None or beta == 0:
        node.resize_inputs(2)
    elif constant and beta != 1:
        scale_constant(Edge(node, 2), beta, namer)
    if bias is not None and beta != 0 and not _fits(node):
        _split(node, 1.0 if constant else beta, namer)
    node.attributes.pop("beta", None)


def _split(node: ir.Node, beta: float, namer: Namer) -> None:
    """The bias as an Add behind the Gemm; the sum takes the Gemm's output name over."""
    graph, weight, bias, out = node.graph, node.inputs[1], node.inputs[2], node.outputs[0]
    assert isinstance(graph, ir.Graph) and bias is not None and weight is not None and weight.dtype is not None
    chain = []
    if beta != 1:
        factor = add_initializer(graph, f"{node.name}_beta", np.asarray(beta, weight.dtype.numpy()), namer)
        chain.append(ir.node("Mul", [bias, factor], name=namer(f"{node.name}_Mul")))
        chain[0].outputs[0].name = namer(f"{chain[0].name}_output")
        chain[0].outputs[0].type, chain[0].outputs[0].shape = bias.type, bias.shape
    add = ir.node("Add", [out, chain[0].outputs[0] if chain else bias], name=namer(f"{node.name}_Add"))
    new = add.outputs[0]
    new.name, new.type, new.shape = namer(f"{add.name}_output"), out.type, out.shape
    for each in (*chain, add):
        copy_metadata(each, node, NormalizeGemm.name)
    graph.insert_after(node, (*chain, add))
    node.resize_inputs(2)
    is_output = out.is_graph_output()
    replace_uses(out, new, namer)
    changed(out)
    add.replace_input_with(0, out)
    if not is_output and out.name:
        out.name, new.name = new.name, out.name
