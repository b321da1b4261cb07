"""QuantizeLinear and DequantizeLinear nodes read back as encodings: the way in for passes that rewrite pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.carry import Carried
from onnxq.edit import Fresh, copy_metadata
from onnxq.look import attr_int, constant, constant_tensor
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, Granularity, PerAxis, PerTensor, TensorSpec
from onnxq.numerics.tiles import scale_shape
from onnxq.states import DEQUANTIZE


def parameter(node: ir.Node, index: int) -> ir.Value | None:
    """An input that may be left out: 1 is the scale of a pair node, 2 its zero point."""
    return node.inputs[index] if index < len(node.inputs) else None


def integer_type(node: ir.Node) -> ir.DataType | None:
    """What a QuantizeLinear writes or a DequantizeLinear reads; None where the graph does not say.

    Without zero point and ``output_dtype`` a QuantizeLinear writes uint8 (operator text).
    """
    data, zero = (dtype_of(node.inputs[0]), dtype_of(parameter(node, 2)))
    if node.op_type == DEQUANTIZE and data is not None:
        return data
    if parameter(node, 2) is not None:
        return zero
    return None if node.op_type == DEQUANTIZE else ir.DataType(attr_int(node, "output_dtype", 0) or ir.DataType.UINT8)


def dtype_of(value: ir.Value | None) -> ir.DataType | None:
    """The element type of a value; in a local function it is known of constants only."""
    if value is None or value.dtype is not None:
        return value.dtype if value is not None else None
    tensor = constant_tensor(value)
    return tensor.dtype if tensor is not None else None


def float_type(node: ir.Node) -> ir.DataType:
    """What a DequantizeLinear makes: ``output_dtype``, else the type of its scale."""
    scale = parameter(node, 1)
    return ir.DataType(attr_int(node, "output_dtype", 0) or dtype_of(scale) or ir.DataType.FLOAT)


def read_encoding(node: ir.Node, shape: tuple[int, ...]) -> Encoding | str:
    """The encoding that a Q or DQ node stores, or in words why it has none that `onnxq.numerics` could compute with.

    Args:
        node: A QuantizeLinear or DequantizeLinear.
        shape: Shape of its data.

    Returns:
        The encoding, its axis not negative. A missing zero point is 0; one scale in a shape like [1] is per tensor.
    """
    scale, zero = constant(parameter(node, 1)), constant_tensor(parameter(node, 2))
    dtype = integer_type(node)
    qtype = QTYPES.get(dtype.name.lower()) if dtype is not None else None
    if qtype is None:
        return f"its integers are {dtype.name.lower() if dtype is not None else 'of unknown type'}"
    if scale is None or (zero is None and parameter(node, 2) is not None):
        return "its scale or zero point is computed at run time"
    if scale.dtype not in (np.float32, np.float16):
        return f"its scale is {scale.dtype.name}, not float32 or float16"
    size, axis = attr_int(node, "block_size", 0), attr_int(node, "axis", 1)
    granularity: Granularity = PerTensor()
    if size or scale.size != 1:
        if not -len(shape) <= axis < len(shape):
            return f"its axis {axis} is outside a tensor of rank {len(shape)}"
        axis %= len(shape)
        granularity = Blocked(size, axis) if size else PerAxis(axis)
    wanted = scale_shape(shape, granularity)
    if scale.shape != wanted and not (wanted == () and scale.size == 1):
        shapes = f"data of shape {list(shape)} needs {list(wanted)}"
        return f"its scale has shape {list(scale.shape)}, {granularity} {shapes}"
    zeros = np.zeros(wanted, qtype.carrier) if zero is None else zero.numpy().astype(qtype.carrier)
    if zeros.size != scale.size:
        return f"its zero point has shape {list(zeros.shape)}, its scale {list(scale.shape)}"
    spec = TensorSpec(qtype, not zeros.any(), granularity)
    return Encoding(spec, scale.reshape(wanted), zeros.reshape(wanted))


def at_source(encoding: Encoding, found: Carried) -> Encoding | None:
    """The encoding of a constant in front of Transposes for its encoding behind them; None where there is none.

    Blocks and other carriers are not followed: their scales would have another layout, too.
    """
    if any(step.perm is None for step in found.steps):
        return None
    granularity = encoding.spec.granularity
    if not found.steps or isinstance(granularity, PerTensor):
        return encoding
    axis = None if isinstance(granularity, Blocked) or granularity.axis is None else found.back(granularity.axis)
    return replace(encoding, spec=encoding.spec.at(PerAxis(axis))) if isinstance(axis, int) else None


def carried_on(value: ir.Value, carriers: Sequence[ir.Node], before: ir.Node, namer: Fresh, maker: str) -> ir.Value:
    """Copies of Transposes behind another value, put in front of a node; returns what the last one makes."""
    assert before.graph is not None
    for old in carriers:
        new = ir.Node("", old.op_type, [value], old.attributes.values(), name=namer(old.name or old.op_type))
        copy_metadata(new, old, maker)
        out = new.outputs[0]
        out.name, out.type, out.shape = namer(old.outputs[0].name or "carried"), value.type, old.outputs[0].shape
        before.graph.insert_before(before, new)
        value = out
    return value
