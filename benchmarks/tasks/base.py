"""What an accuracy task is: a model, calibration samples, test samples, and how to score answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from models.fetch import cache_dir
from models.weights import Array

Feed = dict[str, Array]
Metrics = dict[str, float]
THREADS = 2
Config = Mapping[str, str]
"""Session config entries of onnxruntime."""
DEFAULT: Config = {}
TRUE: Config = {"session.disable_quant_qdq": "1", "session.disable_double_qdq_remover": "1"}
"""Q/DQ nodes computed as ONNX writes them."""


@dataclass(frozen=True)
class Task:
    """One model with real data.

    Attributes:
        name: Short name for the command line and the JSON.
        title: Name for tables.
        model: Fetches or builds the float model.
        calibration: Samples for calibration, one dict each, disjoint from the test samples.
        tests: Test samples.
        answer: Reduces a sample's outputs, given its inputs, to what the metrics need (all answers are kept in memory).
        score: Metrics against the labels, from all answers.
        compare: Metrics against the float model's answers.
        main: The metric that the table leads with.
        wanted: What the default recipe has to reach, at least.
    """

    name: str
    title: str
    model: Callable[[], Path]
    calibration: Callable[[], list[Feed]]
    tests: Callable[[], list[Feed]]
    answer: Callable[[Sequence[Array], Feed], Array]
    score: Callable[[list[Array]], Metrics]
    compare: Callable[[list[Array], list[Array]], Metrics]
    main: str
    wanted: Metrics = field(default_factory=dict)

    @cached_property
    def test_feeds(self) -> list[Feed]:
        """The test samples, made once a process."""
        return self.tests()

    def answers(self, model: Path, limit: int | None = None, config: Config = DEFAULT) -> list[Array]:
        """The model's answers to the first ``limit`` test samples, on a CPU session (see `session`)."""
        run = session(model, config=config)
        return [self.answer(run.run(None, feed), feed) for feed in self.test_feeds[:limit]]

    def reference(self) -> list[Array]:
        """The float model's answers, cached on disk by the content of model and samples."""
        digest = hashlib.sha256(self.model().read_bytes())
        for feed in self.test_feeds:
            for key, value in sorted(feed.items()):
                digest.update(f"{key}{value.shape}{value.dtype}".encode())
                digest.update(np.ascontiguousarray(value).data)
        file = cache_dir() / "reference" / f"{self.name}-{ort.__version__}-{digest.hexdigest()[:16]}.npz"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part.npz")
            np.savez_compressed(part, *self.answers(self.model()))
            part.replace(file)
        with np.load(file) as stored:
            return [stored[f"arr_{i}"] for i in range(len(stored.files))]

    def evaluate(self, model: Path, reference: list[Array] | None = None, config: Config = DEFAULT) -> Metrics:
        """All metrics of a model file; those against the float model when its answers are given."""
        answers = self.answers(model, config=config)
        metrics = self.score(answers)
        return metrics if reference is None else {**metrics, **self.compare(answers, reference)}


def session(model: Path, threads: int = THREADS, config: Config = DEFAULT) -> ort.InferenceSession:
    """A CPU session with default optimization and quiet logging."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def cosine(a: Iterable[Array], b: Iterable[Array]) -> float:
    """Cosine of all numbers of two lists of arrays, taken as one vector each."""
    x, y = (np.concatenate([np.ravel(v).astype(np.float64) for v in side]) for side in (a, b))
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms else 0.0


def same(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Share of equal entries."""
    return float(np.mean([x == y for x, y in zip(a, b, strict=True)]))


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and substitutions that turn one text into the other (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


def ctc(classes: Array) -> list[int]:
    """Greedy CTC: drop repeats, then blanks (class 0)."""
    return [int(c) for i, c in enumerate(classes) if c and (i == 0 or c != classes[i - 1])]
