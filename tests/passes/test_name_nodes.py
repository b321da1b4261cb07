"""name-nodes: unique, stable, derived names; what the user named keeps its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper, parser

from onnxq.edit import all_graphs
from onnxq.passbase import Context, run_step
from onnxq.passes.name_nodes import NameNodes

PLAIN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { a = Relu(x)  b, c = Split<axis=0>(a)  d = Concat<axis=0>(b, c)  y = Neg(d) }
"""


def node_names(proto: onnx.ModelProto) -> list[str]:
    return [n.name for n in proto.graph.node]


def test_unnamed_nodes_are_named_after_what_they_make(run_passes: Callable[..., Any]) -> None:
    out = run_passes(PLAIN, NameNodes())
    assert node_names(out.proto) == ["Relu_a", "Split_b", "Concat_d", "Neg_y"]
    assert out.codes() == ["nodes-named"] and out.ctx.report.notes[0].numbers == {"count": 4}


def test_names_do_not_depend_on_what_stands_before(run_passes: Callable[..., Any]) -> None:
    longer = PLAIN.replace("a = Relu(x)", "z = Abs(x)  a = Relu(z)")
    assert set(node_names(run_passes(PLAIN, NameNodes()).proto)) < set(
        node_names(run_passes(longer, NameNodes()).proto)
    )


def test_a_user_name_wins_over_a_generated_one(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model(PLAIN)
    proto.graph.node[3].name = "Relu_a"
    assert node_names(run_passes(proto, NameNodes()).proto) == ["Relu_a_1", "Split_b", "Concat_d", "Relu_a"]


def test_the_first_of_two_equal_names_stays(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model(PLAIN)
    for node in proto.graph.node:
        node.name = "n"
    out = run_passes(proto, NameNodes())
    assert node_names(out.proto) == ["n", "n_1", "n_2", "n_3"]
    assert [n.place.node for n in out.ctx.report.of("node-renamed")] == ["n_1", "n_2", "n_3"]


def test_values_of_bodies_shadow_nothing_and_repeat_nothing(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None], random_feeds: Callable[..., Any]
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[2] x) => (float[2] y) {
      a = Relu(x)
      y = If(c) <then_branch = t () => (float[2] q) <float[2] w = {1,2}> { b = Add(a, w) q = Neg(b) },
                 else_branch = e () => (float[2] q) <float[2] w = {3,4}> { b = Mul(a, w) q = Exp(b) }>
    }
    """
    out = run_passes(text, NameNodes())
    graphs = list(all_graphs(out.model))
    values = [v.name for g in graphs for v in (*g.inputs, *g.initializers.values(), *(o for n in g for o in n.outputs))]
    assert len(set(values)) == len(values) and values[:4] == ["c", "x", "a", "y"]
    assert {"b", "q", "w", "b_1", "q_1", "w_1"} <= set(values)
    assert len({n.name for g in graphs for n in g}) == 6
    for seed in (0, 1):
        same_numbers(text, out.proto, random_feeds(out.proto, seed))


def test_loop_bodies_keep_their_signature(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) <int64 n = {3}, bool on = {1}> {
      y = Loop(n, on, x) <
        body = b (int64 i, bool on, float[2] x) => (bool k, float[2] y) { k = Identity(on) y = Add(x, x) }
      >
    }
    """
    out = run_passes(text, NameNodes())
    body = next(iter(out.model.graph.subgraphs()))
    assert len(body.inputs) == 3 and body.inputs[2].name != "x"
    same_numbers(text, out.proto)


def test_absent_outputs_stay_absent(run_passes: Callable[..., Any]) -> None:
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["", "h", ""], hidden_size=1)
    graph = helper.make_graph(
        [lstm],
        "g",
        [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 1, 1]), ("w", [1, 4, 1]), ("r", [1, 4, 1]))],
        [helper.make_tensor_value_info("h", 1, [1, 1, 1])],
    )
    out = run_passes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), NameNodes())
    assert list(out.proto.graph.node[0].output) == ["", "h"] and node_names(out.proto) == ["LSTM_h"]


def test_values_without_a_name_get_one() -> None:
    x = ir.val("x", ir.DataType.FLOAT, [2])
    first, second = ir.node("Relu", [x]), ir.node("Neg", [x])
    graph = ir.Graph([x], [second.outputs[0]], nodes=[first, second], opset_imports={"": 17}, name="g")
    first.outputs[0].name = second.outputs[0].name = "same"
    first.name = second.name = None
    assert run_step(NameNodes(), ir.Model(graph, ir_version=8), Context())
    assert (first.outputs[0].name, second.outputs[0].name) == ("same_1", "same"), (
        "an output of the graph keeps its name"
    )
    assert (first.name, second.name) == ("Relu_same_1", "Neg_same")
