"""Scales and zero points of integer operators in the shapes that QuantizeLinear and DequantizeLinear take."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import onnx_ir as ir

from onnxq.look import Array, constant, dims_of, onnx_op
from onnxq.nbits import Refused as Refused
from onnxq.numerics.spec import QTYPES, Blocked, PerAxis
from onnxq.ops import MICROSOFT
from onnxq.opsets.pairs import is_contrib

PER_AXIS_SINCE, HALF_SINCE, BLOCKS_SINCE = 13, 19, 21
"""First opsets of ai.onnx whose pairs take an axis, scales other than float32, blocks (operator texts)."""


Stores = Callable[[str, Array], ir.Value]
"""Puts a constant into the model under a name, and returns its value."""


def is_single(value: ir.Value) -> bool:
    """Whether a scale or zero point is known to be one number, of whatever shape."""
    array = constant(value)
    if array is not None:
        return array.size == 1
    dims = dims_of(value)
    return onnx_op(value.producer(), "DynamicQuantizeLinear") if dims is None else all(d == 1 for d in dims)


def content(value: ir.Value | None) -> Hashable:
    """What tells parameters apart: the numbers of constants, else the value."""
    array = constant(value)
    return value if array is None else (array.dtype, array.shape, array.tobytes())


def fit(
    scale: ir.Value, zero: ir.Value | None, dtype: ir.DataType | None, axis: int | None, blocked: bool, store: Stores
) -> tuple[ir.Value, ir.Value | None, int | None]:
    """Scale and zero point in one shape, and the axis to write.

    A single constant number, of whatever shape, becomes a scalar; a constant one is repeated where its partner has
    several values; a missing zero point is written as 0.

    Args:
        scale: The scale.
        zero: The zero point; None for 0.
        dtype: Type of the integers; None leaves a missing zero point out.
        axis: Axis of a scale with several values; None where the operator takes a single one only.
        blocked: Whether it is one scale a block.
        store: Puts changed parameters into the model.

    Returns:
        Scale, zero point, and the axis, None for a single scale.

    Raises:
        Refused: The shapes do not fit, or are unknown.
    """
    if blocked:
        if zero is None and dtype is not None:
            zero = store(f"{scale.name}_zero_point", _zeros(scale, dtype))
        return scale, zero, axis
    found, zeros = constant(scale), constant(zero)
    several = (
        found if found is not None and found.size != 1 else zeros if zeros is not None and zeros.size != 1 else None
    )
    if several is not None and (several.ndim != 1 or axis is None):
        raise Refused(f"its scale '{scale.name}' or its zero point has shape {list(several.shape)}")
    if several is None and not is_single(scale) and axis is not None:
        if dims_of(scale) is None or None in (dims_of(scale) or ()):
            raise Refused(f"scale '{scale.name}' is computed, and its shape is unknown")
        if zero is not None and dims_of(zero) != dims_of(scale):
            raise Refused(f"the shape of zero point '{zero.name}' is not known to be that of scale '{scale.name}'")
    shape = () if several is None else several.shape
    for value, array in ((scale, found), (zero, zeros)):
        if several is not None and value is not None and array is None and dims_of(value) != shape:
            raise Refused(f"'{value.name}' is computed, its partner has shape {list(shape)}")
    scale = _fitted(scale, found, shape, store)
    if zero is None:
        zeros = None if dtype is None else np.zeros(shape, dtype.numpy()) if found is not None else _zeros(scale, dtype)
        zero = None if zeros is None else store(f"{scale.name}_zero_point", zeros)
    else:
        zero = _fitted(zero, zeros, shape, store)
    single = several is None and (axis is None or is_single(scale))
    return scale, zero, None if single else axis


def _zeros(scale: ir.Value, dtype: ir.DataType) -> Array:
    return np.zeros([d or 0 for d in dims_of(scale) or ()], dtype.numpy())


def _fitted(value: ir.Value, array: Array | None, shape: tuple[int, ...], store: Stores) -> ir.Value:
    """A parameter in the shape of its partner."""
    if array is None or array.shape == shape:
        return value
    if array.size != 1:
        raise Refused(f"'{value.name}' has shape {list(array.shape)}, its partner {list(shape)}")
    return store(value.name or "parameter", np.full(shape, array.reshape(()), array.dtype))


def domain_for(
    opset: int, dtype: ir.DataType | None, scale: ir.DataType | None, axis: int | None, block_size: int | None
) -> str:
    """The domain of a pair: ai.onnx where its opset has such a pair, else onnxruntime's.

    Args:
        opset: Opset of ai.onnx.
        dtype: Type of the integers, None where nobody knows.
        scale: Type of the scale.
        axis: Axis of several scales.
        block_size: Values in a block.

    Raises:
        Refused: Neither has it.
    """
    qtype = QTYPES.get(dtype.name.lower()) if dtype is not None else None
    needed = qtype.since if qtype is not None else 0
    needed = max(needed, PER_AXIS_SINCE if axis is not None else 0, BLOCKS_SINCE if block_size else 0)
    if scale not in (None, ir.DataType.FLOAT):
        needed = max(needed, HALF_SINCE)
    if needed <= opset:
        return ""
    contrib = dtype is ir.DataType.INT32 and not block_size
    if not contrib and (
        qtype is None or not is_contrib(qtype, Blocked(block_size, axis) if block_size else PerAxis(axis))
    ):
        raise Refused(f"its Q/DQ pair needs opset {needed}, the model has {opset}: run upgrade-opset first")
    return MICROSOFT
