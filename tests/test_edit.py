"""Graph helpers: what counts as a use or a constant, how names, outputs and scopes survive an edit."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq import edit
from onnxq.facts import Edge

NESTED = """
<ir_version: 8, opset_import: ["" : 17]>
main (bool c, float[2] x) => (float[2] y)
<float[2] w = {1.0, 2.0}>
{
  a = Relu(x)
  y = If(c) <
    then_branch = outer_then () => (float[2] t1) { t1 = Add(a, w) },
    else_branch = outer_else () => (float[2] e1) {
      e1 = If(c) <
        then_branch = inner_then () => (float[2] q1) { q1 = Add(a, w) },
        else_branch = inner_else () => (float[2] q2) { q2 = Identity(a) }
      >
    }
  >
}
"""

FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
main (float[2] x) => (float[2] y) { y = local.twice(x) }
<domain: "local", opset_import: ["" : 17]>
twice (a) => (b) { b = Add(a, a) }
"""


def load(text: str) -> ir.Model:
    return ir.from_proto(parser.parse_model(text))


def named(model: ir.Model, name: str) -> ir.Value:
    for graph in edit.all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)):
            if value.name == name:
                return value
    raise KeyError(name)


def test_all_graphs_goes_outer_to_inner_and_into_functions() -> None:
    assert [g.name for g in edit.all_graphs(load(NESTED))] == [
        "main", "outer_then", "outer_else", "inner_then", "inner_else",
    ]  # fmt: skip
    assert [n.op_type for n in edit.all_nodes(load(FUNCTION))] == ["twice", "Add"]


def test_uses_span_all_scopes() -> None:
    model = load(NESTED)
    assert [(e.node.graph.name if e.node.graph else "", e.index) for e in edit.uses(named(model, "a"))] == [
        ("outer_then", 0),
        ("inner_then", 0),
        ("inner_else", 0),
    ]
    assert edit.only_use(named(model, "a")) is None
    assert edit.only_use(named(model, "y")) is None, "a graph output is never used only once"
    edge = edit.only_use(named(model, "x"))
    assert edge is not None and edge.value is named(model, "x")


def test_constant_reads_initializers_and_constant_nodes_only() -> None:
    model = load("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[2] d) => (float[2] y)
    <float[2] w = {1.0, 2.0}, float[2] d = {3.0, 4.0}>
    {
      floats = Constant<value_floats = [1.5, 2.5]>()
      one = Constant<value_int = 7>()
      text = Constant<value_strings = ["a", "bc"]>()
      same = Identity(w)
      y = Add(x, same)
    }
    """)
    assert np.array_equal(edit.constant(named(model, "w")), [1, 2])  # type: ignore[arg-type]
    floats, one = edit.constant(named(model, "floats")), edit.constant(named(model, "one"))
    assert floats is not None and floats.dtype == np.float32 and floats.tolist() == [1.5, 2.5]
    assert one is not None and one.dtype == np.int64 and one.shape == () and one == 7
    assert edit.constant(named(model, "text")).tolist() == [b"a", b"bc"]  # type: ignore[union-attr]
    assert edit.constant(named(model, "same")) is None, "looked through nothing"
    assert edit.constant(named(model, "x")) is None and edit.constant(None) is None
    assert not edit.is_constant(named(model, "d")), "a default the caller may override is no constant"


def test_attributes_with_defaults() -> None:
    node = ir.node("Conv", [None], attributes={"group": 3, "pads": [1, 2], "epsilon": 0.5, "mode": "edge"})
    assert edit.attr_int(node, "group", 1) == 3 and edit.attr_int(node, "axis", 1) == 1
    assert edit.attr_ints(node, "pads") == [1, 2] and edit.attr_ints(node, "axes") is None
    assert edit.attr_float(node, "epsilon", 1e-5) == 0.5 and edit.attr_float(node, "alpha", 1.0) == 1.0
    assert edit.attr_str(node, "mode", "x") == "edge" and edit.attr_str(node, "auto_pad", "NOTSET") == "NOTSET"


def test_dims_of_hides_symbols_and_negative_dims() -> None:
    assert edit.dims_of(ir.val("v", shape=ir.Shape([2, "N", -1, 0]))) == (2, None, None, 0)
    assert edit.dims_of(ir.val("v")) is None


def test_namer_is_unique_over_nodes_values_and_scopes() -> None:
    model = load(NESTED)
    next(iter(model.graph)).name = "node"
    namer = edit.Namer(model)
    assert [namer(n) for n in ("q1", "node", "w", "c", "new", "new")] == [
        "q1_1",
        "node_1",
        "w_1",
        "c_1",
        "new",
        "new_1",
    ]
    assert namer("") == "_1"


def test_add_and_replace_initializer() -> None:
    model = load("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1.0, 2.0}> { y = Add(x, w)  z = Mul(x, w) }
    """)
    namer = edit.Namer(model)
    added = edit.add_initializer(model.graph, "w", np.array([5], np.int8), namer)
    assert added.name == "w_1" and added.dtype == ir.DataType.INT8 and added.graph is model.graph
    mul = model.graph[1]
    old = named(model, "w")
    copy = edit.replace_initializer(old, np.zeros(2, np.float16), namer, where=lambda e: e.node is mul)
    assert copy.name == "w_2" and mul.inputs[1] is copy and model.graph[0].inputs[1] is old
    new = edit.replace_initializer(old, np.zeros((2, 1), np.float32), namer)
    assert new.name == "w" and model.graph.initializers["w"] is new and new is not old
    assert edit.dims_of(new) == (2, 1) and not old.uses() and not old.is_initializer()


