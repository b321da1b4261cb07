"""What a caller chooses about a training, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from onnxq.errors import OptionError, near
from onnxq.training.losses import Loss, check_loss
from onnxq.training.optimizers import OPTIMIZERS, Array, Kind, Optimizer
from onnxq.training.schedules import SHAPES, Schedule, Shape


@dataclass(frozen=True, kw_only=True)
class Options:
    """See `onnxq.train` for what each of them means.

    Raises:
        OptionError: A value that does not exist or is out of range.
    """

    loss: Loss = "distill"
    epochs: int = 10
    lr: float | None = None
    optimizer: str = "adam"
    schedule: Shape = "cosine"
    warmup: float = 0.05
    weight_decay: float = 0.0
    lr_factors: Mapping[Kind, float] = field(default_factory=dict)
    scales: bool = False
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_loss(self.loss)
        for what, value, known in (
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("schedule", self.schedule, SHAPES),
        ):
            if value not in known:
                raise OptionError(f"unknown {what} '{value}'{near(value, known)}")
        if self.epochs < 1:
            raise OptionError(f"epochs: at least 1 wanted, got {self.epochs}")
        if not 0.0 < self.rate < math.inf:
            raise OptionError(f"lr: a positive number wanted, got {self.rate}")
        if not 0.0 <= self.warmup < 1.0:
            raise OptionError(f"warmup: a share of the steps wanted, 0 or more and below 1, got {self.warmup}")
        if not 0.0 <= self.weight_decay < math.inf:
            raise OptionError(f"weight decay: 0 or more wanted, got {self.weight_decay}")
        for kind, factor in self.lr_factors.items():
            if kind not in get_args(Kind):
                raise OptionError(f"learning rates are of {', '.join(get_args(Kind))}, not '{kind}'")
            if not isinstance(factor, int | float) or not 0.0 <= factor < math.inf:
                raise OptionError(f"the learning-rate factor of {kind} must be a number, 0 or more, got {factor!r}")

    @property
    def rate(self) -> float:
        """Learning rate at the top of the schedule."""
        return OPTIMIZERS[self.optimizer].rate if self.lr is None else self.lr

    def course(self, steps: int) -> Schedule:
        """The schedule of a training with this many steps in an epoch."""
        total = steps * self.epochs
        return Schedule(self.schedule, total, round(self.warmup * total))

    def make(
        self,
        parameters: Mapping[str, Array],
        kinds: Mapping[str, Kind],
        scaling: Mapping[str, float],
        units: Mapping[str, Array],
    ) -> Optimizer:
        """The optimizer; ``scaling`` are factors of gradients, ``units`` sizes of parameters."""
        made = OPTIMIZERS[self.optimizer]
        return made(parameters, kinds, factors=self.lr_factors, decay=self.weight_decay, scaling=scaling, units=units)

    def identity(self) -> dict[str, Any]:
        """What must be the same to go on from a checkpoint; JSON-able."""
        return {**asdict(self), "lr": self.rate, "rates": "relative"}
