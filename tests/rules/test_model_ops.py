"""OQ015, OQ016: nodes against the schemas of their operators."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rules.lab import build, find, in_branch, places


@pytest.mark.parametrize(
    ("op", "opset", "why"),
    [
        ("Relu(x)", 21, ""), ("Relau(x)", 21, "no operator of ai.onnx 21"), ("Gelu(x)", 19, "from version 20 on"),
        ("Gelu(x)", 20, ""), ("Upsample(x, s)", 9, ""), ("Upsample(x, s)", 10, "taken out"),
        ("Scatter(x, i, x)", 10, ""), ("ai.onnx.ml.Scaler(x)", 21, ""), ("ai.onnx.ml.Scalar(x)", 21, "ai.onnx.ml 3"),
        ("somebody.Own(x)", 21, ""), ("com.microsoft.Gelu(x)", 21, ""),
    ],
)  # fmt: skip
def test_operators(op: str, opset: int, why: str) -> None:
    imports = ', "ai.onnx.ml" : 3, "somebody" : 1, "com.microsoft" : 1'
    data = {"s": np.ones(4, "f"), "i": np.zeros((1, 1, 1, 1), np.int64)}
    found = find(build(f"y = {op}", data, opset=opset, imports=imports), "OQ015")
    assert [d.place.node for d in found] == (["y"] if why else [])
    assert all(why in d.message for d in found), [d.message for d in found]


def test_local_functions_are_operators() -> None:
    function = '<domain: "", opset_import: ["" : 21]> Own (a) => (b) { b = Relu(a) }'
    assert places(build("y = Own(x)"), "OQ015") == ["y"]
    assert not find(build("y = Own(x)", functions=function), "OQ015")


def test_versions_that_nobody_knows_say_nothing() -> None:
    model = build("y = Relau(x)")
    model.opset_import[0].version = 9999
    assert not find(model, "OQ015") and not find(model, "OQ016")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("Conv(x, w)", ""), ("Conv(x)", "has 1 input, its operator takes 2 to 3"), ("Relu(x, x)", "takes 1"),
        ("Conv(x, , m)", "lacks its input 'W'"), ("Clip(x, , m)", ""), ("Concat(x, x)", "lacks its attribute 'axis'"),
        ("Concat<axis=0>(x, x, x, x)", ""), ("Relu<alpha=1.0>(x)", "no attribute 'alpha'"),
        ("Softmax<axis=1.0>(x)", "of type FLOAT, not INT"), ("Softmax<axis=1>(x)", ""),
        ("QuantizeLinear<axis=1>(x, w)", ""),
    ],
)  # fmt: skip
def test_signatures(node: str, why: str) -> None:
    found = find(build(f"y = {node}", {"w": np.float32(1), "m": np.float32(1)}), "OQ016")
    assert [d.place.node for d in found] == (["y"] if why else [])
    assert all(why in d.message for d in found), [d.message for d in found]


def test_outputs_and_bodies() -> None:
    (found,) = find(build("y, z = Relu(x)"), "OQ016")
    assert "has 2 outputs, its operator has 1" in found.message
    inner = build(in_branch("p = Relu(x, x)", "p"))
    assert [d.place.graph for d in find(inner, "OQ016")] == ["y/then_branch"]


def test_attributes_of_pairs_that_came_later_are_another_rule() -> None:
    model = build("y = QuantizeLinear<axis=1>(x, s)", {"s": np.float32(1)}, opset=10)
    assert not find(model, "OQ016") and find(model, "OQ306")
    made_up = build("y = QuantizeLinear<scale=1>(x, s)", {"s": np.float32(1)}, opset=10)
    assert places(made_up, "OQ016") == ["y"]


def test_attributes_that_a_call_fills_in() -> None:
    function = """<domain: "local", opset_import: ["" : 21]> op <axis> (a) => (b)
      { b = Softmax<axis : int = @axis>(a) }"""
    assert not find(build("y = local.op<axis=1>(x)", imports=', "local" : 1', functions=function), "OQ016")
