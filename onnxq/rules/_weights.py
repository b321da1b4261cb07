"""Reading the integers of stored weights, one weight at a time."""

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
