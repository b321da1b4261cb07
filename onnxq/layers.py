"""Layers: a weight-carrying op together with the bias Add and the Relu/Clip that the runtime folds into it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from onnxq import ops
from onnxq.facts import Edge
from onnxq.look import constant, constant_tensor, dims_of, is_constant, only_use, onnx_op, uses
from onnxq.targets import IntegerOp
from onnxq.weights import weight_tensor

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)

# |x| <= 255 and |w| <= 128: longer sums of products could leave the int32 accumulator.
MAX_TERMS = (2**31 - 1) // (255 * 128)


@dataclass(frozen=True)
class Layer:
    """One matmul-like op and what belongs to it.

    Attributes:
        node: Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU or RNN.
        inputs: Uses of activations.
        weight: Use of the constant weight, which may stand behind a Transpose; None when both operands are activations.
        bias: Use of the constant bias: the op's own bias input, or the constant operand of a following Add. It holds
            one number, or one an output channel. None in an LSTM, GRU or RNN, whose bias stays float.
        tail: The value the rest of the graph reads: behind bias Add and folded Relu/Clip.
        body: The nodes between ``node`` and ``tail``, in order.
        recurrent: Use of the constant recurrence weight of an LSTM, GRU or RNN.
    """

    node: ir.Node
    inputs: tuple[Edge, ...]
    weight: Edge | None
    bias: Edge | None
    tail: ir.Value
    body: tuple[ir.Node, ...]
    recurrent: Edge | None = None

    @property
    def weights(self) -> tuple[Edge, ...]:
        """All uses of constant weights."""
        return tuple(edge for edge in (self.weight, self.recurrent) if edge is not None)

    @cached_property
    def weight_tensor(self) -> ir.TensorProtocol | None:
        """The constant weight as its use reads it; None where both operands are activations."""
        return weight_tensor(self.weight.value) if self.weight else None

    @cached_property
    def weight_dims(self) -> tuple[int, ...]:
        """Shape of the constant weight; empty where both operands are activations."""
        tensor = self.weight_tensor
        return () if tensor is None else tuple(int(d) for d in tensor.shape.numpy())

    @cached_property
    def channels(self) -> int | None:
        """Number of output channels, where there is a constant weight."""
        return ops.channels(self.node, self.weight.index, self.weight_dims) if self.weight else None

    @property
    def terms(self) -> int:
        """How many products are summed for one output value; 0 where both operands are activations."""
        return ops.terms(self.node, self.weight.index, self.weight_dims) if self.weight else 0

    @property
    def folded(self) -> bool:
        """Whether it ends in a Relu or Clip that only a QuantizeLinear behind it makes redundant."""
        return bool(self.body) and folds(self.body[-1])


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is known to hold floats of any width."""
    return value is not None and value.dtype in FLOATS


def read_weights(node: ir.Node) -> Layer | str:
    """Read a weight-carrying node alone, without bias, body or what is behind it, or say in words why it has no weight.

    Args:
        node: A node with a row in `onnxq.ops`.
    """
    row = ops.info(node)
    if row is None:
        return f"{node.op_type} carries no weights"
    slots = [s for s in row.weights if s.index < len(node.inputs) and node.inputs[s.index] is not None]
    tensors = {s.index: weight_tensor(node.inputs[s.index]) for s in slots}
    weights = [s for s in slots if tensors[s.index] is not None]
    weight: Edge | None = Edge(node, weights[0].index) if weights else None
    recurrent = onnx_op(node, *ops.RECURRENT)
    if (weight is None and not onnx_op(node, "MatMul")) or (recurrent and len(weights) < 2):
        return "its weight is computed at run time"
    if len(weights) == len(slots) and len(slots) > 1 and not recurrent:
        return "all its operands are constant"
    stored = tensors[weight.index] if weight is not None else None
    if stored is not None and stored.dtype not in FLOATS:
        return f"its weight is {stored.dtype.name.lower()}, not a float type"
    if recurrent:
        return Layer(node, (Edge(node, 0),), weight, None, node.outputs[0], (), Edge(node, weights[1].index))
    data = tuple(
        Edge(node, i)
        for i, value in enumerate(node.inputs)
        if value is not None and i != row.bias and (weight is None or i != weight.index)
        if value.dtype is None or is_float(value)  # no masks and lengths
    )
    return Layer(node, data, weight, None, node.outputs[0], ())


def read_layer(node: ir.Node, apart: Container[ir.Node] = ()) -> Layer | str:
    """Read a weight-carrying node as a layer, or say in words why it is none.

    Args:
        node: A node with a row in `onnxq.ops`.
        apart: Nodes that must not become part of the layer.
    """
    layer, row = read_weights(node), ops.info(node)
    if isinstance(layer, str) or layer.recurrent is not None or row is None:
        return layer
    weight, tail = layer.weight, layer.tail
    bias: Edge | None = None
    body: list[ir.Node] = []
    if row.bias is not None and len(node.inputs) > row.bias and node.inputs[row.bias] is not None:
        bias = Edge(node, row.bias)
        tensor = constant_tensor(bias.value)
        if tensor is None:
            return "its bias is computed at run time"
        shape = [int(d) for d in tensor.shape.numpy()]
        if not per_channel(shape, layer.channels):
            return f"its bias of shape {shape} does not hold one number a channel"
    if bias is None and weight is not None and onnx_op(node, "MatMul"):
        added = _added_bias(tail, layer.channels)
        if added is not None and added.node not in apart:
            bias = added
            body.append(bias.node)
            tail = bias.node.outputs[0]
    folded = folded_behind(tail, apart)
    if folded is not None:
        body.append(folded)
        tail = folded.outputs[0]
    return Layer(node, layer.inputs, weight, bias, tail, tuple(body))


