"""`insert-qdq`: the only pass that puts QuantizeLinear / DequantizeLinear pairs into a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer, add_initializer, graph_of, remove_dead, replace_uses
from onnxq.errors import OptionError
from onnxq.facts import Edge, Encodings, Fact, Plan
from onnxq.layers import Layer, read_layer
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context, Pass
from onnxq.passes.guard_bias import channel_bias
from onnxq.weights import Array, as_tensor, onnx_dtype, quantized_bias, quantized_weight

Make = Callable[[], ir.TensorProtocol]


@dataclass(frozen=True, kw_only=True)
class InsertQdq(Pass):
    """`Plan`, `Encodings` -> graph: ``x -> Q -> DQ -> readers``, ``integer weight -> DQ -> op``, ``int32 bias -> DQ``.

    One Q and one DQ a value, one integer copy and one DQ a weight encoding. Scale and zero point are always explicit,
    the axis too where there is one. Graph outputs keep their names. Integer weights are lazy: quantized when written.
    """

    name: ClassVar[str] = "insert-qdq"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    idempotent: ClassVar[bool] = False  # its facts describe the graph without pairs and go stale with the insertion

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Insert all pairs; True if there was anything to insert.

        Raises:
            OptionError: The model's opset has no pairs of the planned types.
        """
        plan, encodings = ctx.get(Plan), ctx.get(Encodings)
        _check_opset(model, encodings)
        writer = _Writer(model, Namer(model))
        layers = dict.fromkeys(edge.node for edge in encodings.weights)
        # Read before any pair hides a weight.
        biases = {
            layer.bias: channel_bias(layer)
            for layer in (read_layer(node, plan.wishes.banned) for node in layers)
            if isinstance(layer, Layer) and layer.bias in encodings.biases
        }
        for edge, encoding in encodings.weights.items():
            if plan.decisions[edge.node].status != "dynamic":
                writer.weight(edge, encoding)
        for edge, encoding in encodings.biases.items():
            writer.bias(edge, encoding, biases[edge])
        readers: dict[ir.Value, list[Edge]] = {}
        for edge, value in plan.readers.items():
            if value in encodings.activations:
                readers.setdefault(value, []).append(edge)
        for value, encoding in encodings.activations.items():
            found = readers.get(value, [])
            # onnxruntime fuses a layer in a body only with pairs in that body.
            apart = [edge for edge in found if edge.node in layers and edge.node.graph is not graph_of(value)]
            writer.activation(value, encoding, found, value in plan.outputs, apart)
        changed = bool(encodings.activations or writer.pairs)
        if changed:
            remove_dead(model)
            ctx.note("pairs-inserted", None, f"{writer.pairs} Q/DQ pairs inserted", pairs=writer.pairs)
        return changed


def _check_opset(model: ir.Model, encodings: Encodings) -> None:
    opset = model.opset_imports.get("", 0)
    used = [*encodings.activations.values(), *encodings.weights.values(), *encodings.biases.values()]
    needed = max((e.spec.qtype.since for e in used), default=0)
    if any(e.axis is not None for e in used):
        needed = max(needed, 13)
    if any(e.scale.dtype != np.float32 for e in used):
        needed = max(needed, 19)
    if any(e.block_size is not None for e in used):
        needed = max(needed, 21)
    if opset < needed:
        raise OptionError(f"the planned Q/DQ pairs need opset {needed}, the model has {opset}: run upgrade-opset first")


