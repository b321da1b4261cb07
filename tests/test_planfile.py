"""Plan files: what is written comes back, what is wrong is said with the nearest right thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.errors import OptionError
from onnxq.facts import Decision, Plan, Wishes
from onnxq.planfile import plan_json, read_plan
from onnxq.planning import Planner
from onnxq.targets import load_target


@pytest.fixture
def model() -> ir.Model:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,8,8] x) => (float[a,b,c,d] y) {
      c = Conv(x, k) r = Relu(c) m = MaxPool<kernel_shape=[2,2]>(r) y = Conv(m, k)
    }""")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "k"))
    for node, name in zip(proto.graph.node, ("first", "act", "pool", "last"), strict=True):
        node.name = name
    return ir.from_proto(proto)


def made(model: ir.Model) -> Plan:
    target = load_target("ort-cpu")
    return Planner(target, Wishes(target.activation_spec(), target.weight_spec())).make(model)


def write(folder: Path, data: Any) -> str:
    file = folder / "plan.json"
    file.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return str(file)


def test_what_is_written(model: ir.Model) -> None:
    data = plan_json(made(model))
    assert json.loads(json.dumps(data)) == data
    assert list(data["nodes"]) == ["first", "act", "pool", "last"], "in graph order"
    assert data["nodes"]["act"] == {
        "op": "Relu",
        "status": "integer",
        "code": "part-of-layer",
        "reason": "computed inside first",
    }
    assert data["activations"]["x"] == {"type": "uint8", "symmetric": False}
    assert data["weights"]["last:1"] == {"value": "k", "type": "int8", "symmetric": True, "axis": None}
    assert data["shared"] == [["r", "m"]]


def test_what_comes_back(model: ir.Model, tmp_path: Path) -> None:
    plan = made(model)
    assert read_plan(write(tmp_path, plan_json(plan)), model) == plan.decisions


def test_an_entry_needs_no_more_than_a_status(model: ir.Model, tmp_path: Path) -> None:
    data = {"format": "onnxq-plan-1", "nodes": {"last": {"status": "float"}}}
    assert read_plan(write(tmp_path, data), model) == {model.graph[3]: Decision("float", "by-plan", "by the plan file")}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{", "cannot read the plan .*plan.json"),
        ("[]", "is not a plan: expected 'format': 'onnxq-plan-1' and 'nodes'"),
        ({"format": "onnxq-ranges-1"}, "is not a plan"),
        ({"format": "onnxq-plan-1", "nodes": []}, "is not a plan"),
        ({"format": "onnxq-plan-1", "nodes": {"lst": {}}}, "names node 'lst'.*did you mean last"),
        ({"format": "onnxq-plan-1", "nodes": {"last": 3}}, "node 'last' has the unknown status None"),
        (
            {"format": "onnxq-plan-1", "nodes": {"last": {"status": "flaot"}}},
            "unknown status 'flaot'; did you mean float?",
        ),
    ],
)
def test_bad_files(data: Any, words: str, model: ir.Model, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        read_plan(write(tmp_path, data), model)


def test_no_file(model: ir.Model, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json", model)
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="cannot read the plan"):
        read_plan(tmp_path / "bad.json", model)
