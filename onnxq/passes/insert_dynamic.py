"""`insert-dynamic`: layers whose input is quantized at run time, in the integer form every runtime fuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, copy_metadata, graph_of, remove_dead, replace_uses
from onnxq.facts import Encodings, Fact, Plan
from onnxq.passbase import Context, Pass
from onnxq.weights import quantized_weight


@dataclass(frozen=True, kw_only=True)
class InsertDynamic(Pass):
    """``MatMul(x, w) -> Mul(Cast(MatMulInteger(x_q, w_q)), x_scale * w_scale)``, ``x_q`` by DynamicQuantizeLinear.

    Values read by several such layers are quantized once. This integer form is used rather than DQ -> MatMul since
    onnxruntime merges a MatMul with its bias Add to a float Gemm before it looks for pairs, and then fuses nothing
    (measured with 1.32: 14 times slower at 128 x 384 x 384); the integer form is fused with and without a bias.
    """

    name: ClassVar[str] = "insert-dynamic"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    keeps: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    idempotent: ClassVar[bool] = False  # its facts describe layers that it replaces

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every layer the plan calls dynamic; True if there was one."""
        plan, encodings = ctx.get(Plan), ctx.get(Encodings)
        namer = Namer(model)
        inputs: dict[tuple[ir.Value, ir.Graph], ir.Node] = {}
        weights: dict[tuple[ir.Value, int], tuple[ir.Value, ir.Value, ir.Value]] = {}
        edges = [edge for edge in encodings.weights if plan.decisions[edge.node].status == "dynamic"]
        for edge in edges:
            node, x = edge.node, edge.node.inputs[0]
            graph = node.graph
            assert x is not None and isinstance(graph, ir.Graph)
            key = (x, graph)
            if key not in inputs:
                inputs[key] = _quantize_input(x, node, graph, namer)
            encoding = encodings.weights[edge]
            if (edge.value, id(encoding)) not in weights:
                base, home = edge.value.name or "weight", graph_of(edge.value)
                weights[edge.value, id(encoding)] = (
                    add_initializer(home, f"{base}_quantized", quantized_weight(edge.value, encoding), namer),
                    add_initializer(home, f"{base}_scale", encoding.scale, namer),
                    add_initializer(home, f"{base}_zero_point", encoding.zero_point, namer),
                )
            _replace(node, inputs[key], weights[edge.value, id(encoding)], graph, namer)
            del encodings.weights[edge]
            del plan.weights[edge]
        if edges:
            remove_dead(model)
            ctx.note("dynamic-layers", None, f"{len(edges)} layers quantize their input at run time", layers=len(edges))
        return bool(edges)


def _quantize_input(x: ir.Value, before: ir.Node, graph: ir.Graph, namer: Namer) -> ir.Node:
    """DynamicQuantizeLinear on ``x``: right behind its producer, so that it stands before every reader."""
    base = x.name or "value"
    node = ir.node("DynamicQuantizeLinear", [x], num_outputs=3, name=namer(f"{base}_DynamicQuantizeLinear"))
    for value, what in zip(node.outputs, ("quantized", "dynamic_scale", "dynamic_zero_point"), strict=True):
        value.name = namer(f"{base}_{what}")
    node.metadata_props["onnxq.pass"] = InsertDynamic.name
    producer = x.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
    return node


def _replace(
    old: ir.Node, x: ir.Node, weight: tuple[ir.Value, ir.Value, ir.Value], graph: ir.Graph, namer: Namer
) -> None:
    """The integer chain in place of one MatMul; its last value takes the MatMul's output name over."""
    base = old.name or "MatMul"
    w, w_scale, w_zero = weight
    product = ir.node("MatMulInteger", [x.outputs[0], w, x.outputs[2], w_zero], name=namer(f"{base}_MatMulInteger"))
    wide = ir.node("Cast", [product.outputs[0]], {"to": ir.DataType.FLOAT}, name=namer(f"{base}_Cast"))
    scale = ir.node("Mul", [x.outputs[1], w_scale], name=namer(f"{base}_scales"))
    result = ir.node("Mul", [wide.outputs[0], scale.outputs[0]], name=namer(f"{base}_Mul"))
    chain = (product, wide, scale, result)
    for node in chain:
        node.outputs[0].name = namer(f"{node.name}_output")
        copy_metadata(node, old, InsertDynamic.name)
    out, new = old.outputs[0], result.outputs[0]
    new.type, new.shape = out.type, out.shape
    graph.insert_after(old, chain)
    is_output = out.is_graph_output()
    replace_uses(out, new, namer)
    if not is_output and out.name:
        out.name, new.name = namer(f"{out.name}_float"), out.name
