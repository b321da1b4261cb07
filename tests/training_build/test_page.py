"""The part of docs/training.md that needs the training build runs as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

pytestmark = pytest.mark.training

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def losses(path: Path) -> tuple[float, float]:
    """Cross entropy and accuracy on the digits."""
    with np.load(ROOT / "models" / "lenet" / "digits.npz") as digits:
        images, labels = digits["pixels"][:, None] / np.float32(255), digits["labels"]
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits = np.asarray(session.run(None, {"image": images})[0])
    likely = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -float(likely[np.arange(len(labels)), labels].mean()), float((logits.argmax(1) == labels).mean())


def test_the_page_leads_to_a_trained_integer_model(build: Any, tmp_path: Path) -> None:
    section = PAGE[PAGE.index("## On onnxruntime's training build") :].partition("\n## ")[0]
    (tmp_path / "models").symlink_to(ROOT / "models")
    before = tmp_path / "integers.onnx"
    quantize_dynamic(ROOT / "models" / "lenet" / "lenet.onnx", before, weight_type=QuantType.QInt8)
    done = []
    for kind, text in BLOCK.findall(section):
        if text.startswith("# train.py\n"):
            (tmp_path / "train.py").write_text(text, encoding="utf-8")
            continue
        for line in text.splitlines():
            program, *rest = shlex.split(line.removeprefix("$ "))
            if program == "onnxq" and (kind == "sh" or line.startswith("$ ")):
                command = [sys.executable, "-m", "onnxq", *rest]
                ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            elif program == "python":
                ran = build.call(*rest, cwd=tmp_path)
            else:
                continue
            assert ran.returncode == 0, ran.stderr
            done.append(" ".join(rest[:2]))
    assert done == ["run to-trainable", "train.py", "run from-trainable"]
    (entropy, right), (learned, now_right) = losses(before), losses(tmp_path / "trained.onnx")
    assert learned < entropy
    assert now_right >= right
    ops = [
        {node.op_type for node in onnx.load(tmp_path / name).graph.node} for name in ("integers.onnx", "trained.onnx")
    ]
    assert "ConvInteger" in ops[0]
    assert {"DynamicQuantizeLinear", "DequantizeLinear", "Conv", "MatMul"} <= ops[1]
