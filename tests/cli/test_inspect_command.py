import io
import json
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser


@pytest.fixture
def path(tmp_path):
    head = '<ir_version: 8, opset_import: ["": 17]>'
    model = parser.parse_model(head + " g (float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_text(onnxq, path):
    code, out, err = onnxq("inspect", path)
    assert (code, err) == (0, "")
    for words in (path, "opset ai.onnx 17", "float32  [2, 4]", "MatMul\N{NO-BREAK SPACE}1", "100.0 %", "no Q/DQ pair"):
        assert words in out
    assert "\x1b" not in out


def test_json(onnxq, path):
    code, out, _ = onnxq("inspect", path, "--format", "json")
    data = json.loads(out)
    assert code == 0 and data["format"] == "onnxq-inspect-1" and data["weight_bytes"] == 48
    assert data["file"] == path


def test_stdin(onnxq, path, monkeypatch):
    with Path(path).open("rb") as file:
        stdin = types.SimpleNamespace(buffer=io.BytesIO(file.read()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, _ = onnxq("inspect", "-")
    assert code == 0 and "in memory" in out


def test_bad_input(onnxq, tmp_path, path):
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model at all")
    for args in ([str(tmp_path / "none.onnx")], [str(bad)], [str(tmp_path)], [path, "--target", "tenserrt"]):
        code, out, err = onnxq("inspect", *args)
        assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
