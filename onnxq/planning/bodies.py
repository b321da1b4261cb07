"""Plans the nodes in If/Loop/Scan bodies, where no range can be observed."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.facts import Decision
from onnxq.look import graph_of, nested_graphs
from onnxq.planning.emission import Emission, may_be_dynamic, needs_q
from onnxq.planning.misfits import LAYERS, layer_of, rule_of
from onnxq.planning.weight_only import plan_node


def plan_bodies(model: ir.Model, emission: Emission) -> None:
    """Decide on every node that is not in the main graph.

    A layer there runs on integers if it quantizes its input at run time, or if its input comes from the main graph,
    where its range can be observed, and its output may stay float. All else stays float, with the reason.
    """
    for graph in nested_graphs(model.graph):
        for node in graph if graph is not model.graph else ():
            _plan(node, model, emission)


def plan_functions(model: ir.Model, emission: Emission) -> None:
    """Leave every node in a local function float."""
    for function in model.functions.values():
        for graph in nested_graphs(function.graph):
            for node in graph:
                emission.decide(node, "float", "in-function", "local functions are left alone: inline-functions first")


def _plan(node: ir.Node, model: ir.Model, emission: Emission) -> None:
    plan = emission.plan
    rule = rule_of(node, emission.target, plan.wishes)
    if isinstance(rule, Decision):
        plan.decisions.setdefault(node, rule)
        return
    if node in plan.decisions:  # the bias Add or Relu of a layer
        return
    if plan.wishes.only_weights(node):
        plan_node(node, emission)
        return
    if rule.kind not in LAYERS:
        emission.decide(node, "float", "in-subgraph", "its range cannot be observed inside a subgraph")
        return
    layer = layer_of(node, emission.target, plan.wishes)
    if isinstance(layer, Decision):
        plan.decisions[node] = layer
        return
    static = plan.wishes.static and not needs_q(layer, rule)
    static = static and all(graph_of(edge.value) is model.graph for edge in layer.inputs)
    dynamic = plan.wishes.may_be_dynamic(node) and may_be_dynamic(layer, rule)
    if static and (not dynamic or all(edge in plan.readers for edge in layer.inputs)):
        emission.layer(layer, rule, wanted=False)
        for inner in layer.body:
            emission.decide(inner, "integer", "part-of-layer", f"computed inside {node.name or node.op_type}")
    elif dynamic:
        emission.dynamic(layer, rule, "in-subgraph", "its input is quantized at run time")
    else:
        what = "output" if needs_q(layer, rule) else "input"
        emission.decide(node, "float", "in-subgraph", f"the range of its {what} cannot be observed inside a subgraph")
