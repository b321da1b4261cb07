"""`onnxq plan`: the decisions as a table and as JSON, before and after calibration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

from onnxq.cli.app import app

Cli = Callable[..., tuple[int, str, str]]

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,4,8,8] x) => (float[n,16,8,8] y) {
  [a] a = Conv<pads=[1,1,1,1]>(x, w1) [b] b = Relu(a) [c] c = Conv(b, w2) [e] e = Erf(c) [y] y = Identity(e) }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    proto = parser.parse_model(NET)
    for name, shape in {"w1": (8, 4, 3, 3), "w2": (16, 8, 1, 1)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "0.npz", x=rng.standard_normal((1, 4, 8, 8)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def row(out: str, node: str) -> list[str]:
    (found,) = [line.split() for line in out.splitlines() if line.split()[:1] == [node] and len(line.split()) > 3]
    return found


def test_every_layer_with_its_reason(folder: Path, onnxq: Cli) -> None:
    code, out, err = onnxq("plan", "m.onnx")
    assert (code, err) == (0, "") and [p.name for p in sorted(folder.iterdir())] == ["data", "m.onnx"]
    assert row(out, "a") == ["a", "Conv", "integer", "layer", "Conv", "on", "integers"]
    assert row(out, "b") == ["b", "Relu", "integer", "part-of-layer", "computed", "inside", "a"]
    assert row(out, "e")[:3] == ["e", "Erf", "float"] and "has no integer kernel for Erf" in out
    assert "Planned without samples: with --data" in out


def test_with_samples(folder: Path, onnxq: Cli) -> None:
    code, out, _ = onnxq("plan", "m.onnx", "--data", "data", "--no-search")
    assert code == 0 and row(out, "a")[2] == "integer" and "Planned without samples" not in out


def test_json_is_the_file_that_goes_back_in(folder: Path, onnxq: Cli) -> None:
    code, out, _ = onnxq("plan", "m.onnx", "--format", "json", "-o", "out/plan.json")
    plan = json.loads(out)
    assert code == 0 and plan == json.loads(Path("out/plan.json").read_text())
    assert plan["format"] == "onnxq-plan-1" and plan["nodes"]["a"]["status"] == "integer"
    assert plan["activations"]["x"] == {"type": "uint8", "symmetric": False}
    assert plan["weights"]["a:1"] == {"value": "w1", "type": "int8", "symmetric": True, "axis": None}
    code, *_ = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--data", "data", "--plan", "out/plan.json", "--no-search")
    assert code == 0
    assert [n.op_type for n in onnx.load("q.onnx").graph.node].count("QuantizeLinear") == 3
    plan["nodes"]["a"]["status"] = plan["nodes"]["c"]["status"] = "float"
    Path("edited.json").write_text(json.dumps(plan))
    onnxq("quantize", "m.onnx", "-o", "f.onnx", "--data", "data", "--plan", "edited.json", "--no-search")
    assert "QuantizeLinear" not in [n.op_type for n in onnx.load("f.onnx").graph.node]


def test_the_same_plan_twice(folder: Path, onnxq: Cli) -> None:
    one, two = (onnxq("plan", "m.onnx", "--format", "json", "--data", "data")[1] for _ in range(2))
    assert one == two


def test_options(folder: Path, onnxq: Cli) -> None:
    _, out, _ = onnxq("plan", "m.onnx", "--exclude", "c", "--activations", "uint16", "--format", "json")
    plan = json.loads(out)
    assert plan["nodes"]["c"]["status"] == "float" and plan["nodes"]["c"]["code"] == "excluded"
    _, out, _ = onnxq("plan", "m.onnx", "--activations", "uint16", "--weights", "int16", "--format", "json")
    plan = json.loads(out)
    assert plan["activations"]["x"]["type"] == "uint16" and plan["weights"]["a:1"]["type"] == "int16"


def test_stdin(folder: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "-", "--format", "json"], input=Path("m.onnx").read_bytes())
    assert done.exit_code == 0 and json.loads(done.stdout)["nodes"]["a"]["status"] == "integer"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.onnx"], "none.onnx: No such file"),
        (["data"], "this is a directory"),
        (["m.onnx", "--exclude", "aa"], "selector 'aa' matches no node; did you mean a?"),
        (["m.onnx", "--target", "ort"], "unknown target 'ort'; did you mean ort-cpu"),
        (["m.onnx", "--weights", "int9"], "unknown quantized type 'int9'"),
        (["m.onnx", "--data", "nowhere"], "data 'nowhere': no such file"),
        (["m.onnx", "--samples", "2"], "samples and preprocessing need data"),
        (["m.onnx", "--dynamic", "maybe"], "--dynamic: option 'dynamic' of plan: expected one of auto, never"),
    ],
)
def test_bad_input(args: list[str], message: str, folder: Path, onnxq: Cli) -> None:
    code, out, err = onnxq("plan", *args, "-o", "out/plan.json")
    assert code == 2 and out == "" and message in err and len(err.splitlines()) == 1
    assert err.startswith("error: ") and not Path("out").exists()
