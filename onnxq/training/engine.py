"""A quantized model that can be trained: loss and gradients of its parameters, in one onnxruntime session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxq.context import Context
from onnxq.training.losses import Loss
from onnxq.training.twin import Array, Kind


@dataclass
class Trainable:
    """A quantized model with float parameters.

    Attributes:
        proto: Inputs: the model's inputs, targets ``target.<output>``, parameters. Outputs: ``loss``,
            ``grad.<parameter>``, the model's outputs.
        parameters: Master weights, biases and, where scales are learned, factors of the initial scales (1 at first),
            each float32 and C-contiguous; to be changed in place.
        kinds: What each parameter is.
        gradient_scale: What LSQ multiplies the gradient of each scale by when the optimizer is SGD.
    """

    proto: onnx.ModelProto
    parameters: dict[str, Array]
    kinds: dict[str, Kind]
    gradient_scale: dict[str, float]

    def step(self, feeds: Mapping[str, Array], targets: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """Loss and gradients (by parameter, in its shape) for one batch; ``targets`` by the output they are for."""
        raise NotImplementedError

    def evaluate(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The quantized model's outputs with the current parameters, for a batch of any size."""
        raise NotImplementedError

    def finish(self) -> ir.Model:
        """An ordinary Q/DQ model of the current parameters, in the form the model came in."""
        raise NotImplementedError


def every(value: ir.Value) -> bool:
    """Train all parameters."""
    return True


def trainable(
    model: ir.Model,
    loss: Loss,
    *,
    batch: Mapping[str, Array],
    train: Callable[[ir.Value], bool] = every,
    scales: bool = False,
    threads: int = 0,
    ctx: Context | None = None,
) -> Trainable:
    """Make a Q/DQ model trainable; the model stays as it is.

    Args:
        model: Weights as integers behind DequantizeLinear, or as floats in front of pairs.
        loss: What to minimise.
        batch: Feeds of one batch, for their shapes: all batches have the same.
        train: Which constants to train (weights and biases of ``model``).
        scales: Whether to learn scales, too (LSQ).
        threads: Threads of onnxruntime; 0 leaves it to onnxruntime.
        ctx: Takes notes.
    """
    raise NotImplementedError