@dataclass
class _Writer:
    """Makes pairs, each parameter and each integer copy once."""

    model: ir.Model
    namer: Namer
    pairs: int = 0
    _params: dict[tuple[int, ir.Graph], tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    _copies: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    _dequantized: dict[tuple[ir.Value, int, int], ir.Value] = field(default_factory=dict)
    _keep: list[Encoding] = field(default_factory=list)  # ids above stay unique while these live

    def activation(
        self, value: ir.Value, encoding: Encoding, readers: list[Edge], is_output: bool, apart: list[Edge]
    ) -> None:
        """``value -> Q -> DQ -> readers`` beside the value's producer; ``apart`` are read through a DQ of their own."""
        if not readers and not is_output:
            return
        graph, base = graph_of(value), value.name or "value"
        scale, zero = self._parameters(graph, base, encoding)
        q = self._node("QuantizeLinear", [value, scale, zero], f"{base}_QuantizeLinear", f"{base}_quantized", encoding)
        q.outputs[0].dtype = onnx_dtype(encoding.spec.qtype)
        dq = self._dequantize(q.outputs[0], scale, zero, base, encoding, value)
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], (q, dq))
        else:
            graph.insert_after(producer, (q, dq))
        if is_output:
            replace_uses(value, dq.outputs[0], self.namer)
            q.replace_input_with(0, value)
        else:
            for edge in readers:
                edge.node.replace_input_with(edge.index, dq.outputs[0])
        inside: dict[ir.Graph, ir.Value] = {}
        for edge in apart:
            body = edge.node.graph
            assert isinstance(body, ir.Graph)
            if body not in inside:
                beside = self._dequantize(q.outputs[0], scale, zero, base, encoding, value)
                body.insert_before(edge.node, beside)
                inside[body] = beside.outputs[0]
            edge.node.replace_input_with(edge.index, inside[body])
        self.pairs += 1

    def weight(self, edge: Edge, encoding: Encoding) -> None:
        """``integer copy -> DQ -> op``; uses with the same encoding in one graph share both."""
        value = edge.value
        self._use(edge, encoding, value, lambda: quantized_weight(value, encoding))

    def bias(self, edge: Edge, encoding: Encoding, bias: Array) -> None:
        """``int32 copy of shape [channels] -> DQ -> op``."""
        self._use(edge, encoding, edge.value, lambda: quantized_bias(bias, encoding))

    def _use(self, edge: Edge, encoding: Encoding, value: ir.Value, make: Make) -> None:
        reader = edge.node.graph
        assert isinstance(reader, ir.Graph)
        key = (value, id(encoding), id(reader))
        if key not in self._dequantized:
            self._keep.append(encoding)
            base = value.name or "weight"
            home = graph_of(value)
            copy = self._copies.get(key[:2])
            if copy is None:
                copy = self._copies[key[:2]] = add_initializer(home, f"{base}_quantized", make(), self.namer)
            scale, zero = self._parameters(home, base, encoding)
            dq = self._dequantize(copy, scale, zero, base, encoding, value)
            reader.insert_before(edge.node, dq)
            self._dequantized[key] = dq.outputs[0]
            self.pairs += 1
        edge.node.replace_input_with(edge.index, self._dequantized[key])

    def _parameters(self, graph: ir.Graph, base: str, encoding: Encoding) -> tuple[ir.Value, ir.Value]:
        key = (id(encoding), graph)
        if key not in self._params:
            self._keep.append(encoding)
            self._params[key] = (
                add_initializer(graph, f"{base}_scale", encoding.scale, self.namer),
                add_initializer(
                    graph, f"{base}_zero_point", as_tensor(encoding.zero_point, encoding.spec.qtype), self.namer
                ),
            )
        return self._params[key]

    def _dequantize(
        self, data: ir.Value, scale: ir.Value, zero: ir.Value, base: str, encoding: Encoding, like: ir.Value
    ) -> ir.Node:
        node = self._node(
            "DequantizeLinear", [data, scale, zero], f"{base}_DequantizeLinear", f"{base}_dequantized", encoding
        )
        node.outputs[0].type, node.outputs[0].shape = scale.type, like.shape if data.shape is None else data.shape
        return node

    def _node(self, op: str, inputs: list[ir.Value], name: str, output: str, encoding: Encoding) -> ir.Node:
        given = {"axis": encoding.axis, "block_size": encoding.block_size}
        attributes = [ir.AttrInt64(key, value) for key, value in given.items() if value is not None]
        metadata = {PASS_KEY: InsertQdq.name}
        node = ir.Node("", op, inputs, attributes, name=self.namer(name), metadata_props=metadata)
        node.outputs[0].name = self.namer(output)
        return node
