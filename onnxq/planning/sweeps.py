"""The integer islands of the main graph.

Two sweeps. Forward: which values *can* be integers (outputs of layers, and of ops all of whose operands can). Backward:
which of those *are wanted*, since an op between integers pays only if an integer op reads its result. The conditions
per op are the target's (`onnxq.targets`); the shape of the islands follows what onnxruntime fuses: a Q behind every
Conv, none between an op and its bias or Relu, data movement at one shared encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.facts import Decision, Plan, Wishes
from onnxq.layers import Layer, data_inputs, folded_behind, is_float
from onnxq.look import all_nodes, is_constant
from onnxq.planning.bodies import plan_bodies, plan_functions
from onnxq.planning.emission import Emission, may_be_dynamic
from onnxq.planning.misfits import ALREADY, BETWEEN_PAIRS, LAYERS, layer_of, rule_of
from onnxq.planning.weight_only import plan_node, plan_weights
from onnxq.states import feeds_q
from onnxq.targets import IntegerOp, Target

# Ranges known without data (operator texts).
FIXED = {"Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
# A layer with so few products per value is bound by memory: pairs around it cost more than its integer kernel saves
# (depthwise convolutions between HardSwish: measured on PP-LCNet 5.05 ms with them on integers, 3.12 ms without).
FEW_TERMS = 48


@dataclass
class Planner:
    """One planning run: target and wishes in, `make` out."""

    target: Target
    wishes: Wishes
    _to: Emission = field(init=False)
    _layers: dict[ir.Node, Layer] = field(init=False, default_factory=dict)
    _tails: dict[ir.Node, ir.Value] = field(init=False, default_factory=dict)
    _inside: dict[ir.Node, ir.Node] = field(init=False, default_factory=dict)
    _rules: dict[ir.Node, IntegerOp] = field(init=False, default_factory=dict)
    _able: set[ir.Value] = field(init=False, default_factory=set)
    _wanted: set[ir.Value] = field(init=False, default_factory=set)

    def make(self, model: ir.Model) -> Plan:
        """Plan the main graph and what can be done in bodies; the decisions come in the order of `all_nodes`."""
        plan = Plan(self.wishes)
        self._to = Emission(plan, self.target)
        if self.wishes.weight_only:
            plan_weights(model, self._to)
        else:
            self._islands(list(model.graph))
            plan_bodies(model, self._to)
        plan_functions(model, self._to)
        self._to.finish()
        plan.decisions = {node: plan.decisions[node] for node in all_nodes(model)}
        return plan

    def _islands(self, nodes: list[ir.Node]) -> None:
        for node in nodes:
            self._forward(node)
        for node in reversed(nodes):
            self._backward(node)
        for node in nodes:
            self._emit(node)

    # -- forward: what can be an integer -------------------------------------------------------------------------

    def _forward(self, node: ir.Node) -> None:
        if node in self._inside:
            owner = self._inside[node].name or self._inside[node].op_type
            self._to.decide(node, "integer", "part-of-layer", f"computed inside {owner}")
            return
        if self.wishes.only_weights(node):
            plan_node(node, self._to)
            return
        rule = rule_of(node, self.target, self.wishes)
        if not isinstance(rule, Decision) and rule.kind in LAYERS:
            self._forward_layer(node, rule)
            return
        why = rule if isinstance(rule, Decision) else self._as_found(node, rule) or self._float_operand(node, rule)
        if why is not None:
            self._to.plan.decisions[node] = why
            return
        assert isinstance(rule, IntegerOp)
        self._rules[node] = rule
        folded = folded_behind(node.outputs[0], self.wishes.banned) if rule.kind == "binary" else None
        if folded is not None:
            self._inside[folded] = node
            self._tails[node] = folded.outputs[0]
        self._able.update(self._results(node))

    def _as_found(self, node: ir.Node, rule: IntegerOp) -> Decision | None:
        """The decision on a bias Add, Relu or data movement between a quantized layer of the input file and its Q."""
        makers = [e.value.producer() for e in data_inputs(node, rule)]
        found = [self._to.plan.decisions.get(maker) if maker is not None else None for maker in makers]
        inside = all(d is not None and (d.status, d.code) == ("integer", ALREADY) for d in found)
        return Decision("integer", ALREADY, BETWEEN_PAIRS) if found and inside and feeds_q(node, self.target) else None

    def _float_operand(self, node: ir.Node, rule: IntegerOp) -> Decision | None:
        data = data_inputs(node, rule)
        for edge in data:
            if is_constant(edge.value):
                return Decision("float", "constant-operand", f"{node.op_type} with a constant operand runs in float")
            if edge.value not in self._able:
                name = edge.value.name
                return Decision("float", "float-operand", f"its operand '{name}' is made by a float op")
        return None if data else Decision("float", "no-operand", "it has no data to quantize")

    def _forward_layer(self, node: ir.Node, rule: IntegerOp) -> None:
        layer = layer_of(node, self.target, self.wishes)
        if isinstance(layer, Decision):
            self._to.plan.decisions[node] = layer
            return
        self._rules[node], self._layers[node] = rule, layer
        for inner in layer.body:
            self._inside[inner] = node
        if not self.wishes.static or self._at_run_time(layer, rule):
            return
        if layer.weight is not None or any(e.value in self._able for e in layer.inputs):
            self._able.add(layer.tail)

    def _results(self, node: ir.Node) -> list[ir.Value]:
        """The values an integer op delivers: behind a folded Relu where there is one."""
        return [self._tails[node]] if node in self._tails else list(node.outputs)

    # -- backward: what is wanted as an integer ------------------------------------------------------------------

    def _backward(self, node: ir.Node) -> None:
        rule = self._rules.get(node)
        if rule is None:
            return
        if node in self._layers:
            self._backward_layer(self._layers[node], rule)
        elif any(v in self._wanted for v in self._results(node)):
            self._wanted.update(e.value for e in data_inputs(node, rule))
        else:
            why = "nothing behind it runs on integers, so requantizing would only cost accuracy"
            for each in (node, *(v.producer() for v in self._results(node))):
                assert each is not None
                self._to.decide(each, "float", "no-integer-reader", why)

    def _backward_layer(self, layer: Layer, rule: IntegerOp) -> None:
        node = layer.node
        alone = layer.tail not in self._wanted and not any(e.value in self._able for e in layer.inputs)
        dynamic = self.wishes.may_be_dynamic(node) and may_be_dynamic(layer, rule)
        if self._at_run_time(layer, rule):
            self._to.dynamic(layer, rule, "as-wished", "its input is quantized at run time, as wished")
        elif not self.wishes.static and not dynamic:
            self._leave(layer, "no-ranges", f"{node.op_type} needs calibrated ranges to run on integers")
        elif alone and rule.needs_output_q and 0 < layer.terms <= FEW_TERMS and node not in self.wishes.forced:
            why = f"stands between float ops, and sums of {layer.terms} products do not pay for its Q/DQ pairs"
            self._leave(layer, "too-little-work", why)
        elif layer.weight is None and rule.needs_weight:
            self._leave(layer, "activation-matmul", f"{self.target.name} takes constant weights only")
        elif alone and not rule.needs_output_q and layer.weight is None:
            self._leave(layer, "activation-matmul", "both operands are activations between float ops")
        elif alone and not rule.needs_output_q and dynamic:
            why = "stands between float ops: its input is quantized at run time, exactly over each input's range"
            self._to.dynamic(layer, rule, "between-float-ops", why)
        else:
            self._wanted.update(e.value for e in layer.inputs)

    def _at_run_time(self, layer: Layer, rule: IntegerOp) -> bool:
        """Whether a layer quantizes its input at run time wherever it stands."""
        node = layer.node
        if self.wishes.of(node).dynamic != "always" or rule.needs_output_q:
            return False
        return self.wishes.may_be_dynamic(node) and may_be_dynamic(layer, rule)

    def _leave(self, layer: Layer, code: str, reason: str) -> None:
        self._to.decide(layer.node, "float", code, reason)
        for inner in layer.body:
            self._to.decide(inner, "float", code, f"its layer stays float: {reason}")

    # -- emit: specs for edges -----------------------------------------------------------------------------------

    def _emit(self, node: ir.Node) -> None:
        rule, plan = self._rules.get(node), self._to.plan
        if rule is None or node in plan.decisions:
            return
        if node in self._layers:
            layer = self._layers[node]
            self._to.layer(layer, rule, layer.tail in self._wanted)
            return
        self._to.decide(
            node, "moves" if rule.kind == "moves" else "integer", rule.kind, f"{node.op_type} between integers"
        )
        data = data_inputs(node, rule)
        # What only moves or clips data keeps the type of the region it comes from.
        spec = plan.activations[data[0].value] if rule.kind in ("moves", "folds") else self._to.spec(node)
        for edge in data:
            self._to.read(edge, spec)
        for value in self._results(node):
            if not (is_float(value) or value.dtype is None):
                continue
            if rule.kind == "moves":
                self._to.moved(data[0].value, value, node)
            else:
                self._to.integer(value, spec, node)
            if node.op_type in FIXED:
                plan.fixed[value] = FIXED[node.op_type]
