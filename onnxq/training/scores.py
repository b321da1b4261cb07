"""How good a model in training is on samples it is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from onnxq.calibration.feeds import Feeds
from onnxq.numerics.similarity import Similarity, sqnr_db
from onnxq.training.data import Examples
from onnxq.training.shares import Shares
from onnxq.training.teacher import Aims

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Score:
    """Of the held-out samples.

    Attributes:
        loss: Mean loss of their batches.
        sqnr_db: Smallest SQNR of a float output against the teacher's, in dB; None without teacher, or without error.
        accuracy: Share of labels that are the arg max of their output along axis 1; None without labels.
    """

    loss: float
    sqnr_db: float | None = None
    accuracy: float | None = None

    def __str__(self) -> str:
        more = [] if self.sqnr_db is None else [f"SQNR {self.sqnr_db:.1f} dB"]
        more += [] if self.accuracy is None else [f"accuracy {self.accuracy:.1%}"]
        return ", ".join([f"{self.loss:.4g}", *more])

    def to_json(self) -> dict[str, float | None]:
        """A JSON-able form; ``Score(**...)`` is the inverse."""
        return asdict(self)


class Judged(Protocol):
    """What a `Judge` asks."""

    def step(self, feeds: Mapping[str, Array], targets: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """Loss and gradients."""

    def evaluate(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs."""


@dataclass
class Judge:
    """Runs the held-out batches.

    Attributes:
        model: What is judged.
        outputs: Names of its outputs, in the order of `evaluate`.
        examples: Samples.
        shares: Which of them are held out.
        targets: What is wanted of them.
        reference: The teacher's outputs, where there is a teacher.
        labels: Whether targets are numbers of classes.
    """

    model: Judged
    outputs: Sequence[str]
    examples: Examples
    shares: Shares
    targets: Aims
    reference: Callable[[Feeds], Feeds] | None = None
    labels: bool = False

    def __call__(self) -> Score:
        """The score of the parameters as they are."""
        losses, right, wrong = [], 0, 0
        alike: dict[str, Similarity] = {}
        for numbers in self.shares.held_batches():
            example = self.examples.batch(numbers)
            targets = self.targets(numbers, example)
            losses.append(self.model.step(example.feeds, targets)[0])
            if self.reference is None and not self.labels:
                continue
            made = dict(zip(self.outputs, self.model.evaluate(example.feeds), strict=True))
            for name, wanted in self.reference(example.feeds).items() if self.reference else ():
                alike.setdefault(name, Similarity()).add(wanted, made[name])
            for name, classes in targets.items() if self.labels else ():
                hit = made[name].argmax(1) == classes
                right, wrong = right + int(hit.sum()), wrong + int((~hit).sum())
        found = [sqnr_db(s.ref2, s.noise) for s in alike.values() if s.continuous]
        return Score(
            float(np.mean(losses)),
            min((db for db in found if db is not None), default=None),
            right / (right + wrong) if right + wrong else None,
        )
