"""Whether a layer quantizes its input at run time: by its place, or as wished for it alone, and through a plan file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.facts import Plan, Wish, Wishes
from onnxq.passbase import Context
from onnxq.passes.plan import MakePlan
from onnxq.planfile import plan_json
from onnxq.planning import Planner
from onnxq.targets import load_target

TEXT = """<ir_version: 8, opset_import: ["" : 21]> g (float[6,16] x) => (float[6,16] z) {
  a = Sin(x) b = MatMul(a, w1) c = Sin(b) d = MatMul(c, w2) e = Reshape(d, shape) f = MatMul(e, w3) z = Sin(f) }"""
Dynamic = Literal["auto", "always", "never"]


def load() -> ir.Model:
    proto = parser.parse_model(TEXT)
    for name in ("w1", "w2", "w3"):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones((16, 16), np.float32), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([6, 16]), "shape"))
    model = ir.from_proto(proto)
    for node in model.graph:
        node.name = f"make_{node.outputs[0].name}"
    return model


def plan(model: ir.Model, **dynamic: Dynamic) -> Plan:
    target = load_target("ort-cpu")
    base = Wishes(target.activation_spec(), target.weight_spec())
    nodes = {
        n: Wish(base.activation, base.weight, dynamic=dynamic[n.name or ""]) for n in model.graph if n.name in dynamic
    }
    return Planner(target, Wishes(base.activation, base.weight, nodes=nodes)).make(model)


def statuses(made: Plan) -> dict[str, str]:
    return {n.outputs[0].name or "": d.status for n, d in made.decisions.items() if n.op_type != "Sin"}


@pytest.mark.parametrize(
    ("wishes", "found"),
    [
        ({}, {"b": "dynamic", "d": "integer", "e": "moves", "f": "integer"}),
        ({"make_b": "never"}, {"b": "integer", "d": "integer", "e": "moves", "f": "integer"}),
        ({"make_d": "always"}, {"b": "dynamic", "d": "dynamic", "e": "float", "f": "dynamic"}),
        ({"make_f": "always"}, {"b": "dynamic", "d": "dynamic", "e": "float", "f": "dynamic"}),
        ({"make_d": "always", "make_f": "never"}, {"b": "dynamic", "d": "dynamic", "e": "float", "f": "integer"}),
    ],
)
def test_by_place_or_as_wished(wishes: dict[str, Dynamic], found: dict[str, str]) -> None:
    assert statuses(plan(load(), **wishes)) == found


@pytest.mark.parametrize("wishes", [{"make_b": "never"}, {"make_d": "always", "make_f": "never"}, {}])
def test_a_plan_file_keeps_it(wishes: dict[str, Dynamic], tmp_path: Path) -> None:
    made = plan(load(), **wishes)
    (tmp_path / "plan.json").write_text(json.dumps(plan_json(made)), encoding="utf-8")
    model, ctx = load(), Context()
    MakePlan(file=str(tmp_path / "plan.json")).run(model, ctx)
    assert statuses(ctx.get(Plan)) == statuses(made) and ctx.report.notes == []
