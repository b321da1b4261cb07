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
from onnxq.facts import Decision, Edge, Plan, Wishes
from onnxq.numerics.spec import QTYPES, Blocked, Granularity, PerAxis, PerTensor, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.plan import MakePlan
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


def planned(model: ir.Model, step: MakePlan, ctx: Context | None = None) -> Plan:
    ctx = ctx or Context()
    model.opset_imports[""] = 21
    run_step(step, model, ctx)
    return ctx.get(Plan)


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
    assert data["shared"] == [["r", "m"]] and data["reads"] == {}
    assert data["nodes"]["last"]["types"] == "uint8 x int8"


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
    x, last = model.graph.inputs[0], model.graph[3]
    data = {
        "format": "onnxq-plan-1",
        "nodes": {},
        "activations": {"x": {**spec, "range": [-1, 2], "method": "mse"}},
        "reads": {"last:0": spec},
        "weights": {"last:1": spec},
    }
    filed = read_plan(write(tmp_path, data), model)
    edges = {Edge(last, 0): expected}, {Edge(last, 1): expected}
    assert filed == Filed({}, {x: expected}, *edges, ranges={x: (-1.0, 2.0)}, methods={x: "mse"})


def test_types_ranges_and_reads_are_shown_and_obeyed(model: ir.Model, tmp_path: Path) -> None:
    """An edited file, read, planned and written again, is the file."""
    data = plan_json(planned(model, MakePlan()))
    data["activations"]["x"] = {"type": "uint16", "symmetric": False, "range": [-2.0, 2.0]}
    data["activations"]["y"] = {"type": "uint16", "symmetric": True, "method": "percentile"}
    data["reads"]["first:0"] = {"value": "x", "type": "uint8", "symmetric": False}
    data["weights"]["last:1"] |= {"type": "int16", "symmetric": False}
    made = planned(model, MakePlan(file=write(tmp_path, data)))
    data["nodes"]["last"]["types"] = "uint8 x int16"
    assert plan_json(made) == data
    x, y = model.graph.inputs[0], model.graph.outputs[0]
    assert made.fixed == {x: (-2.0, 2.0)} and made.methods == {y: "percentile"}
    assert str(made.read_by(Edge(model.graph[0], 0))) == "uint8 asymmetric per-tensor"


def test_without_a_read_of_its_own_a_use_follows_its_tensor(model: ir.Model, tmp_path: Path) -> None:
    data = plan_json(planned(model, MakePlan()))
    data["activations"]["x"]["type"] = "int16"
    made = planned(model, MakePlan(file=write(tmp_path, data)))
    assert not made.bridges and plan_json(made)["nodes"]["first"]["types"] == "int16 x int8"


def test_what_is_not_as_the_file_says(model: ir.Model, tmp_path: Path) -> None:
    data = plan_json(planned(model, MakePlan()))
    data["nodes"]["first"]["status"] = "dynamic"
    ctx = Context()
    planned(model, MakePlan(file=write(tmp_path, data)), ctx)
    notes = [(n.place.node, n.message) for n in ctx.report.notes if n.code == "plan-not-met"]
    assert notes == [("first", "the plan file says dynamic, it becomes integer: Conv on integers")]


def test_moved_data_keep_the_type_they_come_with(model: ir.Model, tmp_path: Path) -> None:
    data = plan_json(planned(model, MakePlan()))
    data["activations"]["m"]["type"] = "uint16"
    ctx = Context()
    made = planned(model, MakePlan(file=write(tmp_path, data)), ctx)
    assert {str(spec.qtype) for spec in made.activations.values()} == {"uint8"}
    (note,) = [n for n in ctx.report.notes if n.code == "plan-not-met"]
    why = "it holds the data of another tensor and shares its encoding"
    says = "the plan file says uint16 asymmetric per-tensor, it becomes uint8 asymmetric per-tensor"
    assert (note.place.value, note.message) == ("m", f"{says}: {why}")


@pytest.mark.parametrize(
    ("section", "entry", "words"),
    [
        ("activations", {"x": {"type": "int8"}}, "asks for int8 at 'x': target ort-cpu does not take int8 activations"),
        ("reads", {"last:0": {"type": "uint4"}}, "asks for uint4 at 'last:0': target ort-cpu does not take uint4"),
        (
            "weights",
            {"last:1": {"type": "int2"}},
            "asks for int2 at 'last:1': target ort-cpu does not take int2",
        ),
        ("activations", {"x": {"type": "uint8", "axis": 1}}, "at 'x': activations are quantized per tensor"),
    ],
)
def test_what_the_target_lacks(
    section: str, entry: dict[str, Any], words: str, model: ir.Model, tmp_path: Path
) -> None:
    data = {"format": "onnxq-plan-1", "nodes": {}, section: entry}
    with pytest.raises(OptionError, match=words):
        planned(model, MakePlan(file=write(tmp_path, data)))


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
            {"format": "onnxq-plan-1", "nodes": {}, "activations": {"xx": {"type": "int8"}}},
            "names tensor 'xx', which this model does not have; did you mean x",
        ),
        (
            {"format": "onnxq-plan-1", "nodes": {}, "activations": {"x": {"type": "int8", "range": [1, 0]}}},
            "the range of 'x' must be \\[low, high\\], got \\[1, 0\\]",
        ),
        (
            {"format": "onnxq-plan-1", "nodes": {}, "activations": {"x": {"type": "int8", "method": "msee"}}},
            "'x' has the unknown method 'msee'; did you mean mse",
        ),
        (
            {"format": "onnxq-plan-1", "nodes": {}, "weights": {"last:7": {"type": "int8"}}},
            "'last:7' in 'weights': node 'last' has no such input",
        ),
        (
            {"format": "onnxq-plan-1", "nodes": {}, "reads": {"lst:0": {"type": "int8"}}},
            "names node 'lst', which this model does not have; did you mean last",
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
