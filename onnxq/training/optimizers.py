"""Adam and SGD in NumPy: parameters and state change in place, a piece that fits a core's cache at a time.

Rates are relative: at 0.001 a parameter moves by about a thousandth of its size in a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["weight", "bias", "scale"]

_PIECE = 1 << 15  # values; parameter, gradient, state and what is computed of them are 1 MB


class Optimizer(ABC):
    """Takes gradients, moves parameters.

    Weights and biases move by ``-rate · unit · direction``, the direction that of the gradient of ``p / unit``:
    ``unit · dL/dp``. Scales are positive and differ by orders of magnitude, so it is their logarithm that moves:
    ``s <- s · exp(-rate · direction)`` with the gradient ``s · dL/ds`` of log s. Weights
    also decay, decoupled from the gradient (Loshchilov and Hutter 2019): ``w <- w - rate · decay · w``.

    Args:
        parameters: float32 arrays by name, C-contiguous; changed in place by `update`.
        kinds: What each of them is.
        factors: Learning rate of a kind as a multiple of the common one; 1 where nothing is said.
        decay: Weight decay.
        scaling: Factors of the gradients of single scales; they matter to optimizers that depend on their size.
        units: How large weights and biases are (`onnxq.training.units.unit`), float32 that broadcasts over them; 1
            where nothing is said.

    Attributes:
        steps: Updates so far.
        state: What the optimizer remembers: float32 arrays like the parameters, by part and parameter name.
    """

    parts: ClassVar[tuple[str, ...]]
    rate: ClassVar[float]
    """Learning rate to take where none is asked for."""

    def __init__(
        self,
        parameters: Mapping[str, Array],
        kinds: Mapping[str, Kind],
        *,
        factors: Mapping[Kind, float] | None = None,
        decay: float = 0.0,
        scaling: Mapping[str, float] | None = None,
        units: Mapping[str, Array] | None = None,
    ) -> None:
        self.steps = 0
        self.state = {part: {k: np.zeros_like(p) for k, p in parameters.items()} for part in self.parts}
        self._parameters, self._kinds, self._decay = parameters, kinds, decay
        self._factors, self._scaling, self._units = factors or {}, scaling or {}, units or {}

    def update(self, gradients: Mapping[str, Array], rate: float) -> None:
        """One step.

        Args:
            gradients: Of the loss, by parameter name, in the parameter's shape; overwritten.
            rate: Learning rate of this step.
        """
        self.steps += 1
        with np.errstate(all="ignore"):  # whoever trains looks at loss and gradients
            for name, parameter in self._parameters.items():
                unit = np.broadcast_to(self._units.get(name, np.float32(1)), parameter.shape)
                self._move(name, parameter.reshape(-1), gradients[name].reshape(-1), unit.reshape(-1), rate)

    def _move(self, name: str, flat: Array, gradient: Array, unit: Array, rate: float) -> None:
        kind, scaling = self._kinds[name], np.float32(self._scaling.get(name, 1.0))
        own = np.float32(rate * self._factors.get(kind, 1.0))
        keep = np.float32(1.0 - own * self._decay)
        state = [self.state[part][name].reshape(-1) for part in self.parts]
        for start in range(0, flat.size, _PIECE):
            piece = slice(start, start + _PIECE)
            p, g = flat[piece], gradient[piece]
            if kind == "scale":
                g *= scaling
                g *= p
            else:
                g *= unit[piece]
            move = self._direction(g, *(s[piece] for s in state))
            move *= own
            if kind == "scale":
                p *= np.exp(np.negative(move, out=move), out=move)
                continue
            move *= unit[piece]
            if kind == "weight":
                p *= keep
            p -= move

    @abstractmethod
    def _direction(self, gradient: Array, *state: Array) -> Array:
        """Where to go (against which), of one piece; may be the gradient's memory. Changes the state in place."""


class Adam(Optimizer):
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1): β1 = 0.9, β2 = 0.999, ε = 1e-8."""

    parts = ("mean", "square")
    rate = 1e-3

    def _direction(self, gradient: Array, *state: Array) -> Array:
        mean, square = state
        mean *= np.float32(0.9)
        mean += np.float32(0.1) * gradient
        square *= np.float32(0.999)
        gradient *= gradient
        gradient *= np.float32(0.001)
        square += gradient
        root = np.sqrt(square, out=gradient)
        root *= np.float32(1.0 / math.sqrt(1.0 - 0.999**self.steps))
        root += np.float32(1e-8)
        np.divide(mean, root, out=root)
        root *= np.float32(1.0 / (1.0 - 0.9**self.steps))
        return root


class Sgd(Optimizer):
    """Gradient descent with momentum 0.9: ``v <- 0.9 · v + g``, direction v (Polyak 1964)."""

    parts = ("velocity",)
    rate = 1e-2

    def _direction(self, gradient: Array, *state: Array) -> Array:
        (velocity,) = state
        velocity *= np.float32(0.9)
        velocity += gradient
        gradient[...] = velocity
        return gradient


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adam": Adam, "sgd": Sgd}
