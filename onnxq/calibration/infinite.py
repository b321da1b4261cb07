"""Whether a value may be infinite by construction: attention masks, padded embedding rows, what they flow through.

Asked only about values in which an infinity was seen, so weights are read for it only then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.look import bodies, constant_tensor, onnx_op

Array = np.ndarray[Any, np.dtype[Any]]

FINITE = frozenset(
    {"Softmax", "Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softsign", "Hardmax", "Sign", "Atan", "Sin", "Cos"}
)
"""Ops that make finite values of infinite ones."""

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE, None)


def huge(dtype: np.dtype[Any]) -> float:
    """From here on a value stands for infinity: masks are written as -Inf or as the lowest number of the type."""
    return 65504.0 if dtype == np.float16 else 1e30


class Infinities:
    """Looks for the constant or the input an infinite value comes from.

    Args:
        inputs: Graph inputs that are infinite themselves, as a mask given from outside is.
    """

    def __init__(self, inputs: frozenset[ir.Value] = frozenset()) -> None:
        self._inputs = inputs
        self._seen: dict[ir.Value, str | None] = {}

    def reason(self, value: ir.Value) -> str | None:
        """Where an infinity in ``value`` may come from, in words; None if it can only have been computed."""
        path: list[ir.Value] = []
        todo, known = [value], {value}
        while todo:
            v = todo.pop()
            why = self._seen[v] if v in self._seen else self._own(v)
            if why is not None:
                self._seen[value] = why
                return why
            path.append(v)
            before = [] if v in self._seen else _sources(v)
            todo += [u for u in before if u not in known]
            known.update(before)
        # Nothing behind any of them is infinite.
        self._seen |= dict.fromkeys(path)
        return None

    def _own(self, value: ir.Value) -> str | None:
        if value in self._inputs:
            return f"input '{value.name}' is infinite in every sample"
        tensor = value.const_value if value.is_initializer() else _constant(value)
        if tensor is None or tensor.dtype not in _FLOATS:
            return None
        extreme = _extreme(tensor.numpy())
        return None if extreme is None else f"constant '{value.name}' holds {extreme:g}"


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a Constant, or the one element a ConstantOfShape repeats."""
    node = value.producer()
    if onnx_op(node, "ConstantOfShape"):
        assert node is not None
        fill = node.attributes.get("value")
        return fill.as_tensor() if fill is not None and not fill.is_ref() else None
    return constant_tensor(value)


def _extreme(array: Array) -> float | None:
    """The infinite (or as good as infinite) value of largest magnitude, None if there is none."""
    if array.size == 0:
        return None
    array = array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype != np.float16 else array
    lo, hi, limit = float(np.min(array)), float(np.max(array)), huge(array.dtype)
    if lo <= -limit:
        return lo
    return hi if hi >= limit else None


def _sources(value: ir.Value) -> list[ir.Value]:
    """The float values that may hand an infinity on to this one."""
    node = value.producer()
    if node is None or onnx_op(node, *FINITE):
        return []
    out = [v for v in node.inputs if v is not None]
    for body in bodies(node):
        out.extend(body.outputs)
    return [v for v in out if v.dtype in _FLOATS]
