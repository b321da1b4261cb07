"""The training build lives in an environment of its own; these fixtures run `worker.py` there, on files.

onnxq itself runs here, in its own environment: the two packages called onnxruntime never meet.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper

import onnxq
from onnxq.passes.from_trainable import FromTrainable
from onnxq.passes.to_trainable import ToTrainable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Outcome:
    """What became of a model.

    Attributes:
        stage: How far it came: ``artifacts`` (they could not be made), ``training`` (a step failed) or ``done``.
        error: What onnxruntime said; empty if nothing failed.
        ops: Operators of the training model, once there is one.
        ranges: Attributes of its FakeQuant nodes.
        losses: Mean squared error of each step.
        trained: File with every parameter by name, after training.
    """

    stage: str
    error: str
    trained: Path
    ops: list[str] = field(default_factory=list)
    ranges: list[list[int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def fell(self) -> float:
        """How many times lower the loss is in the last ten steps than in the first two."""
        assert self.stage == "done", self.error
        return float(np.mean(self.losses[:2]) / np.mean(self.losses[-10:]))


class TrainingBuild:
    """onnxruntime-training-cpu, behind a door of files.

    Attributes:
        python: Interpreter of its environment.
        folder: Where files go; a new folder for each job.
    """

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder, self._jobs = python, folder, 0

    def call(self, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python there, with the stand-in for torch."""
        environment = os.environ | {"PYTHONPATH": str(HERE / "stub")}
        command = [str(self.python), *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    def train(
        self,
        model: ModelProto,
        parameters: Iterable[str],
        x: Array,
        target: Array,
        *,
        steps: int = 200,
        rate: float = 0.01,
        batch: int = 16,
        threads: int = 1,
    ) -> Outcome:
        """Make artifacts for ``parameters`` with the mean squared error as loss; take AdamW steps."""
        self._jobs += 1
        folder = self.folder / f"job{self._jobs}"
        folder.mkdir()
        onnx.save(model, folder / "model.onnx")
        np.savez(folder / "data.npz", x=x, target=target)
        job = {"train": [*parameters], "steps": steps, "rate": rate, "batch": batch, "threads": threads}
        (folder / "job.json").write_text(json.dumps(job))
        done = self.call(HERE / "worker.py", folder)
        assert done.returncode == 0, done.stderr
        outcome = Outcome(**json.loads((folder / "result.json").read_text()), trained=folder / "trained.npz")
        if outcome.stage == "done":
            done = self.call(ROOT / "onnxq" / "trainable" / "checkpoint.py", folder / "trained", outcome.trained)
            assert done.returncode == 0, done.stderr
        return outcome


@dataclass
class Trip:
    """A quantized model that was trained.

    Attributes:
        before: As it was.
        trainable: As it was trained.
        after: With what it learned, in the form of before.
        outcome: What the training build made of it.
    """

    before: ModelProto
    trainable: ModelProto
    after: ModelProto
    outcome: Outcome


def round_trip(build: TrainingBuild, model: ModelProto, x: Array, target: Array, **training: Any) -> Trip:
    """``to-trainable``, artifacts and steps on all parameters, ``from-trainable`` with the checkpoint."""
    made = onnxq.run(onnxq.Pipeline(steps=(ToTrainable(),)), model)
    (note,) = [n for n in made.report.notes if n.code == "trainable"]
    assert not [n for n in made.report.notes if n.code == "not-trainable"]
    outcome = build.train(made.model, note.numbers["parameters"], x, target, **training)
    assert outcome.stage == "done", outcome.error
    back = onnxq.run(onnxq.Pipeline(steps=(FromTrainable(checkpoint=str(outcome.trained)),)), made.model)
    return Trip(model, made.model, back.model, outcome)


def teacher(model: ModelProto, share: float) -> ModelProto:
    """The same float network with every weight and bias moved by about ``share`` of itself."""
    rng = np.random.default_rng(2)
    moved = ModelProto()
    moved.CopyFrom(model)
    for tensor in moved.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > 1:
            new = array + share * np.abs(array) * rng.standard_normal(array.shape)
            tensor.CopyFrom(numpy_helper.from_array(new.astype(np.float32), tensor.name))
    return moved


def run(model: ModelProto, x: Array, true_semantics: bool = False) -> Array:
    """The output in the onnxruntime of today, as users get it, or with Q/DQ nodes as ONNX writes them."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if true_semantics:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def distance(model: ModelProto, x: Array, target: Array, true_semantics: bool = False) -> float:
    """Mean squared error."""
    return float(np.mean((run(model, x, true_semantics) - target) ** 2))


@pytest.fixture(scope="session")
def training_python() -> Path:
    """Interpreter with onnxruntime-training-cpu; `make test-training` names it."""
    if "ONNXQ_TRAINING_PYTHON" not in os.environ:
        pytest.skip("make test-training sets up and names the environment of the training build")
    return Path(os.environ["ONNXQ_TRAINING_PYTHON"])


@pytest.fixture
def build(training_python: Path, tmp_path: Path) -> TrainingBuild:
    return TrainingBuild(training_python, tmp_path)
