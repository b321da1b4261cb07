"""Writes specs for edges into a plan: layers, dynamic layers, values that become integers, bridges between regions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.facts import Decision, Edge, Ends, Plan
from onnxq.layers import Layer, merges_into_gemm, widened_behind
from onnxq.look import attr_int, only_use, uses
from onnxq.numerics.spec import Blocked, PerTensor, TensorSpec
from onnxq.planning.regions import known_ranges, settle
from onnxq.targets import IntegerOp, Target


@dataclass(frozen=True)
class Emission:
    """A plan in the making, and the target it is made for.

    Attributes:
        plan: The plan.
        target: The target.
        wanted: The spec at which each use of an integer op wants to read.
        made: Values made by integer ops: their producer decides their spec.
        given: Ranges that the caller gave.
    """

    plan: Plan
    target: Target
    wanted: dict[Edge, TensorSpec] = field(default_factory=dict)
    made: set[ir.Value] = field(default_factory=set)
    given: dict[ir.Value, Ends] = field(default_factory=dict)

    def decide(self, node: ir.Node, status: str, code: str, reason: str) -> None:
        """Say what becomes of a node."""
        self.plan.decisions[node] = Decision(status, code, reason)

    def layer(self, layer: Layer, rule: IntegerOp, wanted: bool) -> None:
        """A layer on integers.

        Args:
            layer: The layer.
            rule: Its rule.
            wanted: Whether an integer op reads its result.
        """
        spec = self.spec(layer.node)
        for edge in layer.inputs:
            self.read(edge, spec)
        quantized = self.target.pairs == "islands" and (wanted or needs_q(layer, rule))
        if quantized:
            self.integer(layer.tail, spec, layer.node)
        self.weights(layer, rule)
        if layer.weight is not None:
            granularity = self.plan.weights[layer.weight].granularity
            # The int32 bias has one scale an output channel; a bias behind blocks stays as it is.
            # Beside float8 it is int32, too: onnxruntime would make a float one so while loading, and let it overflow.
            bias = None if isinstance(granularity, Blocked) else layer.bias
            if bias is not None and bias.value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
                self.plan.biases[bias] = TensorSpec(self.target.bias.type, True, granularity)
        how = "" if quantized else ", float output"
        if layer.node in self.plan.wishes.nodes:
            types = [spec, *(self.plan.weights[edge] for edge in layer.weights[:1])]
            how = f", {' x '.join(t.qtype.name for t in types)}{how}"
        if layer.recurrent is not None:
            how += "; the hidden state, the other operand of its recurrence weight, is internal and stays float"
        self.decide(layer.node, "integer", "layer", f"{layer.node.op_type} on integers{how}")

    def dynamic(self, layer: Layer, rule: IntegerOp, code: str, reason: str) -> None:
        """A layer whose input is quantized at run time."""
        self.weights(layer, rule)
        self.decide(layer.node, "dynamic", code, reason)
        for inner in layer.body:
            self.decide(inner, "float", "behind-dynamic-layer", "in float behind a layer with dynamic input")

    def weights(self, layer: Layer, rule: IntegerOp) -> None:
        """A spec for each constant weight of a layer: of a type its op takes, per tensor where nothing finer fits."""
        spec = self.weight_spec(layer.node, rule)
        rank, limit, own = len(layer.weight_dims), rule.per_channel_max_rank, self.plan.wishes.uses
        fits = rule.per_channel and rank >= 2 and not (limit and rank > limit)
        for edge in layer.weights:
            self.plan.weights[edge] = own.get(edge) or (spec if fits else spec.at(PerTensor()))

    def weight_spec(self, node: ir.Node, rule: IntegerOp) -> TensorSpec:
        """The wish for a node's weights, with the first type that its op takes if it does not take the general one.

        Raises:
            OptionError: The type was asked for this very node.
        """
        wish, types = self.plan.wishes.of(node).weight, rule.weight_types
        if not types or wish.qtype in types:
            return wish
        if wish.qtype != self.plan.wishes.weight.qtype:
            listed = " or ".join(t.name for t in types)
            raise OptionError(f"{node.name}: {self.target.name} takes no {wish.qtype} data in {node.op_type}: {listed}")
        return replace(wish, qtype=types[0])

    def spec(self, node: ir.Node) -> TensorSpec:
        """The spec at which a node reads and makes activations."""
        return self.plan.wishes.of(node).activation or self.plan.wishes.activation

    def read(self, edge: Edge, spec: TensorSpec) -> None:
        """A use by an integer op."""
        self.plan.activations.setdefault(edge.value, spec)
        self.plan.readers[edge] = edge.value
        self.wanted[edge] = self.plan.wishes.uses.get(edge, spec)

    def integer(self, value: ir.Value, spec: TensorSpec, maker: ir.Node) -> None:
        """A value made by an integer op: everybody reads its dequantized form, graph outputs too."""
        self.plan.activations[value] = self.plan.wishes.values.get(value, spec)
        self.made.add(value)
        self._by_wish(value, maker)
        for edge in uses(value):
            self.plan.readers[edge] = value
        if value.is_graph_output():
            self.plan.outputs.add(value)

    def moved(self, source: ir.Value, value: ir.Value, maker: ir.Node) -> None:
        """A value that holds data of another one: it carries the same encoding."""
        self.integer(value, self.plan.activations[source], maker)
        self.plan.activations[value] = self.plan.activations[source]
        self.plan.shared.append([source, value])

    def finish(self) -> None:
        """Settle specs, bridges and known ranges once all nodes have spoken."""
        settle(self.plan, self.wanted, self.made)
        ranges = {v: ends for v, ends in self.plan.wishes.ranges.items() if v in self.plan.activations}
        known_ranges(self.plan, {**self.given, **ranges})

    def _by_wish(self, value: ir.Value, maker: ir.Node) -> None:
        wish = self.plan.wishes.of(maker)
        if wish.range is not None:
            self.given[value] = wish.range
        if wish.method:
            self.plan.methods[value] = wish.method


def needs_q(layer: Layer, rule: IntegerOp) -> bool:
    """Whether the integer kernel is reached only with a QuantizeLinear behind the layer, whoever reads its result."""
    return rule.needs_output_q or (layer.folded and only_use(layer.tail) is not None) or merges_into_gemm(layer)


def may_be_dynamic(layer: Layer, rule: IntegerOp) -> bool:
    """Whether a layer may quantize its input at run time (DynamicQuantizeLinear takes float32) and be fused right."""
    tensor = layer.weight_tensor
    if tensor is None or "dynamic" not in rule.forms or tensor.dtype != ir.DataType.FLOAT:
        return False
    return not attr_int(layer.node, "transA", 0) and not widened_behind(layer)
