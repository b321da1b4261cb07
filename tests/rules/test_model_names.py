"""OQ004–OQ007, OQ012, OQ013, OQ018, OQ021: names."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from onnxq.diagnostics import Severity
from tests.rules.lab import build, find, in_branch, numbers, places


def test_defined_twice() -> None:
    assert not find(build("a = Relu(x) y = Neg(a)", {"w": np.float32(1)}, x="float x, float w"), "OQ004")
    model = build("a = Relu(x) a = Neg(x) y = Add(a, a)")
    (found,) = find(model, "OQ004")
    assert (found.place.node, found.place.value) == ("a", "a")
    assert places(build("x = Relu(x) y = Neg(x)"), "OQ004") == ["x"]
    assert [d.message for d in find(build("y = Relu(x)", x="float x, float x"), "OQ004")] == [
        "input 'x' is there 2 times"
    ]
    twice = build("y = Relu(x)", {"w": np.float32(1)})
    twice.graph.initializer.append(twice.graph.initializer[0])
    assert [d.message for d in find(twice, "OQ004")] == ["initializer 'w' is there 2 times"]
    both = build(in_branch("p = Relu(x) p = Neg(x)", "p"))
    assert [d.place.graph for d in find(both, "OQ004")] == ["y/then_branch"]


def test_outputs_that_are_left_out_are_no_names() -> None:
    split = build("a, , b = Split<axis=1, num_outputs=3>(x) , c = TopK(x, k) y = Add(a, b)", {"k": np.array([1])})
    assert not find(split, "OQ004") and not find(split, "OQ007")


def test_node_names() -> None:
    model = build("a = Relu(x) b = Neg(a) y = Add(a, b)")
    assert not find(model, "OQ005")
    model.graph.node[0].name = model.graph.node[2].name = ""
    (found,) = find(model, "OQ005")
    assert found.severity is Severity.INFO and found.numbers == {"nodes": 2} and "Relu" in found.message
    model.graph.node[0].name = model.graph.node[2].name = "b"
    (found,) = find(model, "OQ005")
    assert found.severity is not Severity.INFO and found.numbers == {"nodes": 3} and found.fix == "name-nodes"


def test_order() -> None:
    model = build("y = Neg(a) a = Relu(x)", x="float[2] x", y="float[2] y")
    assert places(model, "OQ006") == ["y"] and numbers(model, "OQ006") == {"position": 0, "maker": 1}
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # which sorts it itself
    assert not find(build("a = Relu(x) y = Neg(a)"), "OQ006")


def test_order_of_what_bodies_read() -> None:
    early = build(in_branch("p = Add(x, late)", "p") + " late = Relu(x)")
    assert places(early, "OQ006") == ["y"], "the If needs it"
    assert not find(build("late = Relu(x) " + in_branch("p = Add(x, late)", "p")), "OQ006")
    inside = build(in_branch("p = Neg(a) a = Relu(x)", "p"))
    assert [d.place.graph for d in find(inside, "OQ006")] == ["y/then_branch"]


def test_undefined_values() -> None:
    (found,) = find(build("y = Add(x, nobody)"), "OQ007")
    assert (found.place.node, found.place.value) == ("y", "nobody")
    assert places(build("a = Relu(x)"), "OQ007") == ["y"]
    assert not find(build(in_branch("p = Relu(x)", "p")), "OQ007"), "bodies see the graphs around them"
    inner = build(in_branch("p = Relu(x)", "p") + " z = Neg(p)")
    assert places(inner, "OQ007") == ["z"], "graphs do not see into bodies"
    function = '<domain: "local", opset_import: ["" : 21]> op (a) => (b) { b = Add(a, x) }'
    called = build("y = local.op(x)", imports=', "local" : 1', functions=function)
    assert [(d.place.graph, d.place.value) for d in find(called, "OQ007")] == [("local::op", "x")]


def test_unused_constants() -> None:
    assert places(build("y = Relu(x)", {"w": np.float32(1)}), "OQ012") == ["w"]
    assert not find(build(in_branch("p = Add(x, w)", "p"), {"w": np.float32(1)}), "OQ012")
    assert not find(build("z = Relu(x)", {"y": np.float32(1)}), "OQ012"), "an output"


def test_dead_nodes() -> None:
    model = build("a = Relu(x) b = Neg(a) y = Neg(x)")
    assert places(model, "OQ018") == ["b"], "what only feeds it goes with it"
    assert not find(build(in_branch("p = Relu(x)", "p")), "OQ018")
    assert places(build(in_branch("d = Relu(x) p = Neg(x)", "p")), "OQ018") == ["d"]


def test_doubled_entries() -> None:
    model = build("y = Softmax<axis=1>(x)")
    assert not find(model, "OQ013")
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    assert places(model, "OQ013") == ["y"]
    keys = build("y = Relu(x)")
    for value in "ab":
        keys.metadata_props.add(key="k", value=value)
    assert "metadata key 'k'" in find(keys, "OQ013")[0].message
    function = '<domain: "local", opset_import: ["" : 21]> op (a) => (b) { b = Relu(a) }'
    twice = build("y = local.op(x)", imports=', "local" : 1', functions=f"{function} {function}")
    assert "function 'local::op'" in find(twice, "OQ013")[0].message


@pytest.mark.parametrize(("body", "names"), [("p = Relu(x)", []), ("late = Neg(x) p = Relu(late)", ["late"])])
def test_shadowed_names(body: str, names: list[str]) -> None:
    model = build("late = Relu(x) " + in_branch(body, "p"))
    found = find(model, "OQ021")
    assert [(d.place.graph, d.place.value) for d in found] == [("y/then_branch", name) for name in names]
