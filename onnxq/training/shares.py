"""Which samples are trained on, in which order, and which only tell whether it helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxq.calibration.feeds import Feeds
from onnxq.calibration.sources import Source
from onnxq.context import Context
from onnxq.errors import DataError, OptionError
from onnxq.training.data import Examples
from onnxq.wording import plural

BATCH = 32
"""Samples in a batch where nothing is asked for, and there are enough."""
CALIBRATION = 512
"""Training samples that ranges are calibrated on, at most."""


@dataclass(frozen=True)
class Shares:
    """Which examples are trained on, and which only tell whether it helps.

    Attributes:
        train: Numbers of training examples.
        held: Numbers of held-out examples, whole batches.
        batch: Examples in a batch.
        seed: Of the order of epochs.
    """

    train: Sequence[int]
    held: Sequence[int]
    batch: int
    seed: int

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return len(self.train) // self.batch

    def epoch(self, number: int) -> list[list[int]]:
        """The batches of an epoch; each epoch has an order of its own, and the last partial batch of it is left out."""
        order = np.random.default_rng([self.seed, number]).permutation(self.train).tolist()
        return [order[i * self.batch : (i + 1) * self.batch] for i in range(self.steps)]

    def held_batches(self) -> list[Sequence[int]]:
        """The held-out batches."""
        return [self.held[i : i + self.batch] for i in range(0, len(self.held), self.batch)]


def divide(examples: Examples, batch: int | None, share: float, ctx: Context) -> Shares:
    """Hold some examples out, chosen by the context's seed.

    Args:
        examples: All examples.
        batch: Examples in a batch; None: `BATCH`, or fewer where there are not eight batches of them.
        share: Share of the examples to hold out; at least one batch.
        ctx: Seed and notes.

    Raises:
        OptionError: The model's own batch is another, or the share is none.
        DataError: There are not two batches.
    """
    count = len(examples)
    if not 0.0 < share < 1.0:
        raise OptionError(f"the held-out share must be between 0 and 1, got {share}")
    if batch is not None and batch < 1:
        raise OptionError(f"a batch holds at least 1 sample, got {batch}")
    if not examples.joins:
        own = next(iter(examples[0].feeds.values()), np.zeros(1))
        if batch is not None and batch != (own.shape or (1,))[0]:
            text = "this model's batch is fixed, or one of its dimensions along axis 0: each sample is a batch as it is"
            raise OptionError(f"batch {batch}: {text}")
        ctx.note(
            "batch-fixed", None, "each sample is a batch as it is: not all inputs and outputs are open along axis 0"
        )
        batch = 1
    elif batch is None:
        batch = BATCH
        while batch > 1 and count < 8 * batch:
            batch //= 2
    if count < 2 * batch:
        text = f"in batches of {batch} at least {2 * batch} are needed, since one batch is held out"
        raise DataError(f"{plural(count, 'sample')} to train on: {text}")
    order = np.random.default_rng([ctx.seed]).permutation(count).tolist()
    held = min(max(batch, round(share * count) // batch * batch), (count - batch) // batch * batch)
    shares = Shares(sorted(order[held:]), sorted(order[:held]), batch, ctx.seed)
    rest, batches = len(shares.train) % batch, "1 batch" if shares.steps == 1 else f"{shares.steps} batches"
    text = f"{plural(len(shares.train), 'sample')} to train on, {batches} of {batch} an epoch; {held} held out"
    if rest:
        text += f"; the last {rest} of each epoch's order make no whole batch and wait for another epoch"
    ctx.note("batches", None, text, train=len(shares.train), held_out=held, batch=batch, steps=shares.steps, rest=rest)
    return shares


def calibration_source(source: Source, examples: Examples, shares: Shares) -> Source:
    """The first training samples in batches, for ranges; held-out ones are not among them."""
    starts = range(0, min(len(shares.train), CALIBRATION), shares.batch)
    batches = [shares.train[i : i + shares.batch] for i in starts]

    def make() -> Iterator[Feeds]:
        return (examples.batch(batch).feeds for batch in batches)

    return replace(source, make=make, total=len(batches), limit=None, files=())
