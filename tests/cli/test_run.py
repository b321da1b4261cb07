"""`onnxq run`, `passes`, `show`, `schema`: the options of each, and what they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from onnxq.cli.app import app

PASSES = {
    "halve.py": '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import onnx_ir as ir
from onnxq.passbase import Pass

@dataclass(frozen=True, kw_only=True)
class Halve(Pass):
    """Weights w -> w / 2."""

    name: ClassVar[str] = "halve"
    times: int = 1

    def run(self, model, ctx):
        for value in model.graph.initializers.values():
            value.const_value = ir.tensor(value.const_value.numpy() / np.float32(2**self.times), name=value.name)
            ctx.note("halved", value, "divided", times=np.int64(self.times))
        return True
''',
    "crash.py": "def crash(model):\n    raise KeyError('w')\n",
    "twice.yaml": "description: Two halves.\nparameters: {times: {default: 1}}\n"
    "steps:\n  - halve: {times: $times}\n  - halve: {times: $times}\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with passes of its own, named in its pyproject.toml; the working directory."""
    (tmp_path / "mine").mkdir()
    for name, text in PASSES.items():
        (tmp_path / "mine" / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text('[tool.onnxq]\npass-dirs = ["mine"]\n')
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.full(4, 8, np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*args: str, code: int = 0, stdin: bytes | None = None) -> tuple[bytes, str]:
    """stdout as bytes, stderr as text."""
    done = CliRunner().invoke(app, list(args), input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.stderr
    return done.stdout_bytes, done.stderr


def weight(model: onnx.ModelProto) -> float:
    return float(numpy_helper.to_array(model.graph.initializer[0])[0])


def test_a_recipe_with_parameters(folder: Path) -> None:
    out, _ = invoke("run", "twice", "m.onnx", "-o", "sub/q.onnx", "--param", "times=2")
    assert weight(onnx.load("sub/q.onnx")) == 0.5
    assert b"halved" in out and weight(onnx.load("m.onnx")) == 8


def test_a_single_pass_with_an_option(folder: Path) -> None:
    invoke("run", "halve", "m.onnx", "-o", "q.onnx", "--set", "halve.times=3")
    assert weight(onnx.load("q.onnx")) == 1
    invoke("run", "halve", "m.onnx", "-o", "q.onnx", "--param", "times=1")
    assert weight(onnx.load("q.onnx")) == 4


def test_stdin_to_stdout_carries_nothing_but_the_model(folder: Path) -> None:
    out, err = invoke("run", "halve", "-", "-o", "-", "--timing", stdin=Path("m.onnx").read_bytes())
    assert weight(onnx.load_from_string(out)) == 4
    assert "halved" in err and "Seconds per step" in err


def test_the_report_is_json_with_plain_numbers(folder: Path) -> None:
    invoke("run", "halve", "m.onnx", "-o", "q.onnx", "--report", "out/report.json")
    (notes,) = json.loads(Path("out/report.json").read_text())["notes"]
    assert (notes["code"], notes["notes"][0]["numbers"]) == ("halved", {"times": 1})
    assert [p.name for p in Path("out").iterdir()] == ["report.json"]


def test_instruments(folder: Path) -> None:
    out, _ = invoke(
        "run", "twice", "m.onnx", "-o", "q.onnx", "--verify-each", "--compare-each", "--dump-after", "all",
        "--dump-dir", "dump", "--timing",
    )  # fmt: skip
    assert sorted(p.name for p in Path("dump").iterdir()) == ["01-halve.onnx", "02-halve.onnx"]
    text = out.decode()
    assert "Error per step" in text and "Seconds per step" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("halve  ") and " y " in line]
    # x is random, w goes 8 -> 4 -> 2.
    assert [row[2] for row in rows] == ["4", "2"]


def test_a_failing_step_leaves_no_output_but_a_reproducer(folder: Path) -> None:
    Path("q.onnx").write_bytes(b"old")
    _, err = invoke("run", "crash", "m.onnx", "-o", "q.onnx", code=2)
    assert err.startswith("error: crash: KeyError: 'w' (--reproducer DIR keeps")
    assert len(err.splitlines()) == 1 and Path("q.onnx").read_bytes() == b"old"
    _, err = invoke("run", "crash", "m.onnx", "-o", "q.onnx", "--reproducer", "r", "--seed", "7", code=2)
    assert "see r)" in err
    assert Path("r/command.txt").read_text() == "onnxq run recipe.yaml model.onnx -o out.onnx --seed 7\n"
    os.chdir("r")
    assert "crash: KeyError" in invoke("run", "recipe.yaml", "model.onnx", "-o", "out.onnx", code=2)[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["twise", "m.onnx", "-o", "q.onnx"], "unknown pass or recipe 'twise'; did you mean twice?"),
        (["twice", "none.onnx", "-o", "q.onnx"], "none.onnx"),
        (["twice", "m.onnx", "-o", "mine"], "OUT mine is a folder"),
        (
            ["twice", "m.onnx", "-o", "q.onnx", "--param", "tims=1"],
            "--param tims: recipe twice has no parameter",
        ),
        (["twice", "m.onnx", "-o", "q.onnx", "--param", "times"], "--param: expected key=value, got 'times'"),
        (["twice", "m.onnx", "-o", "q.onnx", "--set", "halve.times=x"], "--set halve.times: option 'times' of halve"),
        (["twice", "m.onnx", "-o", "q.onnx", "--set", "a.b=1", "--set", "a.b=2"], "--set a.b: 'a.b' is given twice"),
        (["twice", "m.onnx", "-o", "q.onnx", "--dump-after", "halv"], "did you mean halve?"),
        (["twice", "m.onnx", "-o", "q.onnx", "--target", "ort-cup"], "unknown target 'ort-cup'; did you mean ort-cpu"),
        (["twice", "m.onnx", "-o", "q.onnx", "--pass-dir", "none"], "none does not exist"),
        (["twice", "m.onnx", "-o", "q.onnx", "--data", "none"], "data 'none': no such file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(folder: Path, args: list[str], message: str) -> None:
    before = sorted(p.name for p in folder.iterdir())
    _, err = invoke("run", *args, code=2)
    assert message in err and err.startswith("error: ") and len(err.splitlines()) == 1
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_wrong_setting_in_the_project_is_an_error(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.onnxq]\npass-dir = ["mine"]\n')
    assert "unknown setting 'pass-dir'; did you mean pass-dirs?" in invoke("passes", code=2)[1]


def test_passes_lists_without_running(folder: Path) -> None:
    (folder / "mine" / "halve.py").write_text(PASSES["halve.py"] + "\nraise RuntimeError('executed')\n")
    out = invoke("passes")[0].decode()
    assert "Weights w -> w / 2." in out and "Two halves." in out
    rows = {row["name"]: row for row in json.loads(invoke("passes", "--format", "json")[0])}
    assert rows["halve"] == {
        "name": "halve",
        "kind": "pass",
        "origin": str(folder / "mine"),
        "summary": "Weights w -> w / 2.",
    }
    assert rows["plan"]["origin"] == "onnxq"


def test_one_pass_or_recipe_in_full(folder: Path) -> None:
    assert "| times | an integer | 1 |" in invoke("passes", "halve")[0].decode()
    text = invoke("passes", "twice")[0].decode()
    assert text.startswith("# `twice`\n\nTwo halves.") and "- halve: {times: $times}" in text
    assert json.loads(invoke("passes", "halve", "--format", "json")[0])["options"]["times"]["default"] == "1"


def test_show_prints_a_recipe_that_runs(folder: Path) -> None:
    out, _ = invoke("show", "twice", "--set", "halve.times=2")
    assert out.decode() == "name: twice\nsteps:\n- halve: {times: 2}\n- halve: {times: 2}\n"
    Path("shown.yaml").write_bytes(out)
    invoke("run", "shown.yaml", "m.onnx", "-o", "q.onnx")
    assert weight(onnx.load("q.onnx")) == 0.5


def test_schema_knows_the_passes_of_the_project(folder: Path) -> None:
    schema = json.loads(invoke("schema")[0])
    assert schema["$defs"]["step:halve"]["properties"]["times"]["default"] == 1


def test_no_colour_and_no_bar_outside_a_terminal(folder: Path) -> None:
    command = [sys.executable, "-m", "onnxq", "run", "twice", "m.onnx", "-o", "q.onnx", "--timing"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "FORCE_COLOR": "", "NO_COLOR": "1"})
    assert done.returncode == 0 and b"\x1b" not in done.stdout and done.stderr == b""
