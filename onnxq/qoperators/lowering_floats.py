"""Products whose output stays float, inputs that are quantized at run time, and data movement, on integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.look import constant, constant_tensor, dims_of, only_use, onnx_op
from onnxq.numerics.affine import dequantize
from onnxq.ops import MICROSOFT
from onnxq.pairs import integer_type, parameter, read_encoding
from onnxq.qoperators.lowering import check_types, is_dq, read_operand
from onnxq.qoperators.meaning import Meaning
from onnxq.qoperators.movement import moved
from onnxq.qoperators.raising import Raiser, Refused
from onnxq.states import QUANTIZE, is_q


def dynamic_source(value: ir.Value | None) -> ir.Node | None:
    """The DynamicQuantizeLinear behind a value that is dequantized with just its scale and zero point."""
    dq = is_dq(value)
    maker = dq.inputs[0].producer() if dq is not None and dq.inputs[0] is not None else None
    same = maker is not None and dq is not None and tuple(dq.inputs) == tuple(maker.outputs)
    return maker if same and onnx_op(maker, "DynamicQuantizeLinear") else None


def multiply_to_float(node: ir.Node, raiser: Raiser) -> str:
    """``MatMul (-> Add bias)`` between pairs, its output float -> ``MatMulIntegerToFloat``."""
    a, b = (read_operand(node, i, raiser) for i in (0, 1))
    check_types([a, b], None, product=True)
    bias, end = _bias(node, b.integers, raiser)
    inputs = [a.integers, b.integers, a.scale, b.scale, a.zero, b.zero, bias]
    dtype = ir.DataType.FLOAT
    made = raiser.float_op(node, "MatMulIntegerToFloat", inputs, domain=MICROSOFT, dtype=dtype)
    raiser.take_over(end, made)
    return ""


def multiply_dynamic(node: ir.Node, raiser: Raiser, contrib: bool) -> str:
    """A MatMul with an input quantized at run time -> DynamicQuantizeMatMul, or MatMulInteger and scales behind it.

    Args:
        node: The MatMul.
        raiser: Makes nodes.
        contrib: Whether onnxruntime's own operator may be used.
    """
    source, b = dynamic_source(node.inputs[0]), read_operand(node, 1, raiser)
    assert source is not None
    if constant_tensor(b.integers) is None:
        raise Refused("its weight is computed at run time")
    if contrib:
        bias, end = _bias(node, b.integers, raiser)
        inputs, dtype = [source.inputs[0], b.integers, b.scale, b.zero, bias], ir.DataType.FLOAT
        made = raiser.float_op(node, "DynamicQuantizeMatMul", inputs, domain=MICROSOFT, dtype=dtype)
        raiser.take_over(end, made)
        return ""
    product = raiser.float_op(
        node, "MatMulInteger", [source.outputs[0], b.integers, source.outputs[2], b.zero], dtype=ir.DataType.INT32
    )
    raiser.take_over(node.outputs[0], _scaled(node, raiser, product, source.outputs[1], b.scale))
    return ""


def convolve_dynamic(node: ir.Node, raiser: Raiser) -> str:
    """A Conv with an input quantized at run time -> ConvInteger, the scales and the bias behind it."""
    source, w = dynamic_source(node.inputs[0]), read_operand(node, 1, raiser)
    assert source is not None
    rank, zeros = len(dims_of(w.integers) or ()), constant(w.zero)
    assert zeros is not None
    if constant_tensor(w.integers) is None or np.ptp(zeros):
        raise Refused("its weight is computed at run time, or has several zero points")
    base, zero = node.name or node.op_type, raiser.constant(node, f"{w.zero.name}_all", zeros.reshape(-1)[0])
    inputs = [source.outputs[0], w.integers, source.outputs[2], zero]
    product = raiser.float_op(node, "ConvInteger", inputs, node.attributes.values(), dtype=ir.DataType.INT32)
    made = _scaled(node, raiser, product, source.outputs[1], _by_channel(node, raiser, w.scale, rank))
    bias = parameter(node, 2)
    if bias is not None:
        if constant(bias) is None:
            raise Refused("its bias is no float constant")
        added = [made, _by_channel(node, raiser, bias, rank)]
        made = raiser.float_op(node, "Add", added, name=f"{base}_bias", like=node.outputs[0])
    raiser.take_over(node.outputs[0], made)
    return ""


def _by_channel(node: ir.Node, raiser: Raiser, value: ir.Value, rank: int) -> ir.Value:
    """A constant of one number a channel, for a tensor of ``rank`` axes that has the channels at axis 1."""
    numbers = constant(value)
    assert numbers is not None
    if numbers.size == 1:
        return value
    return raiser.constant(node, f"{value.name}_by_channel", numbers.reshape(-1, *(1,) * (rank - 2)))


def _scaled(node: ir.Node, raiser: Raiser, product: ir.Value, scale: ir.Value, weight_scale: ir.Value) -> ir.Value:
    """An integer product times both scales, as floats."""
    dtype, base = ir.DataType.FLOAT, node.name or node.op_type
    wide = raiser.float_op(node, "Cast", [product], {"to": int(dtype)}, name=base, like=node.outputs[0], dtype=dtype)
    both = raiser.float_op(node, "Mul", [scale, weight_scale], name=f"{base}_scales", like=weight_scale, dtype=dtype)
    return raiser.float_op(node, "Mul", [wide, both], name=base, like=node.outputs[0], dtype=dtype)


def _bias(node: ir.Node, weight: ir.Value, raiser: Raiser) -> tuple[ir.Value | None, ir.Value]:
    """The bias that is added right behind a product, one number a column, as floats, and where the two of them end."""
    out, columns = node.outputs[0], (dims_of(weight) or (None,))[-1]
    use = only_use(out)
    other = use.node.inputs[1 - use.index] if use is not None and onnx_op(use.node, "Add") else None
    if use is None or other is None:
        return None, out
    dq = is_dq(other)
    tensor = constant_tensor(other if dq is None else dq.inputs[0])
    if tensor is None or tuple(tensor.shape.numpy()) != (columns,):
        return None, out
    values = tensor.numpy()
    if dq is not None:
        encoding = read_encoding(dq, values.shape)
        values = values if isinstance(encoding, str) else dequantize(values, encoding)
    if values.dtype != np.float32:
        return None, out
    kept = dq is None and other.producer() is None
    bias = other if kept else raiser.constant(node, f"{other.name}_bias", values)
    return bias, use.node.outputs[0]


def move(node: ir.Node, raiser: Raiser) -> str:
    """Data movement between pairs that say the same on both sides: moves the integers.

    Raises:
        Refused: Some operand is float, or the two sides differ.
    """
    data = moved(node)
    dqs = [is_dq(node.inputs[i]) for i in data]
    first = dqs[0]
    meanings = {Meaning.of(dq) for dq in dqs if dq is not None}
    if first is None or None in dqs or len(meanings) > 1:
        raise Refused("its operands are float, or of different encodings")
    (meaning,), dtype = meanings, integer_type(first)
    if meaning.axis is not None or meaning.block_size or constant(parameter(first, 1)) is None:
        raise Refused("its encoding has several scales, or computed ones")
    outputs = node.outputs if node.op_type == "Split" else node.outputs[:1]
    quantizers = [user for out in outputs for user, _ in out.uses()]
    if any(out.is_graph_output() for out in outputs) or not all(is_q(q, QUANTIZE) for q in quantizers):
        raise Refused("its output is read as floats")
    if not quantizers or any(Meaning.of(q) != meaning or integer_type(q) != dtype for q in quantizers):
        raise Refused("its encoding is another one behind it")
    for index, dq in zip(data, dqs, strict=True):
        assert dq is not None
        node.replace_input_with(index, dq.inputs[0])
    for out in outputs:
        out.dtype = dtype or ir.DataType.UINT8
        for q in [user for user, _ in out.uses()]:
            raiser.take_over(q.outputs[0], out)
    return ""
