"""The planner: which values become integers so that the runtime really fuses them. No pass, no data: graph and target.

Two sweeps. Forward: which values *can* be integers (outputs of layers, and of ops all of whose operands can). Backward:
which of those *are wanted*, since an op between integers pays only if an integer op reads its result. The conditions
per op are the target's (`onnxq.targets`); the shape of the islands follows what onnxruntime fuses: a Q behind every
Conv, none between an op and its bias or Relu, data movement at one shared encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq import ops
from onnxq.facts import Decision, Edge, Plan, Wishes
from onnxq.layers import MAX_TERMS, Layer, data_inputs, folded_behind, folds, is_float, read_layer
from onnxq.look import constant_tensor, dims_of, is_constant, onnx_op, uses
from onnxq.numerics.spec import PerTensor, TensorSpec
from onnxq.targets import IntegerOp, Target

# Ranges known without data (operator texts).
FIXED = {"Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0)}
# A layer with so few products per value is bound by memory: pairs around it cost more than its integer kernel saves
# (depthwise convolutions between HardSwish: measured on PP-LCNet 5.05 ms with them on integers, 3.12 ms without).
FEW_TERMS = 48


@dataclass
class Planner:
    """One planning run: target and wishes in, `make` out."""

    target: Target
    wishes: Wishes
    plan: Plan = field(init=False)
    _layers: dict[ir.Node, Layer] = field(default_factory=dict)
    _tails: dict[ir.Node, ir.Value] = field(default_factory=dict)
    _inside: dict[ir.Node, ir.Node] = field(default_factory=dict)
    _rules: dict[ir.Node, IntegerOp] = field(default_factory=dict)
    _able: set[ir.Value] = field(default_factory=set)
    _wanted: set[ir.Value] = field(default_factory=set)

    def make(self, model: ir.Model) -> Plan:
        """Plan the main graph, then what can be done without ranges in its subgraphs."""
        self.plan = Plan(self.wishes)
        nodes = list(model.graph)
        for node in nodes:
            self._forward(node)
        for node in reversed(nodes):
            self._backward(node)
        for node in nodes:
            self._emit(node)
        for graph in model.graph.subgraphs():
            if graph is not model.graph:
                for node in graph:
                    self._in_body(node)
        return self.plan

    # -- forward: what can be an integer -------------------------------------------------------------------------

    def _forward(self, node: ir.Node) -> None:
        if node in self._inside:
            owner = self._inside[node].name or self._inside[node].op_type
            self._decide(node, "integer", "part-of-layer", f"computed inside {owner}")
            return
        why = self._unfit(node)
        if why is not None:
            self.plan.decisions[node] = why
            return
        rule = self._rules[node]
        if rule.kind == "matmul-like":
            self._forward_layer(node)
            return
        data = data_inputs(node, rule)
        for edge in data:
            if is_constant(edge.value):
                self._decide(node, "float", "constant-operand", f"{node.op_type} with a constant operand runs in float")
                return
            if edge.value not in self._able:
                name = edge.value.name
                self._decide(node, "float", "float-operand", f"its operand '{name}' is made by a float op")
                return
        folded = folded_behind(node.outputs[0], self.wishes.banned) if rule.kind == "binary" else None
        if folded is not None:
            self._inside[folded] = node
            self._tails[node] = folded.outputs[0]
        self._able.update(self._results(node))

    def _results(self, node: ir.Node) -> list[ir.Value]:
        """The values an integer op delivers: behind a folded Relu where there is one."""
        return [self._tails[node]] if node in self._tails else list(node.outputs)

    def _unfit(self, node: ir.Node) -> Decision | None:
        """Why a node stays float whatever stands around it."""
        if node in self.wishes.banned:
            return self.wishes.banned[node]
        rule = self.target.integer_ops.get(node.op_type) if node.domain == "" else None
        if node in self.wishes.forced and ops.info(node) is not None:
            rule = rule or IntegerOp("matmul-like", per_channel=True)
        if rule is None:
            what = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            return Decision("float", "no-integer-kernel", f"{self.target.name} has no integer kernel for {what}")
        if rule.kind == "folds" and not folds(node):
            return Decision(
                "float", "not-from-zero", f"{node.op_type} clips elsewhere than at 0: no Q makes it redundant"
            )
        misfit = rule.misfit({k: a.value for k, a in node.attributes.items() if not a.is_ref()})
        if misfit:
            return Decision("float", "attribute", misfit)
        data = data_inputs(node, rule)
        types = {e.value.dtype for e in data if e.value.dtype is not None}
        if any(t.name.lower() not in _names(self.target) for t in types):
            kinds = ", ".join(sorted(t.name.lower() for t in types))
            return Decision("float", "data-type", f"{self.target.name} has no integer kernel for {kinds} data")
        if not types and rule.kind != "matmul-like" and not all(e.value in self._able for e in data):
            return Decision("float", "unknown-type", "the element type of its input is not known")
        self._rules[node] = rule
        return None

    def _forward_layer(self, node: ir.Node) -> None:
        layer = read_layer(node, self.wishes.banned)
        if isinstance(layer, str):
            del self._rules[node]
            self._decide(node, "float", "not-a-layer", layer)
            return
        if layer.weight is not None and layer.weight.index == 0:
            del self._rules[node]
            self._decide(
                node, "float", "constant-left-operand", "its left operand is constant: no fast kernel takes that"
            )
            return
        if layer.terms > MAX_TERMS:
            del self._rules[node]
            self._decide(node, "float", "accumulator", f"sums of {layer.terms} products could overflow int32")
            return
        self._layers[node] = layer
        for inner in layer.body:
            self._inside[inner] = node
        if not self.wishes.static:
            return
        if layer.weight is not None or any(e.value in self._able for e in layer.inputs):
            self._able.add(layer.tail)

    # -- backward: what is wanted as an integer ------------------------------------------------------------------

    def _backward(self, node: ir.Node) -> None:
        rule = self._rules.get(node)
        if rule is None or node in self.plan.decisions:
            return
        layer = self._layers.get(node)
        if layer is None:
            if any(v in self._wanted for v in self._results(node)):
                self._wanted.update(e.value for e in data_inputs(node, rule))
            else:
                why = "nothing behind it runs on integers, so requantizing would only cost accuracy"
                self._decide(node, "float", "no-integer-reader", why)
                if node in self._tails:
                    self._decide(_maker(self._tails[node]), "float", "no-integer-reader", why)
            return
        alone = layer.tail not in self._wanted and not any(e.value in self._able for e in layer.inputs)
        if not self.wishes.static and not (layer.weight and self.wishes.dynamic and "dynamic" in rule.forms):
            self._decide(node, "float", "no-ranges", f"{node.op_type} needs calibrated ranges to run on integers")
        elif alone and rule.needs_output_q and 0 < layer.terms <= FEW_TERMS:
            why = f"stands between float ops, and sums of {layer.terms} products do not pay for its Q/DQ pairs"
            self._decide(node, "float", "too-little-work", why)
        elif not alone or rule.needs_output_q:
            self._wanted.update(e.value for e in layer.inputs)
        elif layer.weight is None:
            self._decide(node, "float", "activation-matmul", "both operands are activations between float ops")
        elif self.wishes.dynamic and "dynamic" in rule.forms:
            why = "stands between float ops: its input is quantized at run time, exactly over each input's range"
            self._decide(node, "dynamic", "between-float-ops", why)
        else:
            self._wanted.update(e.value for e in layer.inputs)

    # -- emit: specs for edges -----------------------------------------------------------------------------------

    def _emit(self, node: ir.Node) -> None:
        rule, layer = self._rules.get(node), self._layers.get(node)
        decision = self.plan.decisions.get(node)
        if layer is not None and decision is not None and decision.status == "dynamic":
            self._emit_dynamic(layer)
            return
        if layer is not None and decision is not None:
            for inner in layer.body:
                self._decide(inner, "float", decision.code, f"its layer stays float: {decision.reason}")
        if rule is None or decision is not None:
            return
        if layer is not None:
            self._emit_layer(layer, rule)
            return
        self._decide(
            node, "moves" if rule.kind == "moves" else "integer", rule.kind, f"{node.op_type} between integers"
        )
        data = data_inputs(node, rule)
        for edge in data:
            self._read(edge)
        for value in self._results(node):
            if is_float(value) or value.dtype is None:
                self._make_integer(value)
                if rule.kind == "moves":
                    self.plan.shared.append([data[0].value, value])
                if node.op_type in FIXED:
                    self.plan.fixed[value] = FIXED[node.op_type]

    def _emit_layer(self, layer: Layer, rule: IntegerOp) -> None:
        node = layer.node
        for edge in layer.inputs:
            self._read(edge)
        quantized_output = rule.needs_output_q or layer.tail in self._wanted or _merges_into_residual(layer)
        if quantized_output:
            self._make_integer(layer.tail)
        if layer.weight is not None:
            self.plan.weights[layer.weight] = self._weight_spec(layer, rule, quantized_output)
            if layer.bias is not None and layer.bias.value.dtype == ir.DataType.FLOAT:
                self.plan.biases[layer.bias] = TensorSpec(
                    self.target.bias.type, True, self.plan.weights[layer.weight].granularity
                )
        how = "" if quantized_output else ", float output"
        self._decide(node, "integer", "layer", f"{node.op_type} on integers{how}")

    def _emit_dynamic(self, layer: Layer) -> None:
        assert layer.weight is not None
        self.plan.weights[layer.weight] = self.wishes.weight
        for edge in layer.inputs:
            self.plan.readers[edge] = edge.value
        for inner in layer.body:
            self._decide(inner, "float", "behind-dynamic-layer", "added in float behind a layer with dynamic input")

    def _weight_spec(self, layer: Layer, rule: IntegerOp, quantized_output: bool) -> TensorSpec:
        assert layer.weight is not None
        rank = len(dims_of(layer.weight.value) or ())
        limit = rule.float_output_max_rank
        if not rule.per_channel or rank < 2 or (limit and rank > limit and not quantized_output):
            return self.wishes.weight.at(PerTensor())
        return self.wishes.weight

    def _read(self, edge: Edge) -> None:
        self.plan.activations.setdefault(edge.value, self.wishes.activation)
        self.plan.readers[edge] = edge.value

    def _make_integer(self, value: ir.Value) -> None:
        """A value made by an integer op: everybody reads its dequantized form, graph outputs too."""
        self.plan.activations.setdefault(value, self.wishes.activation)
        for edge in uses(value):
            self.plan.readers[edge] = value
        if value.is_graph_output():
            self.plan.outputs.add(value)

    # -- subgraphs ----------------------------------------------------------------------------------------------

    def _in_body(self, node: ir.Node) -> None:
        """In If/Loop/Scan bodies no range can be observed: dynamic layers work there, all else stays float."""
        why = self._unfit(node)
        if why is not None:
            self.plan.decisions[node] = why
            return
        rule = self._rules.pop(node)
        layer = read_layer(node) if rule.kind == "matmul-like" else "its range cannot be observed inside a subgraph"
        if isinstance(layer, str) or layer.weight is None or layer.weight.index == 0:
            why_not = layer if isinstance(layer, str) else "no constant right operand"
            self._decide(node, "float", "in-subgraph", why_not)
        elif self.wishes.dynamic and "dynamic" in rule.forms:
            self._decide(node, "dynamic", "in-subgraph", "its input is quantized at run time")
            self._emit_dynamic(layer)
        else:
            self._decide(node, "float", "in-subgraph", "the range of its input cannot be observed inside a subgraph")

    def _decide(self, node: ir.Node, status: str, code: str, reason: str) -> None:
        self.plan.decisions[node] = Decision(status, code, reason)


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _names(target: Target) -> tuple[str, ...]:
    alias = {"float32": "float"}
    return tuple(alias.get(t, t) for t in target.float_types)


def _merges_into_residual(layer: Layer) -> bool:
    """A rank-2 MatMul before an Add of two activations is merged to a float Gemm unless a Q stands between."""
    if not onnx_op(layer.node, "MatMul") or layer.body:
        return False
    rank = len(dims_of(layer.tail) or ()) or 2
    return rank == 2 and any(
        onnx_op(e.node, "Add") and constant_tensor(e.node.inputs[1 - e.index]) is None for e in uses(layer.tail)
    )
