"""Affine maps per output channel: read them from BatchNormalization, Add, Sub, Mul and Div, push them into a linear op.

For a linear op ``y = W x + b`` and a follower ``z = a y + c`` (one a and one c a channel), ``z = (a W) x + (a b + c)``.
Factors and offsets are float64; each stored number is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.edit import Namer, add_initializer, replace_initializer
from onnxq.facts import Edge
from onnxq.look import Array, attr_float, attr_int, constant, constant_tensor, dims_of, only_use, onnx_op
from onnxq.wording import plural

_EAGER = 1 << 20  # bytes; larger weights are scaled whenever they are read, instead of being held
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Refused(Exception):
    """The map cannot be read, or cannot be pushed into the op; the text says why."""


@dataclass(frozen=True, eq=False)
class Affine:
    """``y -> scale * y + offset``: float64, shape [C], or [1] for the same number in all channels."""

    scale: Array
    offset: Array


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear op with a constant weight, up to the value its follower reads.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        out: What the follower reads; behind the bias Add where there is one.
        weight: The weight; the use is input 1 of ``node``.
        channels: Number of output channels.
        rank: Rank of ``out``, None where unknown.
        bias: Use of the constant bias; None where there is none yet.
    """

    node: ir.Node
    out: ir.Value
    weight: ir.TensorProtocol
    channels: int
    rank: int | None
    bias: Edge | None

    @property
    def from_end(self) -> int:
        """How many axes of ``out`` come after the channel axis."""
        return 0 if self.rank is None or self.node.op_type == "MatMul" else self.rank - 2


def linear_of(out: ir.Value | None) -> Linear | None:
    """The linear op that makes a value, directly or through a bias Add behind a MatMul; None if none does."""
    node = out.producer() if out is not None else None
    if out is None or node is None:
        return None
    if onnx_op(node, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        weight = constant_tensor(node.inputs[1])
        axis = None if weight is None else ops.channel_axis(node, 1, len(weight.shape))
        if weight is None or axis is None:
            return None
        channels = int(weight.shape.numpy()[axis])
        if node.op_type == "ConvTranspose":
            channels *= attr_int(node, "group", 1)
        has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
        dims = dims_of(out)
        rank = len(weight.shape) if node.op_type != "MatMul" else None if dims is None else len(dims)
        return Linear(node, out, weight, channels, rank, Edge(node, 2) if has_bias else None)
    return _behind_bias_add(node, out) if onnx_op(node, "Add") else None


def _behind_bias_add(add: ir.Node, out: ir.Value) -> Linear | None:
    for i, value in enumerate(add.inputs):
        made = None if value is None else value.producer()
        other = constant_tensor(add.inputs[1 - i])
        if value is None or other is None or not onnx_op(made, "MatMul") or only_use(value) is None:
            continue
        inner = linear_of(value)
        if inner is not None and tuple(other.shape.numpy()) in ((inner.channels,), (1,), ()):
            return Linear(inner.node, out, inner.weight, inner.channels, inner.rank, Edge(add, 1 - i))
    return None


def of_batch_norm(node: ir.Node, channels: int) -> Affine:
    """The map of a BatchNormalization in inference.

    Raises:
        Refused: It trains, its parameters are not constant, or a variance + epsilon is not positive.
    """
    if attr_int(node, "training_mode", 0) or any(v.name or v.uses() for v in node.outputs[1:]):
        raise Refused("it computes batch statistics (training)")
    if attr_int(node, "spatial", 1) != 1:
        raise Refused("spatial=0 normalizes every single activation")
    found = [constant(v) for v in node.inputs[1:5]]
    if any(p is None for p in found):
        raise Refused("scale, bias, mean and variance are not all constant")
    scale, bias, mean, variance = (np.asarray(p).astype(np.float64) for p in found)
    if {p.shape for p in (scale, bias, mean, variance)} != {(channels,)}:
        raise Refused(f"its parameters do not have one number for each of {plural(channels, 'channel')}")
    spread = variance + attr_float(node, "epsilon", 1e-5)
    if not (spread > 0).all():
        raise Refused("variance + epsilon is not positive in every channel")
    factor = scale / np.sqrt(spread)
    return Affine(factor, bias - mean * factor)


def of_elementwise(node: ir.Node, linear: Linear) -> Affine | None:
    """The map of Add, Sub, Mul or Div by a constant of one number a channel; None if it is none."""
    if len(node.inputs) != 2 or not onnx_op(node, "Add", "Sub", "Mul", "Div"):
        return None
    left = node.inputs[0] is linear.out
    tensor = constant_tensor(node.inputs[1 if left else 0])
    if tensor is None or not _one_a_channel(tensor.shape.numpy(), linear):
        return None
    vector = np.asarray(tensor.numpy()).astype(np.float64).reshape(-1)
    one, zero = np.ones(1), np.zeros(1)
    if node.op_type == "Add":
        return Affine(one, vector)
    if node.op_type == "Sub":
        return Affine(one, -vector) if left else Affine(-one, vector)
    if node.op_type == "Mul":
        return Affine(vector, zero)
    return Affine(1 / vector, zero) if left and (vector != 0).all() else None


def _one_a_channel(shape: Sequence[int], linear: Linear) -> bool:
    """Whether a constant of this shape broadcasts over all axes of the output but the channels'."""
    if len(shape) > (1 if linear.rank is None else linear.rank):
        return False
    if all(d == 1 for d in shape):
        return True
    before, after = shape[: len(shape) - linear.from_end - 1], shape[len(shape) - linear.from_end :]
    own = len(shape) > linear.from_end and shape[len(shape) - linear.from_end - 1] == linear.channels
    return own and all(d == 1 for d in (*before, *after))


def push(affine: Affine, linear: Linear, namer: Namer) -> ir.Value | None:
    """Scale the weight and the bias of a linear op; constants that others read, too, are copied.

    Returns:
        The offset as a new constant where the op has no place for it (MatMul without a bias Add), else None.

    Raises:
        Refused: A result would leave the range of its type, or the op has no bias that could be changed. The graph is
            as it was.
    """
    dtype = linear.weight.dtype
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, *_NARROW):
        raise Refused(f"the weight is {dtype.name}")
    bias = _new_bias(affine, linear)
    if bias is not None:
        bias = _stored(bias, dtype, "bias")
    weight = _new_weight(affine, linear)
    node = linear.node
    if weight is not None:
        _swap(Edge(node, 1), weight, namer)
    if bias is None:
        return None
    if linear.bias is not None:
        _swap(linear.bias, bias, namer)
        return None
    graph = node.graph
    assert graph is not None
    value = add_initializer(graph, f"{node.name or node.op_type}_bias", bias, namer)
    if node.op_type == "MatMul":
        return value
    node.resize_inputs(3)
    node.replace_input_with(2, value)
    return None


