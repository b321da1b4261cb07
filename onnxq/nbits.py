"""Weights of com.microsoft.MatMulNBits and GatherBlockQuantized: what a DequantizeLinear reads, packed, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.look import Array, attr_int, constant_tensor, is_constant, onnx_op
from onnxq.numerics import nbits
from onnxq.numerics.spec import QTYPES, QType
from onnxq.weights import lazy_tensor

DOMAIN, OP, LOOKUP = "com.microsoft", "MatMulNBits", "GatherBlockQuantized"
SMALLEST_BLOCK, WIDEST_2_BIT_BLOCK, WHOLE_COLUMN_BLOCK = 16, 256, 128


class Refused(Exception):
    """The other form cannot hold this; the text says why."""


@dataclass(frozen=True)
class Weight:
    """A weight [K, N] as integers, with one scale and one zero point a block of rows and a column.

    Attributes:
        qtype: Type of the integers.
        rows: K.
        columns: N.
        size: Rows in a block, a power of two.
        integers: Tensor [K, N].
        scale: Tensor of rank 0, [N] or [blocks, N].
        zero_point: Tensor of the shape of ``scale``; None for zero.
    """

    qtype: QType
    rows: int
    columns: int
    size: int
    integers: ir.TensorProtocol
    scale: ir.TensorProtocol
    zero_point: ir.TensorProtocol | None

    @property
    def blocks(self) -> int:
        """Blocks in a column."""
        return -(-self.rows // self.size)

    def packed(self) -> ir.TensorProtocol:
        """Input B: uint8 [N, blocks, bytes], packed when written."""
        shape = (self.columns, self.blocks, self.size * self.qtype.bits // 8)
        return lazy(lambda: nbits.to_blocks(self.integers.numpy(), self.qtype, self.size), ir.DataType.UINT8, shape)

    def scales(self) -> ir.TensorProtocol:
        """Input scales, [N, blocks]."""
        shape = (self.columns, self.blocks)
        return lazy(lambda: self._by_column(self.scale.numpy()), self.scale.dtype, shape)

    def zero_points(self) -> ir.TensorProtocol | None:
        """Input zero_points, packed uint8; None where all of them are the middle, which is the default."""
        middle = 1 << (self.qtype.bits - 1)
        source = self.zero_point
        if source is None and self.qtype.signed:
            return None
        zero = np.zeros((), np.uint8) if source is None else nbits.unsigned(source.numpy(), self.qtype)
        if np.all(zero == middle):
            return None
        shape = (self.columns, -(-self.blocks * self.qtype.bits // 8))
        return lazy(lambda: nbits.pack(self._by_column(zero), self.qtype.bits), ir.DataType.UINT8, shape)

    def _by_column(self, parameter: Array) -> Array:
        return np.ascontiguousarray(np.broadcast_to(parameter, (self.blocks, self.columns)).T)


def unpacked(node: ir.Node) -> tuple[QType, ir.TensorProtocol, ir.TensorProtocol, ir.TensorProtocol]:
    """What a MatMulNBits multiplies by, as a DequantizeLinear reads it.

    Returns:
        An unsigned type; tensors read when written: integers [K, N], scale and zero point, both [blocks, N], or [N] if
        a column is one block.

    Raises:
        Refused: ONNX has no such thing, or not here.
    """
    rows, columns, bits, size = (
        attr_int(node, key, 4 if key == "bits" else 0) for key in ("K", "N", "bits", "block_size")
    )
    packed, scales, zero, order = (*node.inputs[1:5], None, None)[:4]
    if attr_int(node, "weight_prepacked", 0):
        raise Refused("its weight is laid out for one device")
    if order is not None:
        raise Refused("g_idx orders its rows")
    if zero is not None and zero.dtype not in (None, ir.DataType.UINT8):
        raise Refused("its zero points are no integers")
    if bits not in (2, 4, 8) or size < SMALLEST_BLOCK or size & (size - 1):
        raise Refused(f"{bits} bits in blocks of {size}")
    blocks = -(-rows // size)
    shape = (blocks, columns) if blocks > 1 else (columns,)
    weight = _part(packed, "weight", columns, blocks, size * bits // 8)
    scale = _part(scales, "scales", columns, blocks)
    points = None if zero is None else _part(zero, "zero points", columns, -(-blocks * bits // 8))
    qtype = QTYPES[f"uint{bits}"]

    def zero_points() -> Array:
        if points is None:
            return np.full(shape, 1 << (bits - 1), np.uint8)
        return np.ascontiguousarray(nbits.unpack(points.numpy().reshape(columns, -1), bits, blocks).T).reshape(shape)

    return (
        qtype,
        lazy_tensor(lambda: nbits.from_blocks(weight.numpy().reshape(columns, -1), bits, rows), qtype, (rows, columns)),
        lazy(lambda: np.ascontiguousarray(scale.numpy().reshape(columns, blocks).T).reshape(shape), scale.dtype, shape),
        lazy_tensor(zero_points, qtype, shape),
    )


def _part(value: ir.Value | None, what: str, *dims: int) -> ir.TensorProtocol:
    """A constant of so many elements, in this or another shape."""
    tensor = constant_tensor(value)
    if tensor is None:
        raise Refused(f"its {what} are computed" if what.endswith("s") else f"its {what} is computed")
    if math.prod(tensor.shape.numpy()) != math.prod(dims):
        raise Refused(f"its {what} of shape {list(tensor.shape.numpy())} should be {list(dims)}")
    return tensor


def lazy(make: Callable[[], Array], dtype: ir.DataType, shape: tuple[int, ...]) -> ir.LazyTensor:
    """A tensor whose data is made when it is written, each time anew."""
    return ir.LazyTensor(lambda: ir.Tensor(make(), dtype=dtype), dtype=dtype, shape=ir.Shape(shape))


def dequantized(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear of a constant that makes a value, else None."""
    node = None if value is None else value.producer()
    return node if onnx_op(node, "DequantizeLinear") and is_constant(node.inputs[0]) else None  # type: ignore[union-attr]


