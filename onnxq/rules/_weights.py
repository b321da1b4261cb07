"""Reading the integers of stored weights, one weight at a time, and each as few times as can be."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.errors import OnnxqError
from onnxq.linting.subject import Linear
from onnxq.look import Array, constant_tensor


def read_integers(one: Linear) -> Array | None:
    """The integers that a DequantizeLinear reads, 2- and 4-bit ones as int8 or uint8.

    None where they are no constant, empty, or cannot be read: a wire rule says why.
    """
    tensor = constant_tensor(one.data)
    try:
        array = tensor.numpy() if tensor is not None and tensor.size else None
    except (OnnxqError, ValueError):
        return None
    if array is None or tensor is None or array.dtype.kind != "V":
        return array
    return array.astype(np.uint8 if tensor.dtype in (ir.DataType.UINT4, ir.DataType.UINT2) else np.int8)


def extent(one: Linear, axis: int | None) -> tuple[Array, Array] | None:
    """Smallest and largest integer that a DequantizeLinear reads, int64: along an axis, or of all of rank 0.

    None where there are none, or the axis is outside. Kept, so that rules that ask the same read a weight once.
    """
    assert one.data is not None
    rank = len(one.dims or ())
    if axis is not None:
        if not -rank <= axis < rank:
            return None
        axis %= rank
    key = (one.data, axis)
    if key not in one.subject.extents:
        array = read_integers(one)
        others = tuple(i for i in range(rank) if i != axis)
        one.subject.extents[key] = None
        if array is not None:
            if axis == 0 and rank > 1:  # one axis is much faster than several
                array, others = array.reshape(array.shape[0], -1), (1,)
            low, high = array.min(axis=others), array.max(axis=others)
            one.subject.extents[key] = np.asarray(low, np.int64), np.asarray(high, np.int64)
    return one.subject.extents[key]


def scale_axis(one: Linear) -> int | None:
    """The axis that its row of scales lies along; None for one scale, and for blocks."""
    scale = one.subject.dims(one.scale_value)
    return one.axis if scale is not None and len(scale) == 1 and scale[0] != 1 and not one.block_size else None
