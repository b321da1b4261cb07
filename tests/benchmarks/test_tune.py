"""The tuning benchmark: goals that are missed are said, answers are those of the tasks, and a row on LeNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tasks.digits import DIGITS
from benchmarks.tune import Case, _nearest, missed, tune
from onnxq.tuning import tuner

ROW: dict[str, Any] = {"task": "rec", "agreement": 0.98, "speedup": {"1": 1.6}, "seconds": 20.0, "cpu_seconds": 30.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"agreement": 0.96}, ["agreement 0.960"]),
        ({"speedup": {"1": 1.2}}, ["1.20 x as fast"]),
        ({"seconds": 400.0}, []),
        ({"seconds": 400.0, "cpu_seconds": 350.0}, ["took 400 s"]),
    ],
)
def test_missed_goals(changes: dict[str, Any], words: list[str]) -> None:
    found = missed({**ROW, **changes})
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True))


def test_no_plan_is_a_missed_goal() -> None:
    assert "no plan" in missed({"task": "rec", "seconds": 1, "cpu_seconds": 1})[0]


def test_the_nearest_of_the_other_half() -> None:
    vectors = np.eye(3, dtype=np.float32)
    assert _nearest([*vectors, vectors[2], vectors[0], vectors[1]]) == [1, 2, 0]


def test_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "RACE_SECONDS", 0.0)
    case = Case(
        DIGITS,
        lambda: DIGITS.calibration()[:2],
        lambda outputs: outputs[0].argmax(-1)[:, None],
        lambda a, b: float(np.mean([np.argmax(x) == np.argmax(y) for x, y in zip(a, b, strict=True)])),
    )
    row = tune(case, tmp_path / "lenet.onnx")
    assert row["agreement"] >= 0.97 and set(row["speedup"]) == {"1", "2"} and row["tuning"]["chosen"] is not None
    assert set(row["layers"]) == {"conv1", "conv2", "fc1", "fc2"}
