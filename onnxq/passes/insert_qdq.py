"""`insert-qdq`: the only pass that puts QuantizeLinear / DequantizeLinear pairs into a graph."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import ClassVar

import onnx_ir as ir

from onnxq.biases.layers import bias_rank, stored_bias
from onnxq.edit import PASS_KEY, Namer, add_initializer, graph_of, remove_dead, replace_uses
from onnxq.errors import ValidationError
from onnxq.facts import Edge, Encodings, Fact, Goal, Plan
from onnxq.layers import Layer, read_layer
from onnxq.look import attr_int, constant_tensor, nbytes, onnx_op
from onnxq.numerics.spec import Encoding, PerAxis
from onnxq.numerics.tiles import scale_shape
from onnxq.opsets.pairs import check_opset, domain_of
from onnxq.passbase import Context, Pass
from onnxq.weights import Array, as_tensor, onnx_dtype, quantized_bias, quantized_weight

_Owner = ir.Graph | ir.Node
_PACKED_IR = 10  # first IR version with 4-bit tensors (onnx.proto)


@dataclass(frozen=True, kw_only=True)
class InsertQdq(Pass):
    """`Plan`, `Encodings` -> graph: ``x -> Q -> DQ -> readers``, ``integer weight -> DQ -> op``, ``int32 bias -> DQ``.

    One Q and one DQ a value, and one more behind the first for readers of each other type; one integer copy and DQ a
    weight encoding; those of weight-only products lie in the node's own graph, and where the target fuses them
    only so, each use has its own. Scale, zero point and
    axis are explicit; only for targets that want it so, the zero point of symmetric weights is left out. Where the plan
    says so, pairs that the opset does not have are onnxruntime's own operators (com.microsoft). Graph outputs keep
    their names. Integer weights are lazy: quantized when written.
    """

    name: ClassVar[str] = "insert-qdq"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})
    idempotent: ClassVar[bool] = False  # its facts describe the graph without pairs and go stale with the insertion

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Insert all pairs; True if there was anything to insert.

        Raises:
            OptionError: The model's opset has no pairs of the planned types.
            ValidationError: A weight or bias has more or fewer scales than channels or blocks.
        """
        plan, encodings, goal = ctx.get(Plan), ctx.get(Encodings), ctx.maybe(Goal)
        check_opset(model, encodings, plan.wishes.contrib)
        writer = _Writer(model, Namer(model), goal is None or goal.target.weight_zero_point, plan.wishes.contrib)
        layers = dict.fromkeys(edge.node for edge in encodings.weights)
        # Read before any pair hides a weight.
        biases = {edge: stored_bias(edge, encodings) for edge in encodings.biases}
        read = [read_layer(node, plan.wishes.banned) for node in layers]
        ranks = {r.bias: bias_rank(r, encodings) for r in read if isinstance(r, Layer) and r.bias is not None}
        copies = goal is not None and goal.target.weight_only_copies
        exact = goal is not None and goal.target.exact_wide_products
        for edge, encoding in encodings.weights.items():
            status = plan.decisions[edge.node].status
            if status != "dynamic":
                from_end = exact and _is_wide_product(edge.node, encodings)
                writer.weight(edge, encoding, status == "weight-only", copies, from_end)
        for edge, (name, size) in writer.copied.items():
            why = f"'{name}' has several readers: integers of its own for each, or the runtime fuses none"
            ctx.note("weight-copied", edge.node, why, bytes=size)
        for edge, values in biases.items():
            writer.bias(edge, encodings.biases[edge], values, ranks.pop(edge, 1))
        for edge, rank in ranks.items():
            if rank > 1:
                writer.widen(edge, rank)
        readers: dict[ir.Value, list[Edge]] = {}
        for edge, value in plan.readers.items():
            if value in encodings.activations:
                readers.setdefault(value, []).append(edge)
        for value, encoding in encodings.activations.items():
            found: dict[int, _Readers] = {}
            for edge in readers.get(value, []):
                bridge = encodings.bridges.get(edge, encoding)
                found.setdefault(id(bridge), _Readers(bridge)).add(edge, layers, graph_of(value))
            own = found.pop(id(encoding), _Readers(encoding))
            writer.activation(value, own, list(found.values()), value in plan.outputs)
        changed = bool(encodings.activations or writer.pairs)
        if changed:
            remove_dead(model)
            ctx.note("pairs-inserted", None, f"{writer.pairs} Q/DQ pairs inserted", pairs=writer.pairs)
        return changed


