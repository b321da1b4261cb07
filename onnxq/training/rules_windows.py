"""Gradients of AveragePool and of Slice with any step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxq.training.rules import NoGradient, Tape, attributes, rule
from onnxq.training.rules_conv import Geometry, split_pads, transposed


@rule("AveragePool")
def average_pool(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Divided by how many values each window averages, then a transposed depthwise convolution with ones."""
    shape, out = tape.shape(node.input[0]), tape.shape(node.output[0])
    found = attributes(node)
    kernel = tuple(found["kernel_shape"])
    n, channels = len(kernel), shape[1]
    strides, dilations = tuple(found.get("strides", [1] * n)), tuple(found.get("dilations", [1] * n))
    pads = list(found.get("pads", [0] * 2 * n))
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out[2:], strides, kernel, dilations, strict=True)]
    auto = found.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        pads = split_pads([max(0, r - i) for r, i in zip(reach, shape[2:], strict=True)], auto == "SAME_UPPER")
    begin, end = tuple(pads[:n]), tuple(pads[n:])
    counts = np.ones((1, 1, *[1] * n))
    for axis in range(n):
        # What lies behind the last pad is there with ceil_mode only, and never counts.
        low, high = (
            (-begin[axis], shape[2 + axis] + end[axis]) if found.get("count_include_pad", 0) else (0, shape[2 + axis])
        )
        first = np.arange(out[2 + axis])[:, None] * strides[axis] - begin[axis]
        taps = first + np.arange(kernel[axis]) * dilations[axis]
        count = ((taps >= low) & (taps < high)).sum(1)
        counts = counts * count.reshape([-1 if a == axis + 2 else 1 for a in range(n + 2)])
    dtype = helper.tensor_dtype_to_np_dtype(tape.type(node.input[0]))
    even = tape.op("Div", gradient, tape.constant(counts, dtype))
    ones = tape.constant(np.ones((channels, 1, *kernel)), dtype)
    tape.declare(ones, tape.type(node.input[0]), (channels, 1, *kernel))
    behind = tuple(r - i - b for r, i, b in zip(reach, shape[2:], begin, strict=True))
    geometry = Geometry(
        kernel, strides, dilations, begin, tuple(max(e, b) for e, b in zip(end, behind, strict=True)), channels
    )
    return [transposed(tape, even, out[2:], ones, geometry, shape[2:])]


@rule("Slice")
def slice_(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Turned where the step is negative, zeros between where it is not one, zeros around.

    Raises:
        NoGradient: Starts, axes or steps are not constant.
    """
    shape, out = tape.shape(node.input[0]), tape.shape(node.output[0])
    starts = _ints(tape, node, 1)
    axes = _ints(tape, node, 3) or list(range(len(starts)))
    steps = _ints(tape, node, 4) or [1] * len(starts)
    before, after = [0] * len(shape), [0] * len(shape)
    value, length = gradient, list(out)
    for start, axis, step in zip(starts, (a % len(shape) for a in axes), steps, strict=True):
        count, size = out[axis], shape[axis]
        if not count:
            raise NoGradient("nothing is left of an axis")
        first = start + size if start < 0 else start
        first = min(max(first, 0), size if step > 0 else size - 1)
        if step < 0:
            value = tape.op("Slice", value, *(tape.ints([v]) for v in (-1, -(2**31), axis, -1)))
            first, step = first + (count - 1) * step, -step
        if step > 1:
            value = _spread(tape, value, length, axis, step)
        length[axis] = count * step
        before[axis], after[axis] = first, size - first - length[axis]
    pads = tape.ints(before + after)
    return [tape.op("Pad", value, pads) if any(before + after) else value]


def _spread(tape: Tape, value: str, length: list[int], axis: int, step: int) -> str:
    """``step - 1`` zeros behind each element of an axis."""
    split = tape.reshape(value, [*length[: axis + 1], 1, *length[axis + 1 :]])
    pads = [0] * (2 * len(length) + 2)
    pads[len(length) + 1 + axis + 1] = step - 1
    wide = tape.op("Pad", split, tape.ints(pads))
    return tape.reshape(wide, [*length[:axis], length[axis] * step, *length[axis + 1 :]])


def _ints(tape: Tape, node: onnx.NodeProto, index: int) -> list[int]:
    """A constant input; empty where it is not given."""
    if len(node.input) <= index or not node.input[index]:
        return []
    tensor = tape.stored(node.input[index])
    if tensor is None:
        raise NoGradient(f"{node.input[index]!r} is not constant")
    return [int(v) for v in numpy_helper.to_array(tensor)]
