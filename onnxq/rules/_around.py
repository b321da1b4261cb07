"""What stands around a node, seen as a runtime's fusions see it: pairs in front of and behind an operator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.layers import clip_bounds
from onnxq.linting.subject import Linear, Subject
from onnxq.look import attr_float, attr_int, constant_tensor, onnx_op
from onnxq.numerics.spec import QTYPES
from onnxq.states import QUANTIZE, is_q

LAYERS = ("Conv", "Gemm", "MatMul")
FOLDS = ("Relu", "Clip")
MOVERS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
"""Data movement over which onnxruntime carries pairs (measured with 1.32)."""


def dequantizer(subject: Subject, value: ir.Value | None, through: tuple[str, ...] = ()) -> Linear | None:
    """The DequantizeLinear that makes a value, looked through some ops."""
    node = value.producer() if value is not None else None
    while node is not None and onnx_op(node, *through) and node.inputs and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    one = subject.linear_of.get(node) if node is not None else None
    return one if one is not None and not one.quantizes else None


def only_reader(value: ir.Value | None, through: tuple[str, ...] = ()) -> ir.Node | None:
    """The one node that reads a value, looked through some ops; None where there are several, or it is given out."""
    while value is not None and not value.is_graph_output() and len(value.uses()) == 1:
        node, index = next(iter(value.uses()))
        if index or not onnx_op(node, *through):
            return node
        value = node.outputs[0]
    return None


def quantizer(subject: Subject, value: ir.Value | None, through: tuple[str, ...] = ()) -> Linear | None:
    """The QuantizeLinear that alone reads a value, looked through some ops."""
    node = only_reader(value, through)
    return subject.linear_of.get(node) if node is not None and is_q(node, QUANTIZE) else None


def clip_behind(value: ir.Value) -> ir.Node | None:
    """The Relu or Clip that alone reads a value, itself with one reader that is no QuantizeLinear.

    onnxruntime takes it for one that goes into a pair, finds none, and makes no integer kernel of what is in front.
    """
    node = only_reader(value)
    if node is None or not onnx_op(node, *FOLDS):
        return None
    out = node.outputs[0]
    readers = [reader for reader, _ in out.uses()]
    inside = sum(reader.graph is node.graph for reader in readers)
    several = inside + (inside < len(readers)) != 1  # all in bodies count as one: the node that holds these
    return None if out.is_graph_output() or several or is_q(readers[0], QUANTIZE) else node


def bits(one: Linear | None) -> int:
    """Bits of its integers; 0 where there are none or the type is a float."""
    spec = QTYPES.get(one.dtype.name.lower()) if one is not None and one.dtype is not None else None
    return spec.bits if spec is not None and not spec.is_float else 0


def single(one: Linear) -> bool:
    """Whether it has one scale, known when the model is loaded."""
    return one.scale is not None and one.scale.size == 1


def is_stored(subject: Subject, one: Linear) -> bool:
    """Whether it dequantizes a constant."""
    return subject.is_constant(one.data)


def float_type_of(one: Linear) -> ir.DataType | None:
    """The type of its scale."""
    tensor = constant_tensor(one.scale_value)
    if tensor is not None:
        return tensor.dtype
    return one.scale_value.dtype if one.scale_value is not None else None


def limits(one: Linear) -> tuple[float, float] | None:
    """Least and greatest number that one scale and zero point stand for."""
    spec = QTYPES.get(one.dtype.name.lower()) if one.dtype is not None else None
    if spec is None or one.scale is None or one.scale.size != 1:
        return None
    zero = 0 if one.zero_value is None else one.zero
    if zero is None or np.size(zero) != 1:
        return None
    scale, middle = float(one.scale.ravel()[0]), int(np.ravel(zero)[0])
    return (spec.qmin - middle) * scale, (spec.qmax - middle) * scale


def redundant(node: ir.Node, one: Linear) -> bool:
    """Whether the integers of a QuantizeLinear cannot leave what a Relu or Clip lets through, to half a step."""
    ends = limits(one)
    if ends is None:
        return False
    low, high = (0.0, None) if onnx_op(node, "Relu") else clip_bounds(node)
    half = abs(ends[1] - ends[0]) / 510
    return (low is None or ends[0] >= low - half) and (high is None or ends[1] <= high + half)


def weights(subject: Subject) -> Iterator[tuple[Linear, ir.Node]]:
    """Each DequantizeLinear of a stored weight with each product or convolution that reads it as input 1."""
    for one in subject.linears:
        if one.quantizes or one.out is None or not is_stored(subject, one):
            continue
        for node, index in one.out.uses():
            if index == 1 and onnx_op(node, "MatMul", "Gemm", "Conv", "ConvTranspose"):
                yield one, node


def no_nbits(subject: Subject, one: Linear, node: ir.Node) -> str:
    """Why onnxruntime makes no MatMulNBits of a product with a dequantized weight, in a word; empty where it does.

    ``transposed``, ``axis-from-end``, ``tied`` and ``clip`` can be mended; ``other`` is everything else: operators,
    types and granularities that it has no form of, 8 bits on both sides.
    """
    dims, scales = one.dims, one.scale
    alone = onnx_op(node, "MatMul") or all(attr_float(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
    alone = alone and not attr_int(node, "transA", 0)
    fits = alone and onnx_op(node, "MatMul", "Gemm") and dims is not None and len(dims) == 2 and bits(one) in (2, 4, 8)
    scale_dims = subject.dims(one.scale_value)
    if not fits or scale_dims is None or not subject.is_constant(one.scale_value):
        return "other"
    front = dequantizer(subject, node.inputs[0], MOVERS)
    if front is not None and bits(front) == 8:
        return "other"
    behind = quantizer(subject, node.outputs[0], (*FOLDS, *MOVERS))
    if behind is not None and bits(behind) == 8:
        return "other"
    if attr_int(node, "transB", 0):
        return "transposed"
    several = scales is None or scales.size > 1
    if one.block_size:
        size = one.block_size
        if one.axis or size < 16 or size & (size - 1):
            return "other"
    elif several and one.axis != 1:
        return "axis-from-end" if one.axis == -1 else "other"
    if any(value is not None and len(value.uses()) > 1 for value in (one.out, one.data, one.scale_value)):
        return "tied"
    if clip_behind(tail_of(subject, node)) is not None:
        return "clip"
    return ""


def in_reach(subject: Subject, node: ir.Node, *values: ir.Value | None) -> bool:
    """Whether onnxruntime sees constants as such where a node stands: they lie in the same graph, or in one around it
    whose branches it takes out of their If, since the condition is constant."""
    graph = node.graph
    while isinstance(graph, ir.Graph):
        if all(value is None or value.graph is graph for value in values):
            return True
        holder = subject.holders.get(graph)
        if holder is None or not onnx_op(holder, "If") or not subject.is_constant(holder.inputs[0]):
            return False
        graph = holder.graph
    return False


def eight_bits(subject: Subject, node: ir.Node) -> bool:
    """Whether input and weight of a layer are float32 numbers of 8-bit DequantizeLinear."""
    pairs = [dequantizer(subject, value, MOVERS if not i else ()) for i, value in enumerate(node.inputs[:2])]
    return all(one is not None and bits(one) == 8 and not half(one) for one in pairs)


def half(one: Linear) -> bool:
    """Whether its scale is float16."""
    return float_type_of(one) == ir.DataType.FLOAT16


def added_bias(subject: Subject, node: ir.Node) -> ir.Value | None:
    """The constant vector that an Add behind a MatMul adds, where onnxruntime joins the two."""
    add = only_reader(node.outputs[0]) if onnx_op(node, "MatMul") else None
    if add is None or not onnx_op(add, "Add"):
        return None
    other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
    pair = dequantizer(subject, other)
    held = pair.data if pair is not None else other
    dims, shape = subject.dims(held), subject.dims(node.inputs[0])
    joined = shape is not None and (len(shape) == 2 or None not in shape)
    return other if joined and subject.is_constant(held) and dims is not None and len(dims) == 1 else None


def tail_of(subject: Subject, node: ir.Node) -> ir.Value:
    """What a layer makes, behind the Add of a bias."""
    add = only_reader(node.outputs[0]) if added_bias(subject, node) is not None else None
    return add.outputs[0] if add is not None else node.outputs[0]
