"""Plan files: what is written comes back, what is wrong is said with the nearest right thing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.errors import OptionError
from onnxq.facts import Decision, Plan, Wishes
from onnxq.numerics.spec import QTYPES, Blocked, Granularity, PerAxis, PerTensor, TensorSpec
from onnxq.planfile import Filed, plan_json, read_plan
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
    assert read_plan(write(tmp_path, plan_json(plan)), model).decisions == plan.decisions


def test_an_entry_needs_no_more_than_a_status(model: ir.Model, tmp_path: Path) -> None:
    data = {"format": "onnxq-plan-1", "nodes": {"last": {"status": "float"}}}
    filed = read_plan(write(tmp_path, data), model)
    assert filed == Filed({model.graph[3]: Decision("float", "by-plan", "by the plan file")})


@pytest.mark.parametrize(
    ("granularity", "spec"),
    [
        (PerTensor(), {"type": "int4", "symmetric": False}),
        (PerAxis(1), {"type": "int4", "symmetric": False, "axis": 1}),
        (PerAxis(None), {"type": "int4", "symmetric": False, "axis": None}),
        (Blocked(32, 0), {"type": "int4", "symmetric": False, "axis": 0, "block_size": 32}),
        (Blocked(32), {"type": "int4", "symmetric": False, "axis": None, "block_size": 32}),
    ],
)
def test_specs_come_back(granularity: Granularity, spec: dict[str, Any], model: ir.Model, tmp_path: Path) -> None:
    expected = TensorSpec(QTYPES["int4"], granularity=granularity)
    assert expected.to_json() == spec
    data = {
        "format": "onnxq-plan-1",
        "nodes": {},
        "activations": {"x": {**spec, "dynamic": True}},
        "weights": {"last:1": spec},
    }
    filed = read_plan(write(tmp_path, data), model)
    assert filed == Filed(activations={"x": replace(expected, dynamic=True)}, weights={"last:1": expected})


def test_what_is_not_as_the_file_says(model: ir.Model, tmp_path: Path) -> None:
    plan = made(model)
    data = plan_json(plan)
    assert not list(read_plan(write(tmp_path, data), model).differences(plan))
    data["nodes"]["first"]["status"] = "dynamic"
    data["nodes"]["act"]["status"] = "float"
    data["activations"]["x"]["type"] = "uint16"
    data["activations"]["gone"] = {"type": "int8"}
    data["weights"]["last:1"] = {"type": "int8", "symmetric": True}
    why = "only the status of nodes is taken from the file, types and granularity come from the options"
    assert {p.name: text for p, text in read_plan(write(tmp_path, data), model).differences(plan)} == {
        "first": "the plan file says dynamic, it becomes integer: Conv on integers",
        "x": f"the plan file says uint16 asymmetric per-tensor, it becomes uint8 asymmetric per-tensor: {why}",
        "last": "the plan file says int8 symmetric per-tensor for weight 'k', it becomes int8 symmetric per-channel: "
        + why,
    }


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
        ({"format": "onnxq-plan-1", "nodes": {}, "weights": []}, "plan.json: 'weights' must be a mapping, got \\[\\]"),
        (
            {"format": "onnxq-plan-1", "nodes": {}, "weights": {"last:1": "int4"}},
            "plan.json: 'last:1' in 'weights': a tensor spec needs a 'type', got 'int4'",
        ),
        (
            {"format": "onnxq-plan-1", "nodes": {}, "activations": {"x": {"type": "int9"}}},
            "plan.json: 'x' in 'activations': unknown quantized type 'int9'; did you mean int8",
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
