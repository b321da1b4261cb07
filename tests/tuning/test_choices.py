"""Which choices a target leaves to each part, which parts are neighbours, what a combination asks of the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.facts import Decision, Plan, Wishes
from onnxq.planning import Planner
from onnxq.targets import Target, load_target
from onnxq.tuning import choices
from onnxq.tuning.choices import Part, Types, links_of, parts_of, wishes_for

ORT = load_target("ort-cpu")
TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,32,8,8] x, int64[4] i) => (float[1,64] z, float[4,64] t)
  { a = Conv<pads=[1,1,1,1]>(x, w1) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w2) d = Add(c, b)
    e = MaxPool<kernel_shape=[8,8]>(d) f = Reshape(e, shape) g = MatMul(f, w3) h = Sin(g)
    z = Gemm(h, w4) t = Gather(table, i) }"""
WEIGHTS = {"w1": (32, 32, 3, 3), "w2": (32, 32, 3, 3), "w3": (32, 64), "w4": (64, 64), "table": (100, 64)}


def load() -> ir.Model:
    proto = parser.parse_model(TEXT)
    for name, shape in WEIGHTS.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 32]), "shape"))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for node in model.graph:
        node.name = node.outputs[0].name
    return model


def static(model: ir.Model, target: Target = ORT, **wishes: Any) -> Plan:
    base = Wishes(target.activation_spec(), target.weight_spec(), dynamic=False, **wishes)
    return Planner(target, base).make(model)


def names(parts: list[Part]) -> dict[str, tuple[str, ...]]:
    return {"+".join(n.name or "" for n in part.nodes): part.choices for part in parts}


def of(model: ir.Model, target: Target = ORT) -> tuple[list[Part], Types, Plan]:
    plan = static(model, target)
    types = Types.of(target, plan.wishes)
    return parts_of(model, target, plan, types), types, plan


def test_choices_of_each_part() -> None:
    parts, _, _ = of(load())
    conv, product = ("a8w8", "a16w8", "float"), ("a8w8", "dynamic", "a16w8", "w8", "w4", "float")
    found = names(parts)
    assert found["d"] == ("a8", "a16", "float") and found["t"] == ("w8", "float")
    assert found["g"] == found["z"] == product
    assert found["a"] == found["c"] == conv and set(found) == {"a", "c", "d", "g", "z", "t"}


def test_a_target_without_sixteen_and_four_bits() -> None:
    only8 = replace(ORT.activations, types=(ORT.activations.default,))
    weights = replace(ORT.weights, types=(ORT.weights.default,), blocked=False)
    parts, types, _ = of(load(), replace(ORT, activations=only8, weights=weights))
    assert types.a16 is None and types.w4 is None
    assert names(parts)["g"] == ("a8w8", "dynamic", "w8", "float") and names(parts)["d"] == ("a8", "float")


def test_a_target_that_pairs_four_bits_with_certain_activations_only() -> None:
    target = replace(ORT, combinations={"int4": ("uint8",), "int8": ("uint8",)})
    parts, types, _ = of(load(), target)
    assert types.w4 is None and types.a16 is None and names(parts)["a"] == ("a8w8", "float")


def test_neighbours_share_a_value() -> None:
    parts, _, plan = of(load())
    order = list(names(parts))
    found = {tuple(sorted((order[a], order[b]))) for a, b in links_of(parts, plan)}
    # Through the Relu, MaxPool and Reshape; Sin is float, so g and z share nothing.
    assert found == {("a", "c"), ("a", "d"), ("c", "d"), ("d", "g")}


def test_large_models_are_searched_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST_PARTS", 4)
    text = "".join(f"v{i + 1} = Conv(v{i}, w) " for i in range(8))
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,64,8,8] v0) => (float[1,64,8,8] v8) {{ {text} }}'
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64, 1, 1), np.float32), "w"))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for node in model.graph:
        node.name = node.outputs[0].name
    parts, _, plan = of(model)
    assert list(names(parts)) == ["v1+v2", "v3+v4", "v5+v6", "v7+v8"]
    assert set(links_of(parts, plan)) == {(0, 1), (1, 2), (2, 3)}


@pytest.mark.parametrize(
    ("picked", "status", "types"),
    [
        (
            {},
            {"a": "integer", "d": "integer", "g": "integer", "z": "integer", "t": "weight-only"},
            {"a": "uint8", "g": "uint8"},
        ),
        ({"a": "a16w8", "g": "dynamic"}, {"a": "integer", "g": "dynamic"}, {"a": "uint16"}),
        ({"c": "float", "g": "w4", "t": "float"}, {"c": "float", "d": "float", "g": "weight-only", "t": "float"}, {}),
        ({"d": "float"}, {"c": "integer", "d": "float"}, {"a": "uint8"}),
        ({"z": "a16w8"}, {"z": "integer"}, {"z": "uint16"}),
    ],
)
def test_combinations_become_plans(picked: dict[str, str], status: dict[str, str], types: dict[str, str]) -> None:
    model = load()
    parts, kinds, plan = of(model)
    picks = tuple(p.choices.index(picked.get(p.nodes[0].name or "", p.choices[0])) for p in parts)
    made = Planner(ORT, wishes_for(picks, parts, kinds, plan.wishes)).make(model)
    nodes = {node.name or "": node for node in model.graph}
    assert {name: made.decisions[nodes[name]].status for name in status} == status
    for name, wanted in types.items():
        value = nodes[name].inputs[0]
        spec = made.activations.get(value) if value is not None else None
        assert spec is not None and spec.qtype.name == wanted


def test_what_was_left_float_before_stays_so() -> None:
    """Nodes that calibration showed unfit are no part of the search."""
    model = load()
    nodes = {node.name: node for node in model.graph}
    plan = static(
        model, banned={nodes["c"]: Decision("float", "infinite-range", "x"), nodes["t"]: Decision("float", "y", "y")}
    )
    types = Types.of(ORT, plan.wishes)
    assert not {"c", "t"} & set(names(parts_of(model, ORT, plan, types)))
