"""Layers with a constant bias, as far as the scale of that bias depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.errors import DataError
from onnxq.facts import Edge, Encodings
from onnxq.layers import Layer, folded_behind
from onnxq.look import attr_float, constant, constant_tensor, dims_of, onnx_op
from onnxq.numerics.affine import dequantize
from onnxq.numerics.spec import Encoding
from onnxq.pairs import read_encoding
from onnxq.states import DEQUANTIZE, is_q
from onnxq.weights import weight_tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Biased:
    """A product with a constant bias: ``Y = alpha A B + beta C``, both factors 1 but for a Gemm.

    Attributes:
        node: The op that has the weight.
        source: Use of the activation.
        weight: Use of the weight: a constant, or stored integers behind a DequantizeLinear.
        stored: The weight's encoding where it is integers already.
        dims: Shape of the weight.
        bias: Use of the bias, by the op itself or by an Add behind it.
        values: The bias, float64: [channels], or [..., channels] where it differs along other axes.
        dtype: Float type of the bias and of its scale.
        tail: What the rest of the graph reads: behind an Add, and a Relu or Clip that folds into a Q.
    """

    node: ir.Node
    source: Edge
    weight: Edge
    stored: Encoding | None
    dims: tuple[int, ...]
    bias: Edge
    values: Array
    dtype: np.dtype[Any]
    tail: ir.Value

    @cached_property
    def factor(self) -> float:
        """``|alpha / beta|``: the product's scale over that of the bias; 1 where either is 0."""
        if not onnx_op(self.node, "Gemm"):
            return 1.0
        return abs(attr_float(self.node, "alpha", 1.0)) / (abs(self.beta) or 1.0) or 1.0

    @property
    def beta(self) -> float:
        """Factor of the bias; alpha has its sign in `shift`."""
        return attr_float(self.node, "beta", 1.0) if onnx_op(self.node, "Gemm") else 1.0

    @cached_property
    def size(self) -> Array:
        """Largest magnitude of each channel's bias, [channels]."""
        return np.asarray(np.abs(self.values).reshape(-1, self.values.shape[-1]).max(axis=0, initial=0.0))

    @property
    def terms(self) -> int:
        """How many products are summed for one output value."""
        return ops.terms(self.node, self.weight.index, self.dims)

    def tiled(self, scale: Array) -> Array:
        """One weight scale for each channel, float64 (the groups of a ConvTranspose share them); rank 0 stays."""
        scale = scale.astype(np.float64)
        return np.tile(scale, ops.scale_tiles(self.node)) if scale.ndim else scale

    def gathered(self, channels: Array, scale: Array) -> Array:
        """The largest of the channels behind each weight scale: the way back from `tiled`."""
        tiles = ops.scale_tiles(self.node)
        return np.asarray(channels.reshape(tiles, -1).max(axis=0) if scale.ndim else channels.max(initial=0.0))

    def weights(self) -> Array:
        """The float weight as the op reads it."""
        tensor = weight_tensor(self.weight.value)
        if tensor is not None:
            return tensor.numpy()
        node = self.weight.value.producer()
        integers = constant(node.inputs[0]) if node is not None else None
        assert integers is not None and self.stored is not None
        return dequantize(integers, self.stored)


def read_biased(bias: Edge) -> Biased | str:
    """Read the product that a constant is the bias of, or say in words why none of its scales can be the bias's.

    Args:
        bias: The bias input of an op of `onnxq.ops`, or one side of an Add behind a MatMul.

    Raises:
        DataError: The bias holds NaN or infinity.
    """
    node, inside = bias.node, bias.index == getattr(ops.info(bias.node), "bias", None)
    if not inside:
        added = bias.node.inputs[1 - bias.index] if onnx_op(bias.node, "Add") else None
        producer = added.producer() if added is not None else None
        if producer is None:
            return "it is added to nothing that a node makes"
        node = producer
    values, found = constant(bias.value), _weight(node)
    if values is None:
        return "it is computed at run time"
    if found is None:
        return f"{node.op_type} has no weight with one scale, or one for each output channel"
    weight, dims, stored = found
    channels = ops.channels(node, weight.index, dims)
    assert channels is not None
    wide = _broadcast(values.astype(np.float64), channels)
    if wide is None:
        return f"its shape {list(values.shape)} does not go with {channels} channels"
    finite = np.isfinite(wide).reshape(-1, channels).all(axis=0)
    if not finite.all():
        name = f"{node.name} ({node.op_type}), bias '{bias.value.name}'"
        raise DataError(f"{name}: channel {int(np.argmin(finite))} is not finite")
    dtype = np.dtype(np.float16 if values.dtype == np.float16 else np.float32)
    source = Edge(node, next(i for i in (0, 1) if i != weight.index))
    tail = bias.node.outputs[0]
    folded = folded_behind(tail)
    return Biased(node, source, weight, stored, dims, bias, wide, dtype, tail if folded is None else folded.outputs[0])


def stored_bias(edge: Edge, encodings: Encodings) -> Array:
    """A bias as float64, [channels] or [..., channels]."""
    if edge in encodings.corrected:
        return encodings.corrected[edge]
    found = read_biased(edge)
    assert isinstance(found, Biased)
    return found.values


def bias_rank(layer: Layer, encodings: Encodings) -> int:
    """The rank to store a bias with: 1, or that of the product where onnxruntime would not load the plain vector.

    It (1.32) turns a MatMul of rank 3 and more with a constant vector behind it into a Gemm between two Reshapes,
    pushes the int8 pair in front of it through the first one, and then refuses its own node ("output_dtype INT8 does
    not match y_zero_point type UINT8"). It leaves a constant of shape [1, 1, C] alone.
    """
    x = encodings.read_by(layer.inputs[0])
    rank = len(dims_of(layer.node.outputs[0]) or ())
    added = layer.bias is not None and layer.bias.node is not layer.node
    return rank if added and rank > 2 and x is not None and x.spec.qtype.name == "int8" else 1


def _weight(node: ir.Node) -> tuple[Edge, tuple[int, ...], Encoding | None] | None:
    """Use, shape and, of stored integers, encoding of a node's constant operand."""
    row = ops.info(node)
    for slot in row.weights if row else ():
        value = node.inputs[slot.index] if slot.index < len(node.inputs) else None
        edge, tensor, stored = Edge(node, slot.index), weight_tensor(value), None
        dq = value.producer() if value is not None else None
        if tensor is None and dq is not None and is_q(dq, DEQUANTIZE):
            tensor = constant_tensor(dq.inputs[0])
            if tensor is not None:
                read = read_encoding(dq, tuple(int(d) for d in tensor.shape.numpy()))
                stored = None if isinstance(read, str) else read
                tensor = tensor if stored is not None else None
        if tensor is None:
            continue
        dims = tuple(int(d) for d in tensor.shape.numpy())
        axis = ops.channel_axis(node, slot.index, len(dims))
        if axis is not None and (stored is None or (stored.axis in (None, axis) and stored.block_size is None)):
            return edge, dims, stored
    return None


def _broadcast(bias: Array, channels: int) -> Array | None:
    """[channels], or [..., channels] where a leading axis is longer than 1; None for a shape that does not fit."""
    lead = bias.shape[:-1] if any(d > 1 for d in bias.shape[:-1]) else ()
    if bias.ndim and bias.shape[-1] not in (1, channels):
        return None
    if not lead:
        bias = bias.reshape(-1)
    return np.broadcast_to(bias, (*lead, channels))
