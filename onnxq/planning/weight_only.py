"""Plans weight-only models: constant weights become integers, activations stay float."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq.facts import Decision, Edge
from onnxq.layers import Layer
from onnxq.look import nested_graphs, onnx_op
from onnxq.numerics.spec import PerAxis, PerTensor
from onnxq.planning.emission import Emission
from onnxq.planning.misfits import LAYERS, layer_of, rule_of
from onnxq.targets import IntegerOp
from onnxq.weights import weight_tensor

# A smaller table saves less than its scales and the ops behind it cost.
SMALLEST_TABLE = 4096


def plan_weights(model: ir.Model, emission: Emission) -> None:
    """Decide on every node of the main graph and of If/Loop/Scan bodies: no range is needed, so all are alike."""
    for graph in nested_graphs(model.graph):
        for node in graph:
            plan_node(node, emission)


def plan_node(node: ir.Node, emission: Emission) -> None:
    """Decide on one node of which only the weights may become integers."""
    plan = emission.plan
    rule = rule_of(node, emission.target, plan.wishes)
    if isinstance(rule, Decision):
        plan.decisions[node] = rule
    elif rule.kind in LAYERS:
        _layer(node, rule, emission)
    else:
        _table(node, rule, emission)


def _layer(node: ir.Node, rule: IntegerOp, emission: Emission) -> None:
    plan = emission.plan
    layer = layer_of(node, emission.target, plan.wishes)
    if isinstance(layer, Decision):
        plan.decisions[node] = layer
        return
    rank = len(layer.weight_dims)
    if layer.weight is None:
        emission.decide(node, "float", "activation-matmul", "both operands are activations")
    elif rule.per_channel_max_rank and rank > rule.per_channel_max_rank and node not in plan.wishes.forced:
        why = f"its weight has rank {rank}; {emission.target.name} fuses weights up to rank {rule.per_channel_max_rank}"
        emission.decide(node, "float", "weight-rank", why)
    else:
        emission.weights(layer, rule)
        emission.decide(node, "weight-only", "layer", f"{node.op_type} in float, {_what(layer)} as integers")


def _what(layer: Layer) -> str:
    return "its two weights" if layer.recurrent is not None else "its weight"


def _table(node: ir.Node, rule: IntegerOp, emission: Emission) -> None:
    """A Gather from a constant table: one scale a row, or blocks along the row."""
    edge = Edge(node, 0)
    tensor = weight_tensor(edge.value) if onnx_op(node, "Gather") else None
    dims = [] if tensor is None else [int(d) for d in tensor.shape.numpy()]
    if tensor is None or not tensor.dtype.is_floating_point():
        emission.decide(node, "float", "no-weight", f"{node.op_type} reads no constant table of floats")
    elif len(dims) < 2 or (math.prod(dims) < SMALLEST_TABLE and node not in emission.plan.wishes.forced):
        why = f"its table of shape {dims} is too small: less than {SMALLEST_TABLE} numbers or fewer than two axes"
        emission.decide(node, "float", "small-table", why)
    else:
        spec = emission.plan.wishes.uses.get(edge) or emission.weight_spec(node, rule)
        emission.plan.weights[edge] = spec.at(PerAxis()) if isinstance(spec.granularity, PerTensor) else spec
        emission.decide(node, "weight-only", "table", "rows of integers are picked, then dequantized")
