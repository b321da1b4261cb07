"""`onnxq.train` beside post-training quantization: LeNet at 4 and 2 bits, PP-LCNet and EfficientNet-Lite0 at A8W4.

python -m benchmarks.qat                        LeNet, some seconds a row
python -m benchmarks.qat --tasks orientation    needs downloads; minutes a row on two cores
python -m benchmarks.qat --tasks efficientnet   needs downloads; up to 20 minutes a row on two cores

Trains on samples that are neither test nor calibration samples of `benchmarks.accuracy`. Each row: the measures of the
float model, of the file quantized after training, and of the file that was trained on. Writes ``results/qat.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import onnxq
from benchmarks.data import text, views
from benchmarks.harness import machine
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import DEFAULT, TRUE, Feed, Metrics
from benchmarks.tasks.digits import LENET
from benchmarks.tasks.images import channels_first, orientation_feed

RESULTS = Path(__file__).with_name("results") / "qat.json"


@dataclass(frozen=True)
class Row:
    """One training.

    Attributes:
        task: Name of the task.
        name: What the row is called.
        quantize: Parameters of the recipe ``a8w4``.
        train: What `onnxq.train` is given on top.
    """

    task: str
    name: str
    quantize: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)


LENET_TRAINING = {"epochs": 20, "batch": 32, "lr": 0.01}
PAGES_TRAINING = {"epochs": 12, "batch": 32, "lr": 2e-4}
PHOTOS_TRAINING = {
    "epochs": 4,
    "batch": 8,
    "lr": 1.5e-3,
    "scales": True,
    "lr_factors": {"bias": 0.1, "scale": 0.3},
    "held_out": 0.05,
}
PAGES, VIEWS = 150, 2000
INT2 = {"weights": "int2", "target": "onnx", "opset": 25}
ROWS = (
    Row("lenet", "INT4, nearest", {"target": "onnx", "rounding": "nearest"}, LENET_TRAINING),
    Row("lenet", "INT4, GPTQ", {"target": "onnx"}, LENET_TRAINING),
    Row("lenet", "INT2, nearest", {**INT2, "rounding": "nearest"}, LENET_TRAINING),
    Row("lenet", "INT2, GPTQ", INT2, LENET_TRAINING),
    Row("orientation", "INT4, GPTQ", {"target": "ort-cpu"}, PAGES_TRAINING),
    Row("efficientnet", "INT4, GPTQ of float inputs", {"target": "ort-cpu", "inputs": "float"}, PHOTOS_TRAINING),
)


def samples(task: str) -> list[Feed]:
    """What is trained on: unlabelled."""
    if task == "lenet":
        with np.load(LENET / "training.npz") as stored:
            return [{"image": (pixels / np.float32(255))[None, None]} for pixels in stored["pixels"]]
    if task == "orientation":
        return [orientation_feed(page, quarter) for page, _ in text.pages(PAGES, 7) for quarter in range(4)]
    return [{"image": (channels_first(view) - 127) / 128} for view in views.training(VIEWS)]


def measured(row: Row, folder: Path) -> dict[str, Any]:
    """Quantize, train, and judge all three models on the test samples."""
    task = TASKS[row.task]
    model, calibration = task.model(), task.calibration()
    before, after = folder / "before.onnx", folder / "after.onnx"
    started = time.perf_counter()
    onnxq.quantize(model, recipe="a8w4", data=calibration, output=before, **row.quantize)
    quantized = time.perf_counter()
    result = onnxq.train(before, samples(row.task), teacher=model, output=after, **row.train)
    trained = time.perf_counter()
    reference = task.reference()
    config = TRUE if row.quantize.get("weights") == "int2" else DEFAULT  # the default session does not load int2 here
    judge: dict[str, Metrics] = {
        name: task.evaluate(file, reference, config)
        for name, file in (("float", model), ("quantized", before), ("trained", after))
    }
    table = result.report.tables["training"]
    return {
        "task": row.task,
        "row": row.name,
        **judge,
        "steps": table["steps"],
        "quantize_seconds": round(quantized - started, 1),
        "train_seconds": round(trained - quantized, 1),
        "held_out": {"before": table["before"], "after": table["after"]},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["lenet"], choices=["lenet", "orientation", "efficientnet"])
    parser.add_argument("--rows", nargs="+", help="names of rows")
    asked = parser.parse_args(arguments)
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for row in ROWS:
        if row.task not in asked.tasks or (asked.rows and row.name not in asked.rows):
            continue
        with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
            found = measured(row, Path(folder))
        print(json.dumps(found), flush=True)
        known = [r for r in known if (r["task"], r["row"]) != (row.task, row.name)] + [found]
        RESULTS.write_text(json.dumps({"machine": machine(), "rows": known}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
