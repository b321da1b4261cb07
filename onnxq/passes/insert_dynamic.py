"""`insert-dynamic`: layers whose input is quantized at run time, in the integer form every runtime fuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer, add_initializer, copy_metadata, graph_of, remove_dead, replace_uses
from onnxq.facts import Edge, Encodings, Fact, Plan
from onnxq.look import attr_int, onnx_op
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context, Pass
from onnxq.weights import quantized_weight
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class InsertDynamic(Pass):
    """``MatMul(x, w) -> Mul(Cast(MatMulInteger(x_q, w_q)), x_scale * w_scale)``, ``x_q`` by DynamicQuantizeLinear.

    A Gemm becomes the same, its weight transposed where need be, with an Add for its bias. Values read by several such
    layers are quantized once. This integer form is used rather than DQ -> MatMul since onnxruntime merges a MatMul with
    its bias Add to a float Gemm before it looks for pairs, and then fuses nothing (measured with 1.32: 14 times slower
    at 128 x 384 x 384); the integer form is fused with and without a bias.
    """

    name: ClassVar[str] = "insert-dynamic"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    keeps: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    idempotent: ClassVar[bool] = False  # its facts describe layers that it replaces

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every layer the plan calls dynamic; True if there was one."""
        plan, encodings = ctx.get(Plan), ctx.get(Encodings)
        edges = [edge for edge in encodings.weights if plan.decisions[edge.node].status == "dynamic"]
        writer = _Writer(Namer(model), plan)
        for edge in edges:
            writer.replace(edge, encodings.weights.pop(edge))
            del plan.weights[edge]
        if edges:
            remove_dead(model)
            ctx.note(
                "dynamic-layers",
                None,
                f"input quantized at run time in {plural(len(edges), 'layer')}",
                layers=len(edges),
            )
        return bool(edges)


@dataclass
class _Writer:
    """Quantizes each input and each weight once."""

    namer: Namer
    plan: Plan
    _inputs: dict[tuple[ir.Value, ir.Graph], ir.Node] = field(default_factory=dict)
    _weights: dict[tuple[ir.Value, int, bool], tuple[ir.Value, ir.Value, ir.Value]] = field(default_factory=dict)
    _keep: list[Encoding] = field(default_factory=list)  # ids above stay unique while these live

    def replace(self, edge: Edge, encoding: Encoding) -> None:
        """The integer chain in place of one layer; its last value takes the layer's output name over."""
        old, graph, x = edge.node, edge.node.graph, edge.node.inputs[0]
        assert isinstance(graph, ir.Graph) and x is not None
        base = old.name or old.op_type
        quantized = self._input(x, old, graph)
        w, w_scale, w_zero = self._weight(edge, encoding)
        x_q, x_scale, x_zero = quantized.outputs
        product = ir.node("MatMulInteger", [x_q, w, x_zero, w_zero], name=self.namer(f"{base}_MatMulInteger"))
        wide = ir.node("Cast", [product.outputs[0]], {"to": ir.DataType.FLOAT}, name=self.namer(f"{base}_Cast"))
        scale = ir.node("Mul", [x_scale, w_scale], name=self.namer(f"{base}_scales"))
        scaled = ir.node("Mul", [wide.outputs[0], scale.outputs[0]], name=self.namer(f"{base}_Mul"))
        chain = [product, wide, scale, scaled]
        if onnx_op(old, "Gemm") and len(old.inputs) > 2 and old.inputs[2] is not None:
            chain.append(ir.node("Add", [scaled.outputs[0], old.inputs[2]], name=self.namer(f"{base}_Add")))
        for node in chain:
            node.outputs[0].name = self.namer(f"{node.name}_output")
            copy_metadata(node, old, InsertDynamic.name)
        out, new = old.outputs[0], chain[-1].outputs[0]
        new.type, new.shape = out.type, out.shape
        graph.insert_after(old, chain)
        is_output = out.is_graph_output()
        replace_uses(out, new, self.namer)
        if not is_output and out.name:
            out.name, new.name = self.namer(f"{out.name}_float"), out.name

    def _input(self, x: ir.Value, reader: ir.Node, graph: ir.Graph) -> ir.Node:
        """DynamicQuantizeLinear on ``x``: right behind its producer, so that it stands before every reader.

        Where the plan lets the layer read ``x`` from a pair, that holds for this node now: ``x`` itself must have no
        reader but its QuantizeLinear, or the op in front of it is not fused.
        """
        paired = self.plan.readers.pop(Edge(reader, 0), None)
        if (x, graph) in self._inputs:
            return self._inputs[x, graph]
        base = x.name or "value"
        node = ir.node("DynamicQuantizeLinear", [x], num_outputs=3, name=self.namer(f"{base}_DynamicQuantizeLinear"))
        for value, what in zip(node.outputs, ("quantized", "dynamic_scale", "dynamic_zero_point"), strict=True):
            value.name = self.namer(f"{base}_{what}")
        node.metadata_props[PASS_KEY] = InsertDynamic.name
        producer = x.producer()
        if producer is not None and producer.graph is graph:
            graph.insert_after(producer, node)
        else:
            graph.insert_before(graph[0], node)
        if paired is not None:
            self.plan.readers[Edge(node, 0)] = paired
        self._inputs[x, graph] = node
        return node

    def _weight(self, edge: Edge, encoding: Encoding) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Integer weight with its output channels last, scale, zero point."""
        turned = onnx_op(edge.node, "Gemm") and attr_int(edge.node, "transB", 0) != 0
        key = (edge.value, id(encoding), turned)
        if key not in self._weights:
            self._keep.append(encoding)
            base, home = edge.value.name or "weight", graph_of(edge.value)
            integers = quantized_weight(edge.value, encoding)
            self._weights[key] = (
                add_initializer(home, f"{base}_quantized", _turned(integers) if turned else integers, self.namer),
                add_initializer(home, f"{base}_scale", encoding.scale, self.namer),
                add_initializer(home, f"{base}_zero_point", encoding.zero_point, self.namer),
            )
        return self._weights[key]


def _turned(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    return ir.LazyTensor(
        lambda: ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()[::-1]),
    )
