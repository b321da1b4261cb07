"""Limits of values, as far as the ops that make them tell: where a pair's saturation can change anything."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxq.look import attr_float, constant, onnx_op
from onnxq.qoperators.movement import moved

Limits = tuple[float, float]

ANY: Limits = (-math.inf, math.inf)
_DEPTH = 8  # ops that are looked through: what has limits has them close by
_MADE: dict[str, Limits] = {
    "Sigmoid": (0, 1),
    "HardSigmoid": (0, 1),
    "Softmax": (0, 1),
    "Tanh": (-1, 1),
    "Sin": (-1, 1),
    "Cos": (-1, 1),
    **dict.fromkeys(
        ("Relu", "Abs", "Exp", "Sqrt", "Softplus", "ReduceL1", "ReduceL2", "ReduceSumSquare"), (0, math.inf)
    ),
}
_MEANS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceMin")


def limits_of(value: ir.Value | None, depth: int = _DEPTH) -> Limits:
    """Numbers that a value's elements lie between, whatever the inputs of the model are."""
    node = value.producer() if value is not None else None
    if node is None or depth == 0 or node.domain:
        return ANY
    if node.op_type in _MADE:
        return _MADE[node.op_type]
    if onnx_op(node, "Clip"):
        return _clip(node, limits_of(node.inputs[0], depth - 1))
    data = moved(node)
    if data and not onnx_op(node, "Pad"):
        every = [limits_of(node.inputs[i], depth - 1) for i in data]
        return min(lo for lo, _ in every), max(hi for _, hi in every)
    if onnx_op(node, *_MEANS):
        lo, hi = limits_of(node.inputs[0], depth - 1)
        return min(lo, 0), max(hi, 0)  # padding counts, perhaps
    if onnx_op(node, "Add", "Mul") and len(node.inputs) == 2:
        (a, b), (c, d) = (limits_of(v, depth - 1) for v in node.inputs)
        if onnx_op(node, "Add"):
            return a + c, b + d
        return (a * c, b * d) if min(a, c) > -math.inf and min(a, c) >= 0 else ANY
    return ANY


def _clip(node: ir.Node, before: Limits) -> Limits:
    """What a Clip leaves of the limits of its input; its bounds are attributes below opset 11."""
    bounds = []
    for index, name in ((1, "min"), (2, "max")):
        found = constant(node.inputs[index]) if index < len(node.inputs) else None
        missing = math.inf if index == 2 else -math.inf
        bounds.append(attr_float(node, name, missing) if found is None else float(found.reshape(())))
    return max(before[0], bounds[0]), min(before[1], bounds[1])
