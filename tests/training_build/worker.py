"""Runs in the training build's environment: makes artifacts of a model, trains them, writes the parameters.

``python worker.py FOLDER``: FOLDER holds ``model.onnx``, ``data.npz`` (``x``, ``target``) and ``job.json`` (``train``:
names of the parameters, ``steps``, ``rate``: first learning rate, which falls to zero along a line, ``batch``). Adds
``result.json`` (see `Outcome` in conftest.py) and, after training, the checkpoint ``trained``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

SILENT = 4


def work(folder: Path, result: dict[str, Any]) -> None:
    job = json.loads((folder / "job.json").read_text())
    artifacts.generate_artifacts(
        onnx.load(folder / "model.onnx"),
        requires_grad=job["train"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    nodes = onnx.load(folder / "training_model.onnx").graph.node
    result["ops"] = [node.op_type for node in nodes]
    result["ranges"] = [[a.i for a in n.attribute] for n in nodes if n.op_type == "FakeQuant"]
    result["stage"] = "training"

    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    schedule = LinearLRScheduler(optimizer, 0, job["steps"], job["rate"])
    with np.load(folder / "data.npz") as data:
        x, target = data["x"], data["target"]
    rng = np.random.default_rng(0)
    result["losses"] = []
    for _ in range(job["steps"]):
        chosen = rng.choice(len(x), job["batch"], replace=False)
        result["losses"].append(float(np.asarray(module(x[chosen], target[chosen]))))
        optimizer.step()
        schedule.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, folder / "trained")
    result["stage"] = "done"


def main() -> None:
    folder = Path(sys.argv[1])
    onnxruntime.set_default_logger_severity(SILENT)
    result: dict[str, Any] = {"stage": "artifacts", "error": ""}
    try:
        work(folder, result)
    except Exception as why:  # what a test is about: the training build's own words
        result["error"] = f"{type(why).__name__}: {why}"
    (folder / "result.json").write_text(json.dumps(result))


main()
