"""Which rule of the target a node falls under, or why it stays as it is whatever stands around it."""

from __future__ import annotations

from onnx_ir import Node

from onnxq import ops
from onnxq.facts import Decision, Wishes
from onnxq.layers import MAX_TERMS, Layer, data_inputs, folds, read_layer, read_weights
from onnxq.look import bodies, onnx_op
from onnxq.states import DEQUANTIZE, INTEGER_OPS, QUANTIZE, is_q, source_of, state_of
from onnxq.targets import IntegerOp, Kind, Target

_ALIASES = {"float32": "float", "float64": "double"}
ALREADY = "already-quantized"
BETWEEN_PAIRS = "stands between Q/DQ pairs already"
LAYERS = ("matmul-like", "recurrent")
"""Kinds of ops that carry weights and anchor integer islands."""


def rule_of(node: Node, target: Target, wishes: Wishes) -> IntegerOp | Decision:
    """The target's rule for a node, or the decision that it stays as it is."""
    if node in wishes.banned:
        return wishes.banned[node]
    if _computes_on_integers(node):
        return Decision("integer", ALREADY, "works on integers already")
    only_weights = wishes.only_weights(node)
    if only_weights and ops.info(node) is None and not bodies(node):
        return Decision("float", "no-weight", f"{node.op_type} carries no weights")
    rule = target.integer_ops.get(node.op_type) if node.domain == "" else None
    forms = ("weight-only",) if only_weights else ("static", "dynamic")
    if node in wishes.forced and ops.info(node) is not None and not (rule and set(forms) & set(rule.forms)):
        rule = _forced(node)
    if rule is None:
        if bodies(node):
            return Decision("float", "control-flow", f"{node.op_type} itself computes nothing; see the nodes inside")
        what = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Decision("float", "no-integer-kernel", f"{target.name} has no integer kernel for {what}")
    if not set(forms) & set(rule.forms):
        why = f"{target.name} takes no {forms[0]} form of {node.op_type}"
        return Decision("float", "not-weight-only", why) if only_weights else Decision("float", "not-static", why)
    if rule.kind == "folds" and not folds(node):
        return Decision("float", "not-from-zero", f"{node.op_type} clips elsewhere than at 0: no Q makes it redundant")
    misfit = rule.misfit({k: a.value for k, a in node.attributes.items() if not a.is_ref()})
    if misfit:
        return Decision("float", "attribute", misfit)
    if node.op_type == "MaxPool" and any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return Decision("float", "indices", "its indices are used, and integers have more ties than floats")
    data = data_inputs(node, rule)
    if data and all(is_q(e.value.producer(), DEQUANTIZE) for e in data):
        return _as_found(node, target)
    types = {e.value.dtype for e in data if e.value.dtype is not None}
    floats = (only_weights and target.weight_only_float_types) or target.float_types
    if any(t.name.lower() not in [_ALIASES.get(f, f) for f in floats] for t in types):
        kinds = ", ".join(sorted(t.name.lower() for t in types))
        return Decision("float", "data-type", f"{target.name} has no integer kernel for {kinds} data")
    return rule


def _forced(node: Node) -> IntegerOp:
    """The rule of a weight-carrying op that the caller asks for although the target has none that fits."""
    kind: Kind = "recurrent" if onnx_op(node, *ops.RECURRENT) else "moves" if onnx_op(node, "Gather") else "matmul-like"
    return IntegerOp(kind, ("static", "weight-only"), per_channel=True)


def layer_of(node: Node, target: Target, wishes: Wishes) -> Layer | Decision:
    """The layer that a weight-carrying node starts, or the decision that it stays as it is."""
    layer = read_weights(node) if wishes.only_weights(node) else read_layer(node, wishes.banned)
    if isinstance(layer, str) or layer.weight is None:
        row = ops.info(node)
        for slot in row.weights if row else ():
            tensor, path = source_of(node.inputs[slot.index] if slot.index < len(node.inputs) else None)
            if tensor is not None and any(is_q(n, DEQUANTIZE) for n in path):
                return _as_found(node, target)
    if isinstance(layer, str):
        return Decision("float", "not-a-layer", layer)
    if layer.weight is not None and layer.weight.index == 0:
        why = "its left operand is constant: no fast kernel takes that"
        return Decision("float", "constant-left-operand", why)
    if layer.terms > MAX_TERMS and not wishes.only_weights(node):
        return Decision("float", "accumulator", f"sums of {layer.terms} products could overflow int32")
    return layer


def _computes_on_integers(node: Node) -> bool:
    key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    pair = is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)
    return pair or key in INTEGER_OPS or key == "DynamicQuantizeLinear" or node.op_type.startswith("QLinear")


def _as_found(node: Node, target: Target) -> Decision:
    state = state_of(node, target)
    return Decision(state.status if state else "float", ALREADY, BETWEEN_PAIRS)
