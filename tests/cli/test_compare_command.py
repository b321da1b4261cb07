import io
import json
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


@pytest.fixture
def files(tmp_path):
    """A float model, one that is off by 1 % of noise, and two samples."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 5)).astype(np.float32)
    paths = []
    for name, w in (("float", weight), ("quant", weight + rng.normal(size=(8, 5), scale=0.01).astype(np.float32))):
        model = parser.parse_model(f"{HEAD} g (float[n, 8] x) => (float[n, 5] y) {{ y = MatMul(x, w) }}")
        model.graph.initializer.append(numpy_helper.from_array(w, "w"))
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(model, paths[-1])
    data = tmp_path / "data"
    data.mkdir()
    for i in range(2):
        np.savez(data / f"{i}.npz", x=rng.normal(size=(3, 8)).astype(np.float32))
    return (*paths, data)


def test_within_the_bounds(onnxq, files):
    left, right, data = files
    code, out, err = onnxq("compare", left, right, "--data", data, "--min-cosine", 0.99, "--min-sqnr", 20)
    assert (code, err) == (0, "")
    assert "on 2 samples of" in out and "Latency" in out and "Size" in out and "\x1b" not in out


def test_beyond_a_bound_is_exit_1(onnxq, files):
    left, right, data = files
    code, out, err = onnxq("compare", left, right, "--data", data, "--min-sqnr", 90, "--no-latency")
    assert code == 1 and "cosine" in out and "Latency" not in out
    assert [line.split(" is ")[0].split(":")[0] for line in err.splitlines()] == ["y (default)", "y (true)"]


def test_json(onnxq, files):
    left, right, data = files
    code, out, _ = onnxq(
        "compare", left, right, "--data", data, "--samples", 1, "--format", "json", "--min-cosine", 0.9999999
    )
    found = json.loads(out)
    assert code == 1 and found["samples"] == 1 and found["format"] == "onnxq-compare-1"
    assert len(found["missed"]) == 2 and found["float_ms"] > 0
    assert found["outputs"][0]["sessions"]["true"]["values"] == 15


def test_stdin(onnxq, files, monkeypatch):
    left, right, data = files
    stdin = types.SimpleNamespace(buffer=io.BytesIO(Path(right).read_bytes()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, _ = onnxq("compare", left, "-", "--data", data, "--no-latency")
    assert code == 0 and "cosine" in out
    words = "error: FLOAT and QUANT are both -: only one model comes in on stdin\n"
    assert onnxq("compare", "-", "-", "--data", data) == (2, "", words)
    assert onnxq("compare", "-", left, "--data", data) == (2, "", "error: MODEL is -, but stdin is empty\n")


def test_not_a_number_in_both_models_is_told(onnxq, files, tmp_path):
    left, right, _ = files
    x = np.ones((2, 8), np.float32)
    x[0, 3] = np.nan
    np.save(tmp_path / "nan.npy", x)
    code, out, _ = onnxq("compare", left, right, "--data", tmp_path / "nan.npy", "--no-latency")
    assert code == 0
    assert "y: 5 of 10 values infinite or NaN in both models: left out" in out


def test_bad_input_is_exit_2(onnxq, files, tmp_path):
    left, right, data = files
    other = parser.parse_model(f"{HEAD} g (float[n, 8] z) => (float[n, 8] y) {{ y = Relu(z) }}")
    onnx.save(other, tmp_path / "other.onnx")
    (tmp_path / "empty").mkdir()
    for args in (
        (left, tmp_path / "none.onnx", "--data", data),
        (left, tmp_path / "other.onnx", "--data", data),
        (left, right, "--data", tmp_path / "empty"),
        (left, right, "--data", tmp_path / "nowhere"),
        (left, right),
        (left, right, "--data", data, "--samples", 0),
    ):
        code, out, err = onnxq("compare", *args)
        assert (code, out) == (2, "") and err and "Traceback" not in err
