import io
import json
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest

LENET = Path(__file__).parents[2] / "models" / "lenet"
QUICK = (
    "--weights",
    "int4",
    "--rounding",
    "nearest",
    "--no-search",
    "--epochs",
    2,
    "--batch",
    8,
    "--threads",
    1,
    "--lr",
    0.01,
)


@pytest.fixture
def data(tmp_path):
    """Sixty-four digits in files of one, with labels."""
    with np.load(LENET / "training.npz") as stored:
        images, labels = stored["pixels"][:64, None].astype(np.float32) / 255, stored["labels"][:64]
    folder = tmp_path / "digits"
    folder.mkdir()
    for i in range(64):
        np.savez(folder / f"{i}.npz", **{"image": images[i : i + 1], "target.logits": labels[i : i + 1].astype(int)})
    return folder


def train(onnxq, data, *args, model=LENET / "lenet.onnx"):
    return onnxq("train", model, "--data", data, *args)


def test_model_report_and_checkpoint(onnxq, data, tmp_path):
    out, report, folder = tmp_path / "out.onnx", tmp_path / "report.json", tmp_path / "state"
    code, text, err = train(onnxq, data, *QUICK, "-o", out, "--report", report, "--checkpoint", folder)
    assert (code, err) == (0, "")
    assert "Training on 56 samples, judged on 8 held-out ones" in text and "SQNR, dB" in text and "14 steps" in text
    assert f"Written  {out}" in text and "\x1b" not in text
    onnx.checker.check_model(onnx.load(out), full_check=True)
    table = json.loads(report.read_text())["tables"]["training"]
    assert table["after"]["loss"] < table["before"]["loss"] and len(table["epochs"]) == 2
    first = out.read_bytes()
    code, text, _ = train(onnxq, data, *QUICK, "-o", out, "--checkpoint", folder)
    assert code == 0 and "after 14 of a checkpoint" in " ".join(text.split()) and out.read_bytes() == first
    code, text, err = train(onnxq, data, *QUICK, "-o", out, "--checkpoint", folder, "--lr", 0.1)
    assert (code, text) == (2, "") and "lr 0.01 there, 0.1 now" in err and out.read_bytes() == first


def test_labels_rates_and_frozen_layers(onnxq, data, tmp_path):
    code, text, err = train(
        onnxq, data, *QUICK, "-o", tmp_path / "o.onnx", "--loss", "cross-entropy", "--lr-factor", "bias=2", "--scales",
        "--lr-factor", "scale=0.5", "--freeze", "conv1", "--optimizer", "sgd", "--schedule", "step",
    )  # fmt: skip
    assert (code, err) == (0, "") and "accuracy" in text and "cross-entropy, sgd, learning rate 0.01 (step)" in text


def test_a_quantized_model_with_its_teacher(onnxq, data, tmp_path):
    start, out = tmp_path / "start.onnx", tmp_path / "out.onnx"
    with np.load(LENET / "calibration.npz") as samples:
        np.savez(tmp_path / "some.npz", image=samples["image"])
    quick = QUICK[:5]
    assert onnxq("quantize", LENET / "lenet.onnx", "--data", tmp_path / "some.npz", "-o", start, *quick)[0] == 0
    code, text, err = train(onnxq, data, "-o", out, *QUICK[5:], model=start)
    assert (code, text) == (2, "") and "--teacher" in err
    code, text, err = train(onnxq, data, "-o", out, *QUICK[5:], "--teacher", LENET / "lenet.onnx", model=start)
    assert (code, err) == (0, "") and "Training on 56 samples" in text and out.exists()


def test_to_stdout(onnxq, data, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=written, isatty=lambda: False, flush=lambda: None))
    assert train(onnxq, data, *QUICK, "-o", "-", "--epochs", 1)[0] == 0
    onnx.checker.check_model(onnx.load_from_string(written.getvalue()))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--loss", "mse"), "sample 0"),
        (("--loss", "msee"), "msee"),
        (("--batch", 40), "at least 80 are needed"),
        (("--freeze", "cnov1"), "'cnov1' matches no node; did you mean conv1"),
        (("--lr-factor", "scale"), "--lr-factor"),
        (("--lr-factor", "scales=1"), "not 'scales'"),
        (("--lr-factor", "scale=fast"), "must be a number, 0 or more, got 'fast'"),
        (("--recipe", "int9"), "int9"),
        (("--teacher", "nothing.onnx"), "nothing.onnx: No such file"),
    ],
)
def test_bad_usage_is_exit_2_and_writes_nothing(onnxq, data, tmp_path, args, text):
    code, out, err = train(onnxq, data, *QUICK, *args, "-o", tmp_path / "o.onnx")
    assert (code, out) == (2, "") and text in err and "Traceback" not in err
    assert not (tmp_path / "o.onnx").exists()


def test_both_from_stdin(onnxq, data, tmp_path):
    code, _, err = train(onnxq, data, "-o", tmp_path / "o.onnx", "--teacher", "-", model="-")
    assert code == 2 and "only one model comes in on stdin" in err