def _check_scales(edge: Edge, encoding: Encoding, data: ir.TensorProtocol) -> None:
    """Refuse a constant whose scales are not one a channel (one a block, one in all)."""
    dims = tuple(int(d) for d in data.shape.numpy())
    wanted = scale_shape(dims, encoding.spec.granularity)
    for what, found in (("scale", encoding.scale.shape), ("zero point", encoding.zero_point.shape)):
        if found != wanted:
            raise ValidationError(
                f"{edge.node.name} ({edge.node.op_type}), '{edge.value.name}' of shape {list(dims)}: "
                f"{encoding.spec.granularity} needs a {what} of shape {list(wanted)}, got {list(found)}"
            )


def _is_wide_product(node: ir.Node, encodings: Encodings) -> bool:
    """Whether this is a matrix product with an activation of more than 8 bits."""
    if not onnx_op(node, "MatMul", "Gemm") or attr_int(node, "transB", 0):
        return False
    found = [encodings.read_by(Edge(node, index)) for index in (0, 1)]
    return any(x is not None and x.spec.qtype.bits > 8 for x in found)


@dataclass
class _Readers:
    """Who reads a value at one encoding.

    Attributes:
        encoding: The encoding.
        edges: All uses.
        apart: Those that read it through a DequantizeLinear of their own, in their body.
    """

    encoding: Encoding
    edges: list[Edge] = field(default_factory=list)
    apart: list[Edge] = field(default_factory=list)

    def add(self, edge: Edge, layers: Container[ir.Node], home: ir.Graph) -> None:
        """One more use. onnxruntime fuses a layer in a body only with pairs in that body."""
        self.edges.append(edge)
        if edge.node in layers and edge.node.graph is not home:
            self.apart.append(edge)


