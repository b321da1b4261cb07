"""From ``DQ -> float operator -> Q`` to the operator on integers: the other direction of the same table of layouts.

A form reads what stands around a float node and makes the integer operator in front of it; the pairs that nothing reads
any more go with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.look import attr_float, attr_int, constant, constant_tensor, dims_of, only_use, onnx_op
from onnxq.numerics.affine import quantize
from onnxq.numerics.spec import QTYPES, Encoding, TensorSpec
from onnxq.ops import channel_axis
from onnxq.pairs import integer_type, parameter
from onnxq.qoperators.elementwise import SOFTMAX_ALONG_AXIS_SINCE
from onnxq.qoperators.layouts import LAYOUTS
from onnxq.qoperators.limits import limits_of
from onnxq.qoperators.meaning import Meaning
from onnxq.qoperators.raising import Raiser, Refused
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
_PRODUCTS = ("Conv", "MatMul", "Gemm")


@dataclass(frozen=True)
class Operand:
    """A float input behind a DequantizeLinear.

    Attributes:
        integers: What the DequantizeLinear reads.
        scale: Its scale, float32.
        zero: Its zero point, of the shape of the scale.
        dtype: Type of the integers.
    """

    integers: ir.Value
    scale: ir.Value
    zero: ir.Value
    dtype: ir.DataType

    @property
    def inputs(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The three inputs that it becomes."""
        return self.integers, self.scale, self.zero


@dataclass(frozen=True)
class Ending:
    """The QuantizeLinear nodes behind a float operator, all alike; a Relu or Clip that they replace may stand between.

    Attributes:
        quantizers: The nodes.
        scale: Their scale.
        zero: Their zero point.
        dtype: Type of the integers.
    """

    quantizers: tuple[ir.Node, ...]
    scale: ir.Value
    zero: ir.Value
    dtype: ir.DataType

    def take_over(self, raiser: Raiser, made: ir.Value) -> None:
        """Their readers read what the integer operator makes."""
        for q in self.quantizers:
            raiser.take_over(q.outputs[0], made)