def _new_bias(affine: Affine, linear: Linear) -> Array | None:
    """The bias as float64; None if there is none and none is needed."""
    gemm = linear.node.op_type == "Gemm"
    beta = attr_float(linear.node, "beta", 1.0) if gemm else 1.0
    if linear.bias is None or (gemm and beta == 0.0):
        if not affine.offset.any():
            return None
        if beta == 0.0:
            raise Refused("beta=0 leaves no way to add a bias")
        return np.broadcast_to(affine.offset / beta, (linear.channels,))
    old = constant(linear.bias.value)
    if old is None:
        raise Refused("its bias is not constant")
    if old.ndim == 2 and old.shape[0] > 1 and old.shape[1] == 1:
        raise Refused("its bias has one number a row")
    new = old.astype(np.float64) * affine.scale + affine.offset / beta
    return new if old.ndim > 1 else np.broadcast_to(new, (linear.channels,))


def _new_weight(affine: Affine, linear: Linear) -> Array | ir.TensorProtocol | None:
    """The scaled weight, lazily if it is large; None if nothing changes."""
    if (affine.scale == 1).all():
        return None
    node, old = linear.node, linear.weight
    rank = len(old.shape)
    factor = np.broadcast_to(affine.scale, (linear.channels,))
    shape = [1] * rank
    if node.op_type == "ConvTranspose":
        groups = attr_int(node, "group", 1)
        # Input channels come first, group by group; each group has its own output channels on axis 1.
        factor = np.repeat(factor.reshape(groups, -1), int(old.shape.numpy()[0]) // groups, axis=0)
        shape[0], shape[1] = factor.shape
    else:
        axis = ops.channel_axis(node, 1, rank)
        assert axis is not None
        shape[axis] = -1
    factor = factor.reshape(shape)
    return _times(old, factor, "weight")


def scale_constant(edge: Edge, factor: float, namer: Namer) -> None:
    """Multiply one use of a constant by a number; other uses keep it as it is.

    Raises:
        Refused: A result would leave the range of its type. The graph is as it was.
    """
    tensor = constant_tensor(edge.value)
    assert tensor is not None
    _swap(edge, _times(tensor, np.array(factor), f"constant '{edge.value.name}'"), namer)


def _times(old: ir.TensorProtocol, factor: Array, what: str) -> Array | ir.TensorProtocol:
    """A product rounded once; lazily if it is large."""
    if old.nbytes > _EAGER and old.dtype not in _NARROW:
        return ir.LazyTensor(
            lambda: ir.tensor(_scaled(old.numpy(), factor)), dtype=old.dtype, shape=ir.Shape(old.shape.numpy())
        )
    return _stored(old.numpy().astype(np.float64) * factor, old.dtype, what)


def _scaled(weight: Array, factor: Array) -> Array:
    """float64 products in blocks (NumPy's buffers), rounded to the weight's type: no float64 copy of the weight."""
    out = np.empty_like(weight)
    np.multiply(weight, factor, out=out, dtype=np.float64, casting="unsafe")
    return out


def _stored(values: Array, dtype: ir.DataType, what: str) -> Array:
    """Round to the stored type; refuses what would become infinite."""
    with np.errstate(over="ignore"):
        stored: Array = values.astype(dtype.numpy())
    if not np.isfinite(stored.astype(np.float64)).all():
        raise Refused(f"the {what} would leave the range of {dtype.name}")
    return stored


def _swap(edge: Edge, data: Array | ir.TensorProtocol, namer: Namer) -> None:
    replace_initializer(edge.value, data, namer, where=lambda other: other == edge)
