"""`onnxq lint` and `onnxq rule` as a stranger would use them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from typer.testing import CliRunner, Result

from onnxq.cli.app import app

LENET = str(Path("models/lenet/lenet.onnx").resolve())
BODY = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,4] x) => (float[1,4] y) {
    i = QuantizeLinear(x, s, z) y = DequantizeLinear(i, t, z) }"""


def pair(second: float = 0.1) -> onnx.ModelProto:
    proto = parser.parse_model(BODY)
    for node in proto.graph.node:
        node.name = node.op_type
    arrays = {"s": np.float32(0.1), "t": np.float32(second), "z": np.uint8(128)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return proto


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(pair(0.2), tmp_path / "bad.onnx")
    (tmp_path / "more").mkdir()
    onnx.save(pair(), tmp_path / "more" / "good.onnx")
    return tmp_path


def lint(*arguments: str, data: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["lint", *arguments], input=data)


def test_exit_codes(folder: Path) -> None:
    assert lint("more/good.onnx").exit_code == 0 and lint(LENET).exit_code == 0
    found = lint("bad.onnx")
    assert found.exit_code == 1 and "error OQ101 pair-parameters-differ" in found.stdout
    assert "quantize 0.1, dequantize 0.2" in found.stdout
    assert lint("bad.onnx", "--exit-zero").exit_code == 0 and lint("bad.onnx", "--fail-on", "never").exit_code == 0
    assert lint("bad.onnx", "--ignore", "OQ101").exit_code == 0
    for wrong in (["nope.onnx"], ["bad.onnx", "--select", "OQ99"], ["bad.onnx", "--target", "nope"], ["*.nothing"]):
        refused = lint(*wrong)
        assert refused.exit_code == 2 and refused.stderr.startswith("error: "), wrong


def test_folders_patterns_and_stdin(folder: Path) -> None:
    every = json.loads(lint(".", "--format", "json").stdout)
    assert every["files"] == 2 and [f["file"] for f in every["findings"]] == ["bad.onnx"]
    assert json.loads(lint("**/*.onnx", "bad.onnx", "--format", "json").stdout)["files"] == 2
    piped = lint("-", "--format", "concise", data=pair(0.2).SerializeToString())
    assert piped.exit_code == 1 and piped.stdout.startswith("<stdin>: DequantizeLinear (DequantizeLinear): error OQ101")


def test_files_side_by_side_in_order(folder: Path) -> None:
    for i in range(3):
        proto = pair(0.1 + i)
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 20, np.float32), "unused"))
        onnx.save(proto, folder / f"big{i}.onnx")
    found = json.loads(lint("big0.onnx", "big1.onnx", "big2.onnx", "--jobs", "2", "--format", "json").stdout)
    assert [f["file"] for f in found["findings"] if f["code"] == "OQ012"] == ["big0.onnx", "big1.onnx", "big2.onnx"]


def test_files_that_are_no_models_are_findings(folder: Path) -> None:
    (folder / "text.onnx").write_text("<html>refused</html>")
    (folder / "empty.onnx").touch()
    (folder / "cut.onnx").write_bytes(pair().SerializeToString()[:-7])
    found = json.loads(lint("text.onnx", "empty.onnx", "cut.onnx", "--format", "json").stdout)["findings"]
    assert {f["file"] for f in found if f["severity"] == "error"} == {"text.onnx", "empty.onnx", "cut.onnx"}
    assert {f["code"] for f in found} <= {"OQ001", "OQ002", "OQ003", "OQ007"}


def test_settings_of_the_project(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.onnxq.lint]\nignore = ["OQ101"]\n')
    assert lint("bad.onnx").exit_code == 0
    assert lint("bad.onnx", "--isolated").exit_code == 1
    (folder / "other.toml").write_text('lint.per-node-ignores = {"Quant*" = ["OQ1"]}\n')
    assert lint("bad.onnx", "--config", "other.toml").exit_code == 1
    (folder / "other.toml").write_text('lint.per-file-ignores = {"bad.onnx" = ["OQ1"]}\n')
    hidden = lint("bad.onnx", "--config", "other.toml")
    assert hidden.exit_code == 0 and "1 not shown" in hidden.stdout
    (folder / "other.toml").write_text("lint.bad = 1\n")
    refused = lint("bad.onnx", "--config", "other.toml")
    assert refused.exit_code == 2 and "other.toml: unknown setting 'lint.bad'" in refused.stderr


def test_known_findings_do_not_count(folder: Path) -> None:
    written = lint(".", "--baseline", "known.json", "--update-baseline")
    assert written.exit_code == 0 and "1 known finding" in written.stderr
    assert lint(".", "--baseline", "known.json").exit_code == 0
    onnx.save(pair(0.3), folder / "new.onnx")
    assert lint(".", "--baseline", "known.json").exit_code == 1
    assert lint(".", "--baseline", "missing.json").exit_code == 2
    assert lint(".", "--update-baseline").exit_code == 2


def test_metadata_suppresses_and_is_reported_where_it_does_not(folder: Path) -> None:
    proto = pair(0.2)
    helper.set_model_props(proto, {"onnxq.noqa": "OQ101"})
    onnx.save(proto, folder / "said.onnx")
    assert lint("said.onnx").exit_code == 0
    proto.graph.node[1].metadata_props.add(key="onnxq.noqa", value="OQ303")
    onnx.save(proto, folder / "said.onnx")
    assert "OQ901" in lint("said.onnx").stdout


def test_output_goes_to_a_file_and_warnings_can_be_too_many(folder: Path) -> None:
    proto = pair()
    proto.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(proto, folder / "warn.onnx")
    assert lint("warn.onnx").exit_code == 0 and lint("warn.onnx", "--max-warnings", "0").exit_code == 1
    done = lint("warn.onnx", "--format", "sarif", "--output-file", "out/found.sarif")
    assert done.stdout == "" and json.loads((folder / "out" / "found.sarif").read_text())["version"] == "2.1.0"
    assert lint("warn.onnx", "--statistics").stdout.splitlines()[0] == "1 OQ011 unused-import"


def rule(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["rule", *arguments])


def test_rule_explains() -> None:
    one = rule("OQ303")
    assert one.exit_code == 0 and one.stdout.startswith("OQ303 not-output-channel\n\nSeverity: error.")
    assert rule("not-output-channel").stdout == one.stdout
    assert json.loads(rule("OQ303", "--format", "json").stdout)["name"] == "not-output-channel"
    listed = rule().stdout.splitlines()
    assert listed[0].split() == ["OQ001", "error", "unreadable"] and len(listed) > 60
    assert len(rule("--all").stdout) > 20_000
    missing = rule("OQ3O3")
    assert missing.exit_code == 2 and "did you mean" in missing.stderr


def test_rule_waits_for_neither_onnx_nor_numpy() -> None:
    text = (
        "import sys; from onnxq.cli.app import app\n"
        "try: app(['rule', 'OQ303'])\n"
        "except SystemExit: pass\n"
        "assert not {'onnx', 'onnx_ir', 'numpy', 'onnxruntime'} & set(sys.modules), 'too much'"
    )
    subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)
