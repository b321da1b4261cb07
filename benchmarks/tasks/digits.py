"""Handwritten digits: the committed LeNet, no download needed."""

from __future__ import annotations

from functools import cache

import numpy as np

from benchmarks.tasks.base import Feed, Metrics, Task, same
from benchmarks.tasks.images import against_float, first, top_classes
from models.fetch import ROOT
from models.weights import Array

LENET = ROOT / "models" / "lenet"


@cache
def _digits() -> dict[str, Array]:
    with np.load(LENET / "digits.npz") as stored:
        return dict(stored)


def _calibration() -> list[Feed]:
    with np.load(LENET / "calibration.npz") as stored:
        return [{"image": image[None]} for image in stored["image"]]


def _tests() -> list[Feed]:
    return [{"image": (pixels / np.float32(255))[None, None]} for pixels in _digits()["pixels"]]


def _score(answers: list[Array]) -> Metrics:
    return {"accuracy": same(top_classes(answers), [int(label) for label in _digits()["labels"]])}


DIGITS = Task(
    name="lenet",
    title="LeNet, MNIST",
    model=lambda: LENET / "lenet.onnx",
    calibration=_calibration,
    tests=_tests,
    answer=first,
    score=_score,
    compare=against_float,
    main="accuracy",
)
