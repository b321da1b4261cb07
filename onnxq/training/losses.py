"""Losses, appended to a twin: `mse`, `cross-entropy`, `distill`."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

Loss = Literal["mse", "cross-entropy", "distill"]
LOSS = "loss"
"""Name of the graph output that holds the loss, a float32 scalar."""
TARGET = "target."
"""A model's output ``y`` is compared with the twin's input ``target.y``."""


def compared(output: ir.Value, loss: Loss) -> ir.Value:
    """The value that a loss compares with the target of an output, in a float or a Q/DQ model.

    It is the output, or with ``distill`` and ``cross-entropy`` the logits in front of a final Softmax. The float
    model's value is what targets of ``distill`` are made of: run it with
    ``open_session(model, outputs=[compared(o, "distill") for o in model.graph.outputs])``.
    """
    raise NotImplementedError
