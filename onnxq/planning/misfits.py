"""Which rule of the target a node falls under, or why it stays as it is whatever stands around it."""

from __future__ import annotations

from onnx_ir import Node

from onnxq import ops
from onnxq.facts import Decision, Wishes
from onnxq.layers import MAX_TERMS, Layer, data_inputs, folds, read_layer
from onnxq.look import bodies
from onnxq.states import DEQUANTIZE, INTEGER_OPS, QUANTIZE, is_q, source_of, state_of
from onnxq.targets import IntegerOp, Target

_ALIASES = {"float32": "float", "float64": "double"}


def rule_of(node: Node, target: Target, wishes: Wishes) -> IntegerOp | Decision:
    """The target's rule for a node, or the decision that it stays as it is."""
    if node in wishes.banned:
        return wishes.banned[node]
    if _computes_on_integers(node):
        return Decision("integer", "already-quantized", "works on integers already")
    rule = target.integer_ops.get(node.op_type) if node.domain == "" else None
    if rule is None and node in wishes.forced and ops.info(node) is not None:
        rule = IntegerOp("matmul-like", per_channel=True)
    if rule is None:
        if bodies(node):
            return Decision("float", "control-flow", f"{node.op_type} itself computes nothing; see the nodes inside")
        what = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Decision("float", "no-integer-kernel", f"{target.name} has no integer kernel for {what}")
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
    if any(t.name.lower() not in [_ALIASES.get(f, f) for f in target.float_types] for t in types):
        kinds = ", ".join(sorted(t.name.lower() for t in types))
        return Decision("float", "data-type", f"{target.name} has no integer kernel for {kinds} data")
    return rule


def layer_of(node: Node, target: Target, wishes: Wishes) -> Layer | Decision:
    """The layer that a matmul-like node starts, or the decision that it stays as it is."""
    layer = read_layer(node, wishes.banned)
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
    if layer.terms > MAX_TERMS:
        return Decision("float", "accumulator", f"sums of {layer.terms} products could overflow int32")
    return layer


def _computes_on_integers(node: Node) -> bool:
    key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    pair = is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)
    return pair or key in INTEGER_OPS or key == "DynamicQuantizeLinear" or node.op_type.startswith("QLinear")


def _as_found(node: Node, target: Target) -> Decision:
    state = state_of(node, target)
    return Decision(state.status if state else "float", "already-quantized", "stands between Q/DQ pairs already")
