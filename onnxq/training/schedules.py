"""How the learning rate goes over the steps of a training, as a share of the rate that was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Shape = Literal["cosine", "constant", "step"]
SHAPES: tuple[Shape, ...] = ("cosine", "constant", "step")


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from (nearly) 0 to 1, then one of `SHAPES`.

    Attributes:
        shape: ``cosine`` falls to 0 along half a cosine (Loshchilov and Hutter 2017, without restarts), ``constant``
            stays, ``step`` is divided by 10 at half and again at three quarters of the way.
        steps: Steps of the whole training.
        warmup: How many of them are warm-up.
    """

    shape: Shape
    steps: int
    warmup: int = 0

    def __call__(self, step: int) -> float:
        """The share for a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        gone = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.shape == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(gone, 1.0)))
        if self.shape == "step":
            return 0.01 if gone >= 0.75 else 0.1 if gone >= 0.5 else 1.0
        return 1.0
