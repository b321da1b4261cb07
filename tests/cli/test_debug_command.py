import io
import json
import types
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq as library

LENET = Path(__file__).parents[2] / "models" / "lenet"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """LeNet, its integer form, and eight digits."""
    folder = tmp_path_factory.mktemp("lenet")
    with np.load(LENET / "calibration.npz") as samples:
        np.savez(folder / "data.npz", **{name: array[:8] for name, array in samples.items()})
    library.quantize(
        LENET / "lenet.onnx", str(folder / "data.npz"), output=folder / "int8.onnx", rounding="nearest", search=False
    )
    return LENET / "lenet.onnx", folder / "int8.onnx", folder / "data.npz"


def test_table_and_advice(onnxq, files):
    left, right, data = files
    code, out, err = onnxq("debug", left, right, "--data", data, "--top", 3)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert " ".join(lines[1].split()) == "value node op local weights inputs rounding cumulative cosine"
    assert "matched by provenance" in out and "not shown" in out and lines[5] == "" and "\x1b" not in out
    assert "No layer stands out" in out or "--exclude" in out


def test_a_missed_bound_is_exit_1(onnxq, files):
    left, right, data = files
    code, out, err = onnxq("debug", left, right, "--data", data, "--min-sqnr", 300)
    assert code == 1 and "conv2_out: local SQNR" in err and "conv2_out" in out
    assert onnxq("debug", left, right, "--data", data, "--min-sqnr", 5)[0] == 0


def test_json(onnxq, files):
    left, right, data = files
    code, out, _ = onnxq("debug", left, right, "--data", data, "--format", "json", "--samples", 1, "--top", 1)
    found = json.loads(out)
    assert code == 0 and found["format"] == "onnxq-debug-1" and found["missed"] == []
    assert found["matched"] == len(found["tensors"]) == 11
    weights = {t["node"]: t["weights"] for t in found["tensors"]}
    assert weights["conv1"]["sqnr_db"] > 30 and weights["relu1"] is None


def test_stdin(onnxq, files, monkeypatch):
    left, right, data = files
    stdin = types.SimpleNamespace(buffer=io.BytesIO(Path(right).read_bytes()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert onnxq("debug", left, "-", "--data", data)[0] == 0


def test_bad_input_is_exit_2(onnxq, files, tmp_path):
    left, right, data = files
    other = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] z) => (float[2] y) {y = Abs(z)}'
    )
    onnx.save(other, tmp_path / "other.onnx")
    for args in (
        (left, tmp_path / "none.onnx", "--data", data),
        (left, tmp_path / "other.onnx", "--data", data),
        (left, right, "--data", tmp_path / "nowhere"),
        (left, right),
        (left, right, "--data", data, "--memory", 0),
    ):
        code, out, err = onnxq("debug", *args)
        assert (code, out) == (2, "") and err and "Traceback" not in err
