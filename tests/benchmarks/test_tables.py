"""The tables of the README are made from results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy_table import accuracy_table
from benchmarks.qat_table import qat_table
from benchmarks.table import write

MACHINE = {"onnxruntime": "1.32.0", "machine": "x86_64"}


def row(task: str, variant: str, metrics: dict[str, float], ms: float, size: float) -> dict[str, Any]:
    return {
        "task": task, "variant": variant, "metrics": metrics, "milliseconds": {"1": ms, "2": ms}, "size_ratio": size
    }  # fmt: skip


def test_accuracy_table_has_a_line_a_model_with_all_three_variants() -> None:
    rows = [
        row("ocr-det", "float", {"line_recall": 0.964, "iou": 1.0}, 100.0, 1.0),
        row("ocr-det", "onnxruntime", {"line_recall": 0.977, "iou": 0.725}, 65.0, 0.327),
        row("ocr-det", "onnxq", {"line_recall": 0.964, "iou": 0.981}, 58.0, 0.324),
        row("magika", "float", {"accuracy": 0.88, "agree": 1.0, "cosine": 1.0}, 6.0, 1.0),
        row("magika", "onnxq", {"accuracy": 0.88, "agree": 0.99, "cosine": 1.0}, 3.0, 0.26),
    ]
    lines = accuracy_table({"machine": MACHINE, "rows": rows}).splitlines()
    assert lines[2:4] == [
        "| PP-OCRv4 det | lines found | 96.4% | 97.7% | 96.4% | IoU 0.725 | IoU 0.981 | 0.65 | 0.58 | 0.33 | 0.32 |",
        "",
    ]
    assert "onnxruntime 1.32.0 CPU (x86_64)" in lines[-1]


def test_write_replaces_between_one_pair_of_markers(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("a\n<!-- speed -->\nold\n<!-- /speed -->\nb\n<!-- accuracy -->\n<!-- /accuracy -->\n")
    write(file, "speed", r"| \1 new |")
    write(file, "accuracy", "| x |")
    write(file, "accuracy", "| y |")
    assert file.read_text() == (
        "a\n<!-- speed -->\n| \\1 new |\n<!-- /speed -->\nb\n<!-- accuracy -->\n| y |\n<!-- /accuracy -->\n"
    )
    with pytest.raises(SystemExit, match="expected one pair of <!-- other -->"):
        write(file, "other", "")


def test_qat_table_tells_how_far_training_brings_each_model() -> None:
    rows = [
        {
            "task": "lenet", "row": "INT2, nearest", "steps": 280, "train_seconds": 36.0, "quantize_seconds": 2.0,
            "float": {"accuracy": 0.948, "cosine": 1.0}, "quantized": {"accuracy": 0.846, "cosine": 0.896},
            "trained": {"accuracy": 0.94, "cosine": 0.974},
        }
    ]  # fmt: skip
    lines = qat_table({"machine": {"onnxruntime": "1.32.0", "cpus": 2}, "rows": rows}).splitlines()
    assert lines[2] == "| LeNet, MNIST | INT2, nearest | 94.8% | 84.6% | 94.0% | 0.1 | 0.026 | 0.25 | 280 | 0.6 |"
    assert lines[-1].endswith("onnxruntime 1.32.0 on 2 cores.")