@dataclass
class _Writer:
    """Makes pairs, each parameter and each integer copy once.

    Attributes:
        model: What is written into.
        namer: Fresh names.
        zero_points: Whether a zero point of 0 is written for symmetric weights.
        contrib: Whether pairs that the opset does not have are written in onnxruntime's domain.
        pairs: Pairs written.
        copied: Uses that got a further integer copy of their weight, with the weight's name and the copy's bytes.
    """

    model: ir.Model
    namer: Namer
    zero_points: bool = True
    contrib: bool = False
    pairs: int = 0
    copied: dict[Edge, tuple[str, int]] = field(default_factory=dict)
    _params: dict[tuple[int, _Owner], tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    _copies: dict[tuple[ir.Value, int, _Owner], ir.Value] = field(default_factory=dict)
    _stored: set[tuple[ir.Value, int]] = field(default_factory=set)
    _dequantized: dict[tuple[ir.Value, int, _Owner], ir.Value] = field(default_factory=dict)
    _keep: list[Encoding] = field(default_factory=list)  # ids above stay unique while these live

    def activation(self, value: ir.Value, readers: _Readers, bridges: list[_Readers], is_output: bool) -> None:
        """``value -> Q -> DQ -> readers`` beside the value's producer, and ``-> Q -> DQ`` behind it for each bridge."""
        if not readers.edges and not bridges and not is_output:
            return
        dq = self._pair(value, value, readers, value.producer())
        if is_output:
            q = dq.inputs[0].producer() if dq.inputs[0] is not None else None
            assert q is not None
            replace_uses(value, dq.outputs[0], self.namer)
            q.replace_input_with(0, value)
        for bridge in bridges:
            self._pair(dq.outputs[0], value, bridge, dq)

    def _pair(self, source: ir.Value, value: ir.Value, readers: _Readers, behind: ir.Node | None) -> ir.Node:
        """``source -> Q -> DQ -> readers`` behind a node or in front of all; returns the DQ."""
        graph, base, encoding = graph_of(value), value.name or "value", readers.encoding
        scale, zero = self._parameters(graph, base, encoding, graph)
        name, output = f"{base}_QuantizeLinear", f"{base}_quantized"
        q = self._node("QuantizeLinear", [source, scale, zero], name, output, encoding)
        q.outputs[0].dtype = onnx_dtype(encoding.spec.qtype)
        dq = self._dequantize(q.outputs[0], scale, zero, base, encoding, value)
        if behind is None:
            graph.insert_before(graph[0], (q, dq))
        else:
            graph.insert_after(behind, (q, dq))
        for edge in readers.edges:
            edge.node.replace_input_with(edge.index, dq.outputs[0])
        inside: dict[ir.Graph, ir.Value] = {}
        for edge in readers.apart:
            body = edge.node.graph
            assert isinstance(body, ir.Graph)
            if body not in inside:
                beside = self._dequantize(q.outputs[0], scale, zero, base, encoding, value)
                body.insert_before(edge.node, beside)
                inside[body] = beside.outputs[0]
            edge.node.replace_input_with(edge.index, inside[body])
        self.pairs += 1
        return dq

    def weight(self, edge: Edge, encoding: Encoding, weight_only: bool, copies: bool, from_end: bool) -> None:
        """``integer copy -> DQ -> op``; uses with the same encoding in one graph share the DQ.

        All share the integers, too, except those of weight-only products: onnxruntime (1.32) fuses them to MatMulNBits
        and then looks for integers in the node's own graph only ("Missing required weight"); with ``copies`` they are
        not shared at all.

        Args:
            edge: The use.
            encoding: Its encoding.
            weight_only: Whether the activations stay float.
            copies: Whether weight-only layers share no integers.
            from_end: Whether the axis is written as a negative number.
        """
        graph, data = edge.node.graph, quantized_weight(edge.value, encoding)
        assert isinstance(graph, ir.Graph)
        home = graph if weight_only and onnx_op(edge.node, "MatMul", "Gemm") else graph_of(edge.value)
        self._use(edge, encoding, data, home, edge.node if weight_only and copies else None, from_end)

    def bias(self, edge: Edge, encoding: Encoding, values: Array, rank: int) -> None:
        """``int32 copy of shape [channels], or widened -> DQ -> op``."""
        if values.ndim == 1 and rank > 1:
            values = values.reshape([1] * (rank - 1) + [-1])
        if encoding.scale.ndim:
            encoding = replace(encoding, spec=encoding.spec.at(PerAxis(values.ndim - 1)))
        self._use(edge, encoding, quantized_bias(values, encoding), graph_of(edge.value), None)

    def widen(self, edge: Edge, rank: int) -> None:
        """A float bias with leading axes of length 1."""
        tensor = constant_tensor(edge.value)
        assert tensor is not None
        wide = tensor.numpy().reshape([1] * (rank - tensor.shape.rank()) + list(tensor.shape.numpy()))
        copy = add_initializer(graph_of(edge.value), f"{edge.value.name}_wide", wide, self.namer)
        edge.node.replace_input_with(edge.index, copy)

    def _use(
        self,
        edge: Edge,
        encoding: Encoding,
        data: ir.TensorProtocol,
        home: ir.Graph,
        alone: ir.Node | None,
        from_end: bool = False,
    ) -> None:
        """Let one use read ``data``, which goes into ``home``, through a DQ; ``alone`` shares with nobody."""
        reader, value = edge.node.graph, edge.value
        assert isinstance(reader, ir.Graph)
        key = (value, id(encoding), alone or reader)
        if key not in self._dequantized:
            self._keep.append(encoding)
            _check_scales(edge, encoding, data)
            base = value.name or "weight"
            known = (value, id(encoding), alone or home)
            if known[:2] in self._stored and known not in self._copies:
                self.copied[edge] = base, nbytes(data) + encoding.scale.nbytes
            self._stored.add(known[:2])
            if known not in self._copies:
                self._copies[known] = add_initializer(home, f"{base}_quantized", data, self.namer)
            scale, zero = self._parameters(home, base, encoding, alone or home)
            plain = not self.zero_points and encoding.spec.symmetric and not encoding.zero_point.any()
            dq = self._dequantize(self._copies[known], scale, None if plain else zero, base, encoding, value)
            if from_end and encoding.axis is not None:
                dq.attributes["axis"] = ir.AttrInt64("axis", encoding.axis - len(data.shape))
            reader.insert_before(edge.node, dq)
            self._dequantized[key] = dq.outputs[0]
            self.pairs += 1
        edge.node.replace_input_with(edge.index, self._dequantized[key])

    def _parameters(self, graph: ir.Graph, base: str, encoding: Encoding, owner: _Owner) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point, once for each owner: a graph, or a node that shares with nobody."""
        key = (id(encoding), owner)
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
        self, data: ir.Value, scale: ir.Value, zero: ir.Value | None, base: str, encoding: Encoding, like: ir.Value
    ) -> ir.Node:
        inputs = [data, scale] if zero is None else [data, scale, zero]
        node = self._node("DequantizeLinear", inputs, f"{base}_DequantizeLinear", f"{base}_dequantized", encoding)
        node.outputs[0].type, node.outputs[0].shape = scale.type, like.shape if data.shape is None else data.shape
        return node

    def _node(self, op: str, inputs: list[ir.Value], name: str, output: str, encoding: Encoding) -> ir.Node:
        given = {"axis": encoding.axis, "block_size": encoding.block_size}
        attributes = [ir.AttrInt64(key, value) for key, value in given.items() if value is not None]
        metadata = {PASS_KEY: InsertQdq.name}
        domain = domain_of(encoding, self.model.opset_imports.get("", 0), self.contrib)
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        if encoding.spec.qtype.bits < 8:
            self.model.ir_version = max(self.model.ir_version, _PACKED_IR)
        node = ir.Node(domain, op, inputs, attributes, name=self.namer(name), metadata_props=metadata)
        node.outputs[0].name = self.namer(output)
        return node
