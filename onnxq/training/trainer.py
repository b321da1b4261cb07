"""The loop: batches in an order of the seed's, one optimizer step each, the best parameters by held-out loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onnxq.context import Context
from onnxq.errors import TrainingError
from onnxq.training import checkpoints
from onnxq.training.data import Examples
from onnxq.training.optimizers import Array, Kind, Optimizer
from onnxq.training.schedules import Schedule
from onnxq.training.scores import Score
from onnxq.training.shares import Shares
from onnxq.training.teacher import Aims

SECONDS = 60.0
"""Between two checkpoints within an epoch."""


CHECK = "check the data and the quantized model (onnxq compare)"


class Trainee(Protocol):
    """What can be trained; `onnxq.training.engine.Trainable` is one."""

    @property
    def parameters(self) -> dict[str, Array]:
        """float32 arrays that a step changes in place."""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """What each of them is."""

    def step(self, feeds: Mapping[str, Array], targets: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """Loss and gradients."""

    def evaluate(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Outputs."""


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean training loss, and the score on held-out samples after it."""

    loss: float
    score: Score

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {"train_loss": self.loss, **self.score.to_json()}


@dataclass
class Outcome:
    """What a training came to.

    Attributes:
        start: Score before the first step.
        epochs: What each epoch came to.
        best: Number of the epoch whose parameters are kept, from 1; 0: none was better than the start.
        steps: Steps of this run.
        resumed: Steps that a checkpoint already had.
        seconds: Time for these steps.
    """

    start: Score
    epochs: list[Epoch] = field(default_factory=list)
    best: int = 0
    steps: int = 0
    resumed: int = 0
    seconds: float = 0.0

    @property
    def end(self) -> Score:
        """Score of the parameters that are kept."""
        return self.epochs[self.best - 1].score if self.best else self.start

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {
            "before": self.start.to_json(),
            "after": self.end.to_json(),
            "best_epoch": self.best,
            "epochs": [epoch.to_json() for epoch in self.epochs],
            "steps": self.steps,
            "resumed_steps": self.resumed,
            "seconds": self.seconds,
            "steps_per_second": self.steps / self.seconds if self.seconds else None,
        }


@dataclass
class Trainer:
    """A training.

    Attributes:
        trainee: What is trained, in place.
        examples: Samples.
        shares: Which of them make which batch.
        targets: What is wanted of the samples of these numbers, which together are the example.
        judge: Score of the trainee as it is, on held-out samples.
        optimizer: Over the trainee's parameters.
        rate: Learning rate at the top of the schedule.
        schedule: Course of the learning rate; its steps are the length of the training.
        ctx: Takes progress.
        folder: Where checkpoints go; None: nowhere.
        identity: What a checkpoint must agree in, to go on from it.
        resume: Go on from the checkpoint in the folder, if there is one.
    """

    trainee: Trainee
    examples: Examples
    shares: Shares
    targets: Aims
    judge: Callable[[], Score]
    optimizer: Optimizer
    rate: float
    schedule: Schedule
    ctx: Context
    folder: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = True

    def run(self) -> Outcome:
        """Train; afterwards the trainee's parameters are the best ones, unless none was better than the start.

        Raises:
            TrainingError: Loss or gradients are not finite; names step and remedy. Earlier checkpoints stay.
            OptionError: The checkpoint is of another training, or cannot be read or written.
        """
        self._best: dict[str, Array] = {}
        self._sum = 0.0
        outcome = self._resumed() or Outcome(self.judge())
        if not np.isfinite(outcome.start.loss):
            raise TrainingError(f"before the first step the loss on held-out samples is {outcome.start.loss}: {CHECK}")
        begin = saved = time.monotonic()
        batches: list[list[int]] = []
        for step in range(outcome.resumed, self.schedule.steps):
            number, place = divmod(step, self.shares.steps)
            if place == 0 or not batches:
                batches = self.shares.epoch(number)
            self._step(step, batches[place])
            outcome.steps += 1
            self.ctx.progress(self._label(outcome, place + 1), step + 1, self.schedule.steps)
            ended = place + 1 == self.shares.steps
            if ended:
                self._end_epoch(outcome)
            if self.folder is not None and (ended or time.monotonic() - saved > SECONDS):
                self._save(outcome, step + 1)
                saved = time.monotonic()
        outcome.seconds = time.monotonic() - begin
        for name, array in self._best.items():
            self.trainee.parameters[name][...] = array
        return outcome

    def _step(self, step: int, numbers: Sequence[int]) -> None:
        example = self.examples.batch(numbers)
        loss, gradients = self.trainee.step(example.feeds, self.targets(numbers, example))
        if broken := _broken(loss, gradients):
            text = f"step {step + 1} of {self.schedule.steps} (epoch {step // self.shares.steps + 1}): {broken}"
            remedy = CHECK if step == 0 else f"a lower learning rate may help (now {self.rate:g})"
            raise TrainingError(f"{text}: {remedy}")
        self._sum += loss
        self.optimizer.update(gradients, self.rate * self.schedule(step))

    def _end_epoch(self, outcome: Outcome) -> None:
        score = self.judge()
        better = score.loss < outcome.end.loss
        outcome.epochs.append(Epoch(self._sum / self.shares.steps, score))
        self._sum = 0.0
        if better:
            outcome.best = len(outcome.epochs)
            for name, array in self.trainee.parameters.items():
                np.copyto(self._best.setdefault(name, np.empty_like(array)), array)

    def _label(self, outcome: Outcome, done: int) -> str:
        score = outcome.epochs[-1].score if outcome.epochs else outcome.start
        return f"train: loss {self._sum / done:.4g}, held out {score}"

    def _save(self, outcome: Outcome, step: int) -> None:
        assert self.folder is not None
        progress = {
            "step": step,
            "sum": self._sum,
            "best": outcome.best,
            "start": outcome.start.to_json(),
            "epochs": [epoch.to_json() for epoch in outcome.epochs],
        }
        checkpoint = checkpoints.Checkpoint(self.trainee.parameters, self._best, self.optimizer.state, progress)
        checkpoints.write(self.folder, checkpoint, self.identity)

    def _resumed(self) -> Outcome | None:
        """Take up parameters, optimizer and scores of a checkpoint."""
        found = checkpoints.read(self.folder, self.identity) if self.folder is not None and self.resume else None
        if found is None:
            return None
        for name, array in self.trainee.parameters.items():
            array[...] = found.parameters[name]
        for part, arrays in self.optimizer.state.items():
            for name, array in arrays.items():
                array[...] = found.state[part][name]
        self._best, self._sum = found.best, found.progress["sum"]
        self.optimizer.steps = found.progress["step"]
        epochs = [Epoch(e.pop("train_loss"), Score(**e)) for e in found.progress["epochs"]]
        return Outcome(Score(**found.progress["start"]), epochs, found.progress["best"], resumed=found.progress["step"])


def _broken(loss: float, gradients: Mapping[str, Array]) -> str:
    """What is not finite; ``""`` if all is."""
    if not np.isfinite(loss):
        return f"the loss is {loss}"
    with np.errstate(all="ignore"):
        for name, gradient in gradients.items():
            if not np.isfinite(gradient.sum()):  # so is every part then; needs no memory
                return f"the loss is {loss:.4g}, and the gradient of '{name}' is not finite"
    return ""