def is_dq(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that makes a value, or None."""
    node = value.producer() if value is not None else None
    return node if is_q(node, DEQUANTIZE) else None


def read_operand(node: ir.Node, index: int, raiser: Raiser) -> Operand:
    """An input of a float node as an integer operator takes it.

    Raises:
        Refused: It is no DequantizeLinear of 8 bits with constant parameters, one scale, or for the weight of a layer
            one a channel.
    """
    value = node.inputs[index]
    dq = is_dq(value)
    if dq is None or value is None:
        raise Refused(f"input {index} is float")
    data, dtype = dq.inputs[0], integer_type(dq)
    scale, zero = parameter(dq, 1), parameter(dq, 2)
    numbers = constant(scale)
    if data is None or dtype not in EIGHT_BITS:
        raise Refused(f"the integers of input {index} are {dtype.name.lower() if dtype else 'of unknown type'}")
    if scale is None or numbers is None or (zero is not None and constant_tensor(zero) is None):
        raise Refused(f"scale or zero point of input {index} are computed")
    if numbers.dtype != np.float32 or attr_int(dq, "block_size", 0):
        raise Refused(f"the scale of input {index} is not float32, or one a block")
    axis: int | None = None
    if numbers.size > 1:
        rank = len(dims_of(data) or ())
        axis = attr_int(dq, "axis", 1) % rank if rank else None
        wanted = channel_axis(node, index, rank) if rank and node.op_type in _PRODUCTS and index == 1 else None
        if axis is None or axis != wanted or (node.op_type == "MatMul" and rank != 2):
            raise Refused(f"input {index} has scales along axis {attr_int(dq, 'axis', 1)}, which no integer kernel has")
    return Operand(data, *_parameters(node, raiser, scale, zero, dtype), dtype)


def _parameters(
    node: ir.Node, raiser: Raiser, scale: ir.Value, zero: ir.Value | None, dtype: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """Constant scale and zero point in one shape, scalars for a single number, defined in front of the node."""
    numbers, zeros = constant(scale), constant(zero)
    assert numbers is not None
    shape = () if numbers.size == 1 else numbers.shape
    if numbers.shape != shape or scale.producer() is not None:
        scale = raiser.constant(node, scale.name or "scale", numbers.reshape(shape))
    if zeros is None or zero is None:
        return scale, raiser.constant(node, f"{scale.name}_zero_point", np.zeros(shape, dtype.numpy()))
    if zeros.shape != shape or zero.producer() is not None:
        zero = raiser.constant(
            node,
            zero.name or "zero_point",
            np.broadcast_to(zeros.reshape(-1)[: numbers.size], (numbers.size,)).reshape(shape),
        )
    return scale, zero


def _read_ending(node: ir.Node, raiser: Raiser, *, folds: bool) -> Ending | str:
    """What quantizes the output of a float node, or in words why that is not one encoding of 8 bits.

    Args:
        node: The node.
        raiser: Makes constants.
        folds: Whether a Relu or Clip may stand between, which the saturation of the QuantizeLinear makes redundant.
    """
    out, between = node.outputs[0], None
    use = only_use(out)
    if folds and use is not None and onnx_op(use.node, "Relu", "Clip") and use.index == 0:
        between, out = use.node, use.node.outputs[0]
    readers = [user for user, _ in out.uses()]
    if out.is_graph_output() or not readers or not all(is_q(user, QUANTIZE) for user in readers):
        return "its output is read as floats"
    first, dtype = readers[0], integer_type(readers[0])
    scale, zero = parameter(first, 1), parameter(first, 2)
    numbers, zeros = constant(scale), constant(zero)
    if any(Meaning.of(user) != Meaning.of(first) or integer_type(user) != dtype for user in readers[1:]):
        return "its output is quantized in several ways"
    if dtype not in EIGHT_BITS or numbers is None or scale is None or (zeros is None and zero is not None):
        return (
            f"its output is quantized to {dtype.name.lower() if dtype else 'an unknown type'}, or computed parameters"
        )
    if numbers.dtype != np.float32 or numbers.size > 1:
        return "its output has several scales, or none of float32"
    if between is not None:
        qtype = QTYPES[dtype.name.lower()]
        point = np.zeros((), qtype.carrier) if zeros is None else zeros.reshape(())
        encoding = Encoding(TensorSpec(qtype), numbers.reshape(()), point)
        ends = quantize(np.array(limits_of(between.outputs[0], depth=1), np.float32), encoding)
        if tuple(ends) != (qtype.qmin, qtype.qmax):
            return f"{between.op_type} '{between.name}' cuts off more than the QuantizeLinear behind it"
    return Ending(tuple(readers), *_parameters(node, raiser, scale, zero, dtype), dtype)


def check_types(operands: Sequence[Operand], out: ir.DataType | None, product: bool) -> None:
    """Refuse mixtures of signed and unsigned types that onnxruntime's kernels do not take."""
    first = operands[0].dtype
    rest = [operand.dtype for operand in operands[1:]]
    if product and first is ir.DataType.UINT8:
        rest = []  # weights of either type
    if out is not None:
        rest.append(out)
    if any(dtype is not first for dtype in rest):
        raise Refused("integer kernels take no such mixture of int8 and uint8")


def lower(node: ir.Node, raiser: Raiser) -> str:
    """Rewrite a float operator of the table between pairs; MatMul without a QuantizeLinear is not for this one."""
    layout = LAYOUTS[node.op_type]
    attributes = _attributes(node, raiser)
    plain = len(layout.plain)
    count = len(node.inputs) if layout.variadic else plain + len(layout.operands)
    operands = [read_operand(node, i, raiser) for i in range(plain, count)]
    ending = _read_ending(node, raiser, folds=node.op_type in _PRODUCTS)
    if isinstance(ending, str) and not (node.op_type == "Gemm" and ending == "its output is read as floats"):
        raise Refused(ending)
    quantized = None if isinstance(ending, str) else ending
    check_types(operands, quantized.dtype if quantized else None, product=node.op_type in _PRODUCTS)
    parameters = [] if quantized is None else [quantized.scale, quantized.zero]
    flat = [value for operand in operands for value in operand.inputs]
    inputs: list[ir.Value | None] = [*node.inputs[:plain], *flat]
    if layout.variadic:
        inputs = [*parameters, *inputs]
    elif layout.bias is not None and layout.bias < layout.output:
        inputs += [integer_bias(node, 2, operands, raiser), *parameters]
    else:
        inputs += parameters
        if layout.bias is not None:
            inputs.append(integer_bias(node, 2, operands, raiser))
    dtype = quantized.dtype if quantized is not None else ir.DataType.FLOAT
    made = raiser.float_op(node, layout.op_type, inputs, attributes, domain=layout.domain, dtype=dtype)
    if quantized is not None:
        quantized.take_over(raiser, made)
    else:
        raiser.take_over(node.outputs[0], made)
    return ""


def _attributes(node: ir.Node, raiser: Raiser) -> list[ir.Attr]:
    """The attributes of the integer operator.

    Raises:
        Refused: It has none for this.
    """
    attributes = list(node.attributes.values())
    if node.op_type == "Softmax":
        old = raiser.opset < SOFTMAX_ALONG_AXIS_SINCE
        return [
            ir.AttrInt64("axis", attr_int(node, "axis", 1 if old else -1)),
            ir.AttrInt64("opset", raiser.opset),
        ]
    if node.op_type == "Gemm":
        if attr_float(node, "beta", 1.0) != 1.0 and parameter(node, 2) is not None:
            raise Refused("beta is not 1")
        return [attr for attr in attributes if attr.name != "beta"]
    if node.op_type == "AveragePool":
        if any(d != 1 for d in node.attributes["dilations"].as_ints()) if "dilations" in node.attributes else False:
            raise Refused("the integer kernel has no dilations")
        if attr_int(node, "ceil_mode", 0) and attr_int(node, "count_include_pad", 0):
            raise Refused("the integer kernel divides wrongly where ceil mode and counted padding meet")
        return [attr for attr in attributes if attr.name != "dilations"]
    return attributes


def integer_bias(node: ir.Node, index: int, operands: Sequence[Operand], raiser: Raiser) -> ir.Value | None:
    """The int32 bias of a product at the scale its integer kernel takes for granted; None without a bias.

    Integers at another scale, and floats, are encoded anew, with a note.

    Raises:
        Refused: It is computed, of another shape than one number a channel, or beyond int32.
    """
    value = parameter(node, index)
    if value is None:
        return None
    dq = is_dq(value)
    stored = constant(dq.inputs[0] if dq is not None else value)
    scale = np.asarray(attr_float(node, "alpha", 1.0), np.float32)
    for operand in operands:
        numbers = constant(operand.scale)
        assert numbers is not None
        scale = np.asarray(scale * numbers, np.float32)
    if stored is None or (stored.ndim != 1 and (stored.ndim != 2 or stored.shape[0] != 1)):
        raise Refused("its bias is computed, or not one number a channel")
    bias = stored.reshape(-1).astype(np.float64)
    if dq is not None:
        own, zero = constant(parameter(dq, 1)), constant(parameter(dq, 2))
        if own is None or own.size not in (1, bias.size) or (zero is not None and zero.any()):
            raise Refused("the scale of its bias is computed, or its zero point is not 0")
        bias = bias * own.reshape(-1).astype(np.float64)
    if scale.size not in (1, bias.size):
        raise Refused("its bias is not one number a channel")
    integers = np.rint(bias / scale.reshape(-1).astype(np.float64))
    if np.abs(integers).max(initial=0) > 2**31 - 1:
        raise Refused("its bias does not fit int32 at the scale of input times weight")
    if dq is not None and stored.dtype == np.int32 and np.array_equal(integers, stored.reshape(-1)):
        return dq.inputs[0]
    error = float(np.abs(integers * scale - bias).max(initial=0))
    raiser.ctx.note("bias-encoded", node, "its bias got the scale of input times weight", max_error=error)
    return raiser.constant(node, f"{value.name}_int32", integers.astype(np.int32))