def read_weight(dq: ir.Node) -> Weight:
    """What a DequantizeLinear of a constant reads, as blocks along axis 0.

    Raises:
        Refused: Not two axes, wide integers, computed parameters, or scales that blocks along axis 0 cannot have.
    """
    integers = constant_tensor(dq.inputs[0])
    scale = constant_tensor(dq.inputs[1])
    given = dq.inputs[2] if len(dq.inputs) > 2 else None
    zero = constant_tensor(given)
    assert integers is not None
    qtype = QTYPES.get(integers.dtype.name.lower())
    if len(integers.shape) != 2:
        raise Refused(f"the weight has {len(integers.shape)} axes, MatMulNBits takes 2")
    if qtype is None or qtype.bits > 8 or qtype.is_float:
        raise Refused(f"the weight is {integers.dtype.name.lower()}, MatMulNBits takes 2, 4 and 8 bits")
    if scale is None or (given is not None and zero is None):
        raise Refused("scale or zero point is computed")
    if attr_int(dq, "output_dtype", scale.dtype) not in (0, scale.dtype):
        raise Refused("it dequantizes to another type than its scale's")
    rows, columns = (int(d) for d in integers.shape.numpy())
    if not rows or not columns:
        raise Refused("the weight is empty")
    size = _block_size(dq, tuple(scale.shape.numpy()), rows, columns)
    if size < SMALLEST_BLOCK or size & (size - 1):
        raise Refused(f"blocks of {size}: MatMulNBits takes powers of two from {SMALLEST_BLOCK}")
    if qtype.bits == 2 and size > WIDEST_2_BIT_BLOCK:
        raise Refused(f"blocks of {size}: onnxruntime takes at most {WIDEST_2_BIT_BLOCK} with 2 bits")
    return Weight(qtype, rows, columns, size, integers, scale, zero)


def _block_size(dq: ir.Node, scales: tuple[int, ...], rows: int, columns: int) -> int:
    size, axis = attr_int(dq, "block_size", 0), attr_int(dq, "axis", 1) % 2
    if size:
        if axis != 0:
            raise Refused("blocks run along the output channels")
        if scales != (-(-rows // size), columns):
            raise Refused(f"scales {list(scales)} do not fit blocks of {size} rows of [{rows}, {columns}]")
        return size
    if scales not in ((), (1,), (columns,)) or (scales == (columns,) and columns > 1 and axis != 1):
        raise Refused("scales do not follow the output channels")
    return min(WHOLE_COLUMN_BLOCK, max(SMALLEST_BLOCK, 1 << (rows - 1).bit_length()))