def test_replace_initializer_keeps_one_that_is_a_graph_output() -> None:
    model = load("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }
    """)
    new = edit.replace_initializer(named(model, "w"), np.zeros(2, np.float32), edit.Namer(model))
    assert new.name == "w_1" and [o.name for o in model.graph.outputs] == ["y", "w"]
    assert np.array_equal(edit.constant(model.graph.outputs[1]), [1, 2])  # type: ignore[arg-type]


def test_new_names_never_reach_the_callers_message() -> None:
    proto = parser.parse_model(NESTED)
    before = proto.SerializeToString()
    model = ir.from_proto(proto)
    edit.rename(named(model, "w"), "weight")
    tensor = model.graph.initializers["weight"].const_value
    assert tensor is not None
    edit.add_initializer(model.graph, "other", tensor, edit.Namer(model))
    result = ir.to_proto(model)
    assert proto.SerializeToString() == before
    assert [t.name for t in result.graph.initializer] == ["weight", "other"]
    assert all(np.array_equal(onnx.numpy_helper.to_array(t), [1, 2]) for t in result.graph.initializer)


def test_detached_keeps_strings_and_packed_types() -> None:
    for array in (np.array(["a", "é"], dtype=object), np.arange(-3, 4).astype(ir.DataType.INT4.numpy())):
        proto = onnx.numpy_helper.from_array(array, "t")
        copy = ir.to_proto(edit.detached(ir.from_proto(proto)))  # type: ignore[arg-type]
        assert copy.data_type == proto.data_type and list(copy.dims) == list(proto.dims)
        assert np.array_equal(onnx.numpy_helper.to_array(copy), onnx.numpy_helper.to_array(proto))


def test_insert_on_edge_leaves_other_uses() -> None:
    model = load(NESTED)
    a = named(model, "a")
    edge = edit.uses(a)[1]
    chain = [ir.node("Neg", [a], name="n1")]
    chain.append(ir.node("Neg", [chain[0].outputs[0]], name="n2"))
    edit.insert_on_edge(edge, chain)
    assert [n.op_type for n in edge.node.graph] == ["Neg", "Neg", "Add"]  # type: ignore[union-attr]
    assert edge.node.inputs[0] is chain[1].outputs[0]
    assert [e.node.op_type for e in edit.uses(a)] == ["Add", "Identity", "Neg"]
    with pytest.raises(ValueError, match="at least one node"):
        edit.insert_on_edge(Edge(edge.node, 0), [])


@pytest.mark.parametrize(
    ("body", "new", "producer"),
    [
        ("a = Relu(x)  y = Neg(a)", "a", "Relu"),
        ("y = Neg(x)", "x", "Identity"),  # an input cannot become the output: it would lose its name
        ("a = Relu(x)  z = Abs(a)  y = Neg(z)", "a", "Relu"),
    ],
)
def test_replace_uses_moves_outputs_and_keeps_their_names(body: str, new: str, producer: str) -> None:
    model = load(f'<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[N] y) {{ {body} }}')
    edit.replace_uses(named(model, "y"), named(model, new), edit.Namer(model))
    edit.remove_dead(model)
    output = model.graph.outputs[0]
    assert output.name == "y" and str(output.shape) == "[N]" and [v.name for v in model.graph.inputs] == ["x"]
    assert [n.op_type for n in model.graph] == [producer]


def test_replace_uses_with_a_condition_leaves_outputs_alone() -> None:
    model = load(NESTED)
    a, x = named(model, "a"), named(model, "x")
    edit.replace_uses(a, x, edit.Namer(model), where=lambda e: e.node.op_type == "Identity")
    assert [e.node.op_type for e in edit.uses(a)] == ["Add", "Add"]


def test_copy_metadata_merges_and_marks() -> None:
    new = ir.node("Relu", [None])
    first, second = (ir.node("A", [None], metadata_props={"k": v, v: v}, doc_string=v) for v in ("one", "two"))
    edit.copy_metadata(new, [first, second], "some-pass")
    assert new.metadata_props == {"k": "one", "one": "one", "two": "two", "onnxq.pass": "some-pass"}
    assert new.doc_string == "one"


def test_remove_dead_frees_what_only_a_dead_body_used() -> None:
    model = load(
        NESTED.replace("=> (float[2] y)\n<", "=> (float[2] x2)\n<").replace("a = Relu(x)", "x2 = Neg(x) a = Relu(x)")
    )
    assert edit.remove_dead(model) == 3, "the If, the Relu only its bodies read, and the initializer"
    assert [n.op_type for n in model.graph] == ["Neg"] and not model.graph.initializers
    assert edit.remove_dead(model) == 0


def test_remove_dead_works_in_bodies_and_functions_and_keeps_inputs() -> None:
    model = load(NESTED.replace("{ t1 = Add(a, w) }", "{ dead = Neg(a) t1 = Add(a, w) }"))
    assert edit.remove_dead(model) == 1
    model = load(FUNCTION.replace("{ b = Add(a, a) }", "{ dead = Neg(a) b = Add(a, a) }"))
    assert edit.remove_dead(model) == 1
    model = load("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[2] d) => (float[2] y) <float[2] d = {3.0, 4.0}> { y = Relu(x) }
    """)
    assert edit.remove_dead(model) == 0 and list(model.graph.initializers) == ["d"]
