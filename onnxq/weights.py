"""Integer copies of weights and biases as lazy tensors: quantized when they are written, one at a time, never kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.look import constant_tensor
from onnxq.numerics.affine import dequantize, quantize, quantize_packed
from onnxq.numerics.packing import pack
from onnxq.numerics.spec import Encoding, QType

Array = np.ndarray[Any, Any]


def weight_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The constant that a use reads, also behind carriers, without reading its data; None for anything else.

    Carriers (`onnxq.carry`) stay in the graph where a constant has another reader: an embedding that is the output
    layer, too.
    """
    tensor = constant_tensor(value)
    if tensor is not None:
        return tensor
    found = constant_behind(value)
    return None if isinstance(found, str) else found.read()


def onnx_dtype(qtype: QType) -> ir.DataType:
    """The ONNX element type of an integer type."""
    return ir.DataType[qtype.name.upper()]


def as_tensor(values: Array, qtype: QType) -> ir.TensorProtocol:
    """Integers in their carrier type as a tensor of ``qtype``; 4- and 2-bit types are packed here and now."""
    if qtype.bits >= 8:
        return ir.Tensor(values)
    return ir.PackedTensor(pack(values, qtype), onnx_dtype(qtype), shape=values.shape)


def lazy_tensor(make: Callable[[], Array], qtype: QType, shape: Sequence[int]) -> ir.LazyTensor:
    """A tensor of ``qtype`` whose integers are made, and packed, each time it is read or written."""
    return ir.LazyTensor(lambda: as_tensor(make(), qtype), dtype=onnx_dtype(qtype), shape=ir.Shape(shape))


def quantized_weight(value: ir.Value, encoding: Encoding) -> ir.TensorProtocol:
    """The integer copy of a constant float value, shape kept; the integers that were chosen for it where some were."""
    integers = encoding.integers
    if integers is not None:
        return lazy_tensor(lambda: integers, encoding.spec.qtype, integers.shape)
    source = weight_tensor(value)
    assert source is not None
    shape, qtype = ir.Shape(source.shape.numpy()), encoding.spec.qtype

    def make() -> ir.TensorProtocol:
        if qtype.bits < 8:
            return ir.PackedTensor(quantize_packed(source.numpy(), encoding), onnx_dtype(qtype), shape=shape)
        return ir.Tensor(quantize(source.numpy(), encoding), dtype=onnx_dtype(qtype))

    return ir.LazyTensor(make, dtype=onnx_dtype(qtype), shape=shape)


def dequantized_weight(tensor: ir.TensorProtocol, encoding: Encoding, dtype: ir.DataType) -> ir.LazyTensor:
    """Stored integers as floats of ``dtype``, shape kept: dequantized when they are written."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(
        lambda: ir.Tensor(dequantize(tensor.numpy(), encoding, dtype.numpy())), dtype=dtype, shape=shape
    )


def float_name(integers: ir.Value) -> str:
    """A name for the floats: the one that `insert-qdq` has made the integers' name of, else one made of theirs."""
    name = integers.name or "weight"
    return name.removesuffix("_quantized") if name.endswith("_quantized") else f"{name}_float"


def quantized_bias(bias: Array, encoding: Encoding) -> ir.TensorProtocol:
    """The int32 copy of a float64 bias of shape [channels]."""
    return ir.Tensor(quantize(bias, encoding))
