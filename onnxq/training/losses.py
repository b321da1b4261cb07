"""Losses, appended to a twin: `mse`, `cross-entropy`, `distill`.

``mse``: mean squared error of each float output, summed over outputs. ``distill``: the same, divided by the variance of
the target over the batch, so that outputs of all sizes count the same; 1 means no better than a constant.
``cross-entropy``: mean over samples (and positions) of ``-log softmax(logits)[target]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import OptionError, near
from onnxq.look import onnx_op
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

Loss = Literal["mse", "cross-entropy", "distill"]
LOSS = "loss"
"""Name of the graph output that holds the loss, a float32 scalar."""
TARGET = "target."
"""A model's output ``y`` is compared with the twin's input ``target.y``."""

_TINY = float(np.finfo(np.float32).tiny)


def check_loss(loss: str) -> None:
    """Refuse an unknown loss.

    Raises:
        OptionError: No such loss; names the known ones.
    """
    if loss not in get_args(Loss):
        raise OptionError(f"unknown loss '{loss}'{near(loss, get_args(Loss))}")


def compared(output: ir.Value, loss: Loss) -> ir.Value:
    """The value that a loss compares with the target of an output, in a float or a Q/DQ model.

    It is the output, or with ``distill`` and ``cross-entropy`` the logits in front of a final Softmax. The float
    model's value is what targets of ``distill`` are made of: run it with
    ``open_session(model, outputs=[compared(o, "distill") for o in model.graph.outputs])``.
    """
    last = None if loss == "mse" else final_softmax(output)
    logits = None if last is None else last.inputs[0]
    return output if logits is None else logits


def final_softmax(output: ir.Value) -> ir.Node | None:
    """The Softmax or LogSoftmax over classes that makes an output, looked at through pairs and Identity."""
    node = output.producer()
    while node is not None and node.inputs and not onnx_op(node, "Softmax", "LogSoftmax"):
        value = node.inputs[0]
        passes_on = onnx_op(node, "Identity") or is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)
        node = value.producer() if passes_on and value is not None else None
    return node


def float_outputs(model: ir.Model, loss: Loss) -> list[ir.Value]:
    """The outputs that a loss takes into account.

    Raises:
        OptionError: No output is float32, or `cross-entropy` would have to choose between several.
    """
    found = [v for v in model.graph.outputs if v.dtype == ir.DataType.FLOAT]
    if not found:
        raise OptionError("no output is float32: there is nothing a loss could compare")
    if loss == "cross-entropy" and len(found) > 1:
        names = ", ".join(f"'{v.name}'" for v in found)
        raise OptionError(f"cross-entropy needs a model with one float output, not {names}: use distill or mse")
    return found


@dataclass(frozen=True)
class Head:
    """What a loss compares with the target of one output.

    Attributes:
        value: Name of the value in the twin (`compared`).
        shape: Its shape.
        classes: The axis of classes, for `cross-entropy`: 1, or that of a final Softmax.
    """

    value: str
    shape: tuple[int, ...]
    classes: int = 1


def append_loss(graph: onnx.GraphProto, loss: Loss, heads: Mapping[str, Head]) -> None:
    """Add targets, loss nodes and the output `LOSS`.

    Args:
        graph: A twin; none of its values has a name that begins with ``loss`` or ``target.``.
        loss: Which loss.
        heads: What is compared, by output.

    Raises:
        OptionError: Logits without a class axis.
    """
    writer = _Writer(graph)
    parts = [writer.part(loss, output, head) for output, head in heads.items()]
    writer.node("Identity" if len(parts) == 1 else "Sum", parts, LOSS)
    graph.output.append(helper.make_tensor_value_info(LOSS, TensorProto.FLOAT, []))


class _Writer:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph

    def part(self, loss: Loss, output: str, head: Head) -> str:
        """The loss of one output; returns its name."""
        target, name, shape = TARGET + output, f"loss.{output}", head.shape
        if loss != "cross-entropy":
            self._graph.input.append(helper.make_tensor_value_info(target, TensorProto.FLOAT, shape))
            return self._error(name, head.value, target, relative=loss == "distill")
        if len(shape) < 2:
            raise OptionError(f"cross-entropy needs logits [N, C, ...], output '{output}' has shape {list(shape)}")
        axis = head.classes % len(shape)
        dims = (*shape[:axis], *shape[axis + 1 :])
        self._graph.input.append(helper.make_tensor_value_info(target, TensorProto.INT64, dims))
        return self._cross_entropy(name, head.value, target, shape[axis], axis)

    def _error(self, name: str, value: str, target: str, relative: bool) -> str:
        off = self.node("Sub", [value, target], f"{name}.difference")
        error = self._mean(self.node("Mul", [off, off], f"{name}.square"), f"{name}.error")
        if not relative:
            return error
        mean = self._mean(target, f"{name}.mean")
        off = self.node("Sub", [target, mean], f"{name}.deviation")
        variance = self._mean(self.node("Mul", [off, off], f"{name}.deviation2"), f"{name}.variance")
        safe = self.node("Max", [variance, self._constant(f"{name}.tiny", np.float32(_TINY))], f"{name}.safe")
        return self.node("Div", [error, safe], f"{name}.relative")

    def _cross_entropy(self, name: str, value: str, target: str, classes: int, axis: int) -> str:
        logs = self.node("LogSoftmax", [value], f"{name}.log", axis=axis)
        depth = self._constant(f"{name}.classes", np.int64(classes))
        ends = self._constant(f"{name}.ends", np.array([0, 1], np.float32))
        hot = self.node("OneHot", [target, depth, ends], f"{name}.hot", axis=axis)
        mean = self._mean(self.node("Mul", [logs, hot], f"{name}.picked"), f"{name}.picked.mean")
        return self.node("Mul", [mean, self._constant(f"{name}.factor", np.float32(-classes))], f"{name}.entropy")

    def _mean(self, value: str, name: str) -> str:
        return self.node("ReduceMean", [value], name, keepdims=0)

    def _constant(self, name: str, array: Any) -> str:
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node; returns its output."""
        self._graph.node.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output