def folded_behind(tail: ir.Value, apart: Container[ir.Node] = ()) -> ir.Node | None:
    """The Relu or Clip that alone reads a value and folds into the Q behind it."""
    use = only_use(tail)
    if use is None or use.node in apart or use.node.graph is not graph(tail) or not folds(use.node):
        return None
    return use.node


def per_channel(shape: Sequence[int], channels: int | None) -> bool:
    """Whether a constant of this shape holds one number, or one a channel along its last axis."""
    size = 1
    for dim in shape:
        size *= dim
    return size == 1 or (size == channels and shape[-1] == channels)


def _added_bias(tail: ir.Value, channels: int | None) -> Edge | None:
    """The constant operand of an Add behind a MatMul, when it broadcasts along the channels only."""
    use = only_use(tail)
    if use is None or not onnx_op(use.node, "Add") or use.node.graph is not graph(tail) or channels is None:
        return None
    other = Edge(use.node, 1 - use.index)
    tensor = constant_tensor(other.node.inputs[other.index])
    if tensor is None or not per_channel(tensor.shape.numpy(), channels):
        return None
    return other if len(tensor.shape) <= max(1, len(dims_of(tail) or ())) else None


def merges_into_gemm(layer: Layer) -> bool:
    """Whether onnxruntime merges a MatMul with an Add that is no part of its layer, and fuses nothing afterwards.

    It does so for constant bias-like operands of any rank, and for anything where the product has rank 2; a
    QuantizeLinear between the two prevents it (measured with 1.32).
    """
    if not onnx_op(layer.node, "MatMul") or layer.body:
        return False
    rank = len(dims_of(layer.tail) or ()) or 2
    return any(
        onnx_op(e.node, "Add") and (rank == 2 or is_constant(e.node.inputs[1 - e.index])) for e in uses(layer.tail)
    )


def widened_behind(layer: Layer) -> bool:
    """Whether a constant Add behind a product makes it wider or gives it more axes.

    onnxruntime takes such a constant for the bias of a dynamically quantized MatMul: it then fails at run time, or
    drops the axes (measured with 1.32).
    """
    product = layer.node.outputs[0]
    rank = len(dims_of(product) or ())
    for edge in uses(product):
        other = constant_tensor(edge.node.inputs[1 - edge.index]) if onnx_op(edge.node, "Add") else None
        if other is None:
            continue
        shape = [int(d) for d in other.shape.numpy()]
        wide = bool(shape) and shape[-1] > 1 and all(d == 1 for d in shape[:-1])
        if wide and (len(shape) > max(rank, 1) or shape[-1] != (layer.channels or 1)):
            return True
    return False


def graph(value: ir.Value) -> ir.Graph | ir.Function | None:
    """The graph a value's producer stands in."""
    producer = value.producer()
    return producer.graph if producer is not None else None


def folds(node: ir.Node) -> bool:
    """Whether a Relu, or a Clip from 0: a Q with zero point qmin behind it makes it redundant."""
    if onnx_op(node, "Relu"):
        return True
    if not onnx_op(node, "Clip"):
        return False
    low, _ = clip_bounds(node)
    return low == 0


def clip_bounds(node: ir.Node) -> tuple[float | None, float | None]:
    """Constant (min, max) of a Clip in either form (attributes below opset 11, inputs after); None where unknown."""
    if "min" in node.attributes or "max" in node.attributes:
        low, high = (node.attributes[k].as_float() if k in node.attributes else None for k in ("min", "max"))
        return low, high
    bounds = [constant(node.inputs[i]) if i < len(node.inputs) else None for i in (1, 2)]
    low, high = (float(b.item()) if b is not None and b.size == 1 else None for b in bounds)
    return low, high


def data_inputs(node: ir.Node, rule: IntegerOp) -> list[Edge]:
    """The uses that carry data to be quantized: not shapes, indices, conditions, bounds."""
    if rule.kind == "moves":
        chosen = [0]
    elif node.op_type == "Where":
        chosen = [1, 2]
    elif rule.kind == "matmul-like":
        row = ops.info(node)
        chosen = [s.index for s in row.weights] if row else [0]
        chosen = [0, *chosen] if 0 not in chosen else chosen
    elif rule.kind in ("unary", "folds", "recurrent"):
        chosen = [0]
    else:
        chosen = list(range(len(node.inputs)))
    return [Edge(node, i) for i in sorted(chosen) if i < len(node.inputs) and node.inputs[i] is not None]


def clip_limit(value: ir.Value) -> float | None:
    """Upper bound of the Clip that makes a value, None without one: the encoding must not reach beyond it."""
    node = value.producer()
    return clip_bounds(node)[1] if onnx_op(node, "Clip") and node is not None else None
