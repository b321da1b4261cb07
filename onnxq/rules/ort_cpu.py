"""OQ602, OQ611–OQ613: pairs with which onnxruntime's CPU provider does not load a model (measured with 1.32)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import attr_int, onnx_op
from onnxq.rules._around import (
    MOVERS,
    bits,
    dequantizer,
    float_type_of,
    in_reach,
    is_stored,
    only_reader,
    quantizer,
    single,
)
from onnxq.states import QUANTIZE, dtype_name, is_q

INTEGERS = frozenset(
    ir.DataType[name]
    for name in (
        *("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT2", "UINT2"),
        *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    )
)
"""Types that QuantizeLinear writes there; DequantizeLinear reads int32, too."""
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
"""Types of numbers and scales of pairs there."""

NO_KERNEL = {
    **dict.fromkeys(("RoiAlign", "GlobalLpPool", "MaxRoiPool", "Multinomial"), 22),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), 22),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), 28),
    "ImageDecoder": 20,
}
"""Operators that changed, or came, with an opset for which there is no kernel."""


@graph_rule("OQ602", "no-kernel", "error", targets=("ort-cpu",))
def no_kernel(subject: Subject) -> Iterator[Finding]:
    """onnxruntime's CPU provider has no implementation of an operator for these types or this opset.

    What it does:
        Looks for pairs of bfloat16 or int32 numbers, 4- and 6-bit floats, and scales of other types than float32 and
        float16; and for the few operators whose newest version has no kernel. Source: the table of kernels of
        onnxruntime 1.32 (`get_all_opkernel_def`), and runs.

    Why is this bad:
        The model does not load: NOT_IMPLEMENTED.

    Use instead:
        float32 numbers and scales, 8-bit floats or integers of 2 to 16 bits; an older opset for the other operators.
    """
    for one in subject.linears:
        why = _unknown(one)
        if why:
            yield Finding(one.node, f"no kernel for {one.node.op_type} {why}")
    for op_type, opset in NO_KERNEL.items():
        for node in subject.of(op_type):
            if subject.opset(node) >= opset:
                text = f"no kernel for {op_type} of opset {opset}"
                yield Finding(node, text, f"Export at opset {opset - 1}.", {"opset": opset})


def _unknown(one: Linear) -> str:
    kinds = INTEGERS if one.quantizes else INTEGERS | {ir.DataType.INT32}
    if one.dtype is not None and one.dtype not in kinds:
        return f"to {dtype_name(one.dtype)}" if one.quantizes else f"from {dtype_name(one.dtype)}"
    scale = float_type_of(one)
    if scale is not None and scale not in FLOATS:
        return f"with a scale of {dtype_name(scale)}"
    data = one.subject.dtype(one.data) if one.quantizes else None
    return f"of {dtype_name(data)}" if data is not None and data not in FLOATS else ""


def _becomes_uint8(one: Linear) -> bool:
    """Whether onnxruntime turns an int8 pair into uint8: one scale and zero point, known where the node stands."""
    subject, scale, zero = one.subject, one.scale_value, one.zero_value
    if one.dtype != ir.DataType.INT8 or one.node.domain or zero is None or not single(one):
        return False
    return subject.is_constant(zero) and subject.is_constant(scale) and in_reach(subject, one.node, scale, zero)


@graph_rule("OQ611", "int8-activation-load", "error", targets=("ort-cpu",))
def int8_activation_load(subject: Subject) -> Iterator[Finding]:
    """int8 activations where the default session of onnxruntime does not load the model.

    What it does:
        From opset 21 on, looks for int8 DequantizeLinear of activations in front of Reshape, Transpose, Squeeze,
        Unsqueeze, Slice or MaxPool without a QuantizeLinear behind it, and in front of a MatMul of rank 3 or more with
        known shape whose only reader adds a bias vector.

    Why is this bad:
        On x64 onnxruntime 1.32 carries the pair over such operators, says int8 in the attribute of the new
        QuantizeLinear, turns its zero point into uint8, and then refuses its own node: "output_dtype INT8 does not
        match y_zero_point type UINT8".

    Example:
        `DequantizeLinear(int8) -> Reshape -> MatMul` at opset 21

    Use instead:
        uint8 activations, or a pair behind each such operator. The session option
        `session.disable_quant_qdq=1` loads the file, without integer kernels.
    """
    for one in subject.linears:
        if one.quantizes or one.out is None or subject.opset(one.node) < 21 or is_stored(subject, one):
            continue
        if _becomes_uint8(one):
            for node in _carriers(one.out):
                text = f"its int8 values go through {node.op_type} '{node.name}': the model does not load"
                yield Finding(one.node, text, "Take uint8, or put a pair behind that operator.")
                break
            for node in _batched(subject, one.out):
                text = "int8 values go into a product of rank 3 or more with a bias: the model does not load"
                yield Finding(node, text, "Take uint8, or put a pair between the product and the Add.")


def _carriers(value: ir.Value) -> Iterator[ir.Node]:
    """Data movement over which onnxruntime puts a pair with a single reader."""
    todo = [value]
    while todo:
        for node, index in todo.pop().uses():
            if index or not onnx_op(node, *MOVERS):
                continue
            out = node.outputs[0]
            behind = only_reader(out, MOVERS)
            if _read_once(out) and not (behind is not None and is_q(behind, QUANTIZE)):
                yield node
            todo.append(out)


def _batched(subject: Subject, value: ir.Value) -> Iterator[ir.Node]:
    """Products of rank 3 or more that onnxruntime joins with the bias behind them."""
    for node, index in value.uses():
        if index or not onnx_op(node, "MatMul"):
            continue
        add, dims, weight = only_reader(node.outputs[0]), subject.dims(value), subject.dims(node.inputs[1])
        if not onnx_op(add, "Add") or add is None or dims is None or weight is None or len(weight) != 2:
            continue
        other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
        bias = subject.dims(other)
        if len(dims) > 2 and None not in dims and bias is not None and len(bias) == 1 and bias[0] == weight[1] != 1:
            yield node


@graph_rule("OQ612", "output-dtype-and-zero-point", "error", targets=("ort-cpu",), fix="drop-output-dtype")
def output_dtype_and_zero_point(subject: Subject) -> Iterator[Finding]:
    """A QuantizeLinear says int8 twice: by its attribute and by its zero point.

    What it does:
        Looks for int8 QuantizeLinear of activations with both `output_dtype` and a zero point, whose integers have one
        DequantizeLinear with one reader.

    Why is this bad:
        ONNX allows it. onnxruntime 1.32 turns such pairs into uint8 on x64, forgets the attribute, and refuses to load
        its own node. Issue 25526 of microsoft/onnxruntime.

    Use instead:
        The zero point alone.

    Fix safety:
        Safe: the zero point says the same.
    """
    for one in subject.linears:
        if not one.quantizes or not attr_int(one.node, "output_dtype", 0) or not _becomes_uint8(one):
            continue
        if subject.is_constant(one.data):
            continue
        reader = only_reader(one.out)
        behind = subject.linear_of.get(reader) if reader is not None else None
        if behind is not None and not behind.quantizes and _read_once(behind.out):
            yield Finding(one.node, "it has output_dtype=INT8 and an int8 zero point: the model does not load")


def _read_once(value: ir.Value | None) -> bool:
    return value is not None and len(value.uses()) + value.is_graph_output() == 1


@graph_rule("OQ613", "float16-concat", "error", targets=("ort-cpu",))
def float16_concat(subject: Subject) -> Iterator[Finding]:
    """A Concat stands between 8-bit pairs whose scales are float16.

    What it does:
        Looks for Concat nodes all of whose inputs come from 8-bit DequantizeLinear, with a QuantizeLinear behind, and
        float16 scales.

    Why is this bad:
        onnxruntime 1.32 makes QLinearConcat of it, which takes float32 scales only, and does not load the model.

    Use instead:
        float32 scales (with Casts around the pairs), or no pair behind the Concat.
    """
    for node in subject.of("Concat"):
        found = [dequantizer(subject, value) for value in node.inputs]
        behind = quantizer(subject, node.outputs[0], MOVERS)
        if behind is None or not all(bits(one) == 8 for one in (*found, behind)):
            continue
        if any(one is not None and float_type_of(one) == ir.DataType.FLOAT16 for one in (*found, behind)):
            yield Finding(node, "it stands between 8-bit pairs with float16 scales: the model does not load")
