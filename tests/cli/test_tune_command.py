import io
import json
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.cli import _common
from onnxq.errors import OptionError
from onnxq.tuning import tuner

LENET = Path(__file__).parents[2] / "models" / "lenet"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Sixteen digits, one a sample, and as few timed rounds as there can be."""
    monkeypatch.setattr(tuner, "RACE_SECONDS", 0.0)
    with np.load(LENET / "calibration.npz") as samples:
        folder = tmp_path / "digits"
        folder.mkdir()
        for i, image in enumerate(samples["image"][:16]):
            np.savez(folder / f"{i}.npz", image=image[None])
    return folder


def tune(onnxq, data, *args):
    return onnxq("tune", LENET / "lenet.onnx", "--data", data, "--rounding", "nearest", *args)


def test_model_plan_and_report(onnxq, data, tmp_path):
    out, plan, report = tmp_path / "out.onnx", tmp_path / "plan.json", tmp_path / "pareto.json"
    code, text, err = tune(
        onnxq, data, "-o", out, "--min-sqnr", 35, "--max-size", "60kB", "--save-plan", plan, "--report", report
    )
    assert (code, err) == (0, "")
    found = json.loads(report.read_text())
    point = found["points"][found["chosen"]]
    assert found["format"] == "onnxq-tune-1" and found["missed"] == [] and found["samples"] == 16
    assert point["sqnr_db"] >= 35 and point["bytes"] == out.stat().st_size <= 60_000
    assert {"bytes", "estimated_ratio", "ratio", "sqnr_db", "cosine", "agreement"} <= set(point)
    assert json.loads(plan.read_text())["format"] == "onnxq-plan-1"
    assert "->" in text and f"Plan {found['chosen'] + 1} is taken" in text and "becomes" in text and "\x1b" not in text
    onnx.checker.check_model(onnx.load(out), full_check=True)
    code, _, err = onnxq(
        "quantize", LENET / "lenet.onnx", "--data", data, "--plan", plan, "--no-search", "--rounding", "nearest",
        "-o", tmp_path / "again.onnx",
    )  # fmt: skip
    assert (code, err) == (0, "") and abs((tmp_path / "again.onnx").stat().st_size - out.stat().st_size) < 100


def test_no_plan_is_exit_1_with_the_table_and_the_nearest(onnxq, data, tmp_path):
    out, plan = tmp_path / "out.onnx", tmp_path / "plan.json"
    code, text, err = tune(onnxq, data, "-o", out, "--min-sqnr", 80, "--max-size", "20kB", "--save-plan", plan)
    assert code == 1 and not out.exists() and plan.exists()
    assert "No plan meets the bounds" in text and "comes nearest" in text and "->" not in text
    assert "SQNR" in err or "bytes are more" in err


def test_json_and_stdout(onnxq, data, monkeypatch):
    code, text, _ = tune(onnxq, data, "-o", data.parent / "o.onnx", "--min-cosine", 0.99, "--format", "json")
    assert code == 0 and json.loads(text)["chosen"] == 0
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=written, isatty=lambda: False, flush=lambda: None))
    assert tune(onnxq, data, "-o", "-", "--min-cosine", 0.99)[0] == 0
    onnx.checker.check_model(onnx.load_from_string(written.getvalue()))


def test_bad_usage_is_exit_2(onnxq, data, tmp_path):
    for args in (
        ("-o", tmp_path / "o.onnx"),
        ("-o", tmp_path / "o.onnx", "--max-size", "5 parsecs"),
        ("-o", tmp_path / "o.onnx", "--min-agreement", 97),
        ("-o", tmp_path, "--min-sqnr", 30),
        ("-o", tmp_path / "o.onnx", "--min-sqnr", 30, "--target", "ortcpu"),
    ):
        code, text, err = tune(onnxq, data, *args)
        assert (code, text) == (2, "") and err and "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "size"),
    [("5MB", 5e6), ("800 kB", 8e5), ("1.5GB", 1.5e9), ("123", 123), ("7b", 7), (".5mb", 5e5), ("3k", None)],
)
def test_sizes(text, size):
    if size is not None:
        assert _common.size_in_bytes(text) == size
        return
    with pytest.raises(OptionError, match="no size"):
        _common.size_in_bytes(text)
