"""Writes specs for edges into a plan: layers, dynamic layers, values that become integers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxq.facts import Decision, Plan
from onnxq.layers import Layer, merges_into_gemm, widened_behind
from onnxq.look import attr_int, only_use, uses
from onnxq.numerics.spec import Blocked, PerTensor, TensorSpec
from onnxq.targets import IntegerOp, Target


@dataclass(frozen=True)
class Emission:
    """A plan in the making, and the target it is made for."""

    plan: Plan
    target: Target

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
        for edge in layer.inputs:
            self.plan.activations.setdefault(edge.value, self.plan.wishes.activation)
            self.plan.readers[edge] = edge.value
        quantized = self.target.pairs == "islands" and (wanted or needs_q(layer, rule))
        if quantized:
            self.integer(layer.tail)
        self.weights(layer, rule)
        if layer.weight is not None:
            granularity = self.plan.weights[layer.weight].granularity
            # The int32 bias has one scale an output channel; a bias behind blocks, or in float16, stays as it is.
            bias = None if isinstance(granularity, Blocked) else layer.bias
            if bias is not None and bias.value.dtype == ir.DataType.FLOAT:
                self.plan.biases[bias] = TensorSpec(self.target.bias.type, True, granularity)
        how = "" if quantized else ", float output"
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
        spec, rank, limit = self.weight_spec(rule), len(layer.weight_dims), rule.per_channel_max_rank
        fits = rule.per_channel and rank >= 2 and not (limit and rank > limit)
        self.plan.weights.update(dict.fromkeys(layer.weights, spec if fits else spec.at(PerTensor())))

    def weight_spec(self, rule: IntegerOp) -> TensorSpec:
        """The wish for weights, with the first type that the op takes if it does not take the one wished for."""
        wish, types = self.plan.wishes.weight, rule.weight_types
        return wish if not types or wish.qtype in types else replace(wish, qtype=types[0])

    def integer(self, value: ir.Value) -> None:
        """A value made by an integer op: everybody reads its dequantized form, graph outputs too."""
        self.plan.activations.setdefault(value, self.plan.wishes.activation)
        for edge in uses(value):
            self.plan.readers[edge] = value
        if value.is_graph_output():
            self.plan.outputs.add(value)


def needs_q(layer: Layer, rule: IntegerOp) -> bool:
    """Whether the integer kernel is reached only with a QuantizeLinear behind the layer, whoever reads its result."""
    return rule.needs_output_q or (layer.folded and only_use(layer.tail) is not None) or merges_into_gemm(layer)


def may_be_dynamic(layer: Layer, rule: IntegerOp) -> bool:
    """Whether a layer may quantize its input at run time (DynamicQuantizeLinear takes float32) and be fused right."""
    tensor = layer.weight_tensor
    if tensor is None or "dynamic" not in rule.forms or tensor.dtype != ir.DataType.FLOAT:
        return False
    return not attr_int(layer.node, "transA", 0) and not widened_behind(layer)
