"""OQ20x and OQ21x: types and shapes of scales and zero points, and zero points as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import constant_tensor
from onnxq.numerics.spec import QTYPES
from onnxq.states import QUANTIZE, dtype_name, is_q
from onnxq.wording import shape_text


@graph_rule("OQ204", "scale-type", "error")
def scale_type(subject: Subject) -> Iterator[Finding]:
    """A scale has a type that the operator does not take beside its data.

    What it does:
        Compares the type of each QuantizeLinear's scale with that of its input below opset 23, where they must be the
        same, and looks for types that no opset takes.

    Why is this bad:
        The model does not load.

    Use instead:
        A scale of the type of the data.
    """
    for one in subject.linears:
        kind = subject.dtype(one.scale_value)
        if kind is None or one.node.domain:
            continue
        opset = subject.opset(one.node)
        data = subject.dtype(one.data) if one.quantizes else None
        if kind not in _scale_types(opset, one.quantizes):
            yield Finding(one.node, f"its scale is {dtype_name(kind)}, which opset {opset} does not take")
        elif data is not None and 19 <= opset < 23 and data != kind and data != ir.DataType.INT32:
            text = f"its scale is {dtype_name(kind)} and its input {dtype_name(data)}; up to opset 22 they are the same"
            yield Finding(one.node, text, numbers={"opset": opset})
        elif data in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and opset < 19:
            yield Finding(one.node, f"its input is {dtype_name(data)}, and opset {opset} takes float32 alone")


@cache
def _scale_types(opset: int, quantizes: bool) -> frozenset[ir.DataType]:
    """Types of a scale (operator texts)."""
    types = {ir.DataType.FLOAT}
    types |= {ir.DataType.FLOAT16, ir.DataType.BFLOAT16} if opset >= 19 else set()
    types |= {ir.DataType.INT32} if opset >= 23 and quantizes else set()
    return frozenset(types | ({ir.DataType.FLOAT8E8M0} if opset >= 24 else set()))


@graph_rule("OQ205", "parameter-shape", "error")
def parameter_shape(subject: Subject) -> Iterator[Finding]:
    """Scale and zero point have shapes that do not go together, or that the operator does not take.

    What it does:
        Looks for a zero point of another shape than the scale, and for a scale of rank 2 or more without `block_size`.

    Why is this bad:
        onnxruntime loads the file and stops when it runs, or fuses it and takes no notice: results then depend on the
        optimization level.

    Use instead:
        Scalars, one entry a channel, or one a block; the zero point always like the scale.
    """
    for one in subject.linears:
        scale = subject.dims(one.scale_value)
        if scale is None:
            continue
        zero = subject.dims(one.zero_value)
        if zero is not None and zero != scale and not _alike(zero, scale):
            text = f"its zero point has shape {shape_text(zero)} and its scale {shape_text(scale)}"
            yield Finding(one.node, text)
        elif len(scale) > 1 and not one.block_size and any(d != 1 for d in scale):
            yield Finding(one.node, f"its scale has shape {shape_text(scale)}, and there is no block_size")


def _alike(zero: tuple[int | None, ...], scale: tuple[int | None, ...]) -> bool:
    """Whether shapes are equal as far as known, or both of one element."""
    if len(zero) == len(scale):
        return all(None in (a, b) or a == b for a, b in zip(zero, scale, strict=True))
    return all(d == 1 for d in (*zero, *scale))


@graph_rule("OQ206", "zero-point-type", "error")
def zero_point_type(subject: Subject) -> Iterator[Finding]:
    """A zero point has another type than the integers it belongs to.

    What it does:
        Compares the zero point of each DequantizeLinear with what it reads, and that of a QuantizeLinear with its
        `output_dtype`.

    Why is this bad:
        The model does not load. Where the type of the integers is not declared, it may load and shift every value.

    Use instead:
        A zero point of the type of the integers.
    """
    for one in subject.linears:
        zero = subject.dtype(one.zero_value)
        if zero is None:
            continue
        if one.quantizes:
            asked = one.node.attributes.get("output_dtype")
            number = asked.as_int() if asked is not None and not asked.is_ref() else 0
            other = ir.DataType(number) if number in _KNOWN else None
        else:
            maker = one.data.producer() if one.data is not None else None
            other = subject.dtype(one.data) if not is_q(maker, QUANTIZE) else None  # that is OQ102
        if other is not None and other != zero:
            text = f"its zero point is {dtype_name(zero)} and its integers are {dtype_name(other)}"
            yield Finding(one.node, text)


@graph_rule("OQ207", "mixed-zero-points", "warning")
def mixed_zero_points(subject: Subject) -> Iterator[Finding]:
    """The channels of one tensor have different zero points.

    What it does:
        Looks for zero points per channel or block that are not all the same.

    Why is this bad:
        ONNX allows it; most integer kernels take one zero point for the whole weight, and refuse or ignore the others.
        For weights of 2 and 4 bits, and in blocks, it is usual and not reported.

    Use instead:
        Symmetric weights, or one zero point.
    """
    for one, _ in subject.per_axis:
        if one.zero_value is None or one.block_size or one.dtype not in _EIGHT_AND_MORE:
            continue
        zero = subject.integers(one.zero_value)
        if zero is not None and zero.size > 1 and zero.any() and (zero != zero.flat[0]).any():
            numbers = {"channels": int(zero.size), "least": int(zero.min()), "greatest": int(zero.max())}
            yield Finding(one.node, "its zero points differ from channel to channel", numbers=numbers)


@graph_rule("OQ208", "zero-point-not-symmetric", "warning")
def zero_point_not_symmetric(subject: Subject) -> Iterator[Finding]:
    """Signed weights have a zero point other than 0.

    What it does:
        Looks for weights of a signed type with a zero point that is not 0, in layers whose input is quantized, too.
        Other constants, those of an Add say, and weights beside float inputs may have one.

    Why is this bad:
        Signed weights are taken to be symmetric: TensorRT, QNN and most accelerators refuse or ignore the zero point.

    Use instead:
        Symmetric weights, or an unsigned type.
    """
    for one in subject.stored:
        zero = subject.integers(one.zero_value) if one.dtype in _SIGNED and not one.block_size else None
        if zero is not None and zero.any() and _is_weight(one):
            numbers = {"zero point": int(zero.flat[int(np.argmax(zero != 0))])}
            text = f"its {dtype_name(one.dtype)} weight has a zero point other than 0"
            yield Finding(one.node, text, numbers=numbers)


def _is_weight(one: Linear) -> bool:
    """Whether a layer reads it as its weight, and an input that is quantized."""
    rows = [(ops.info(node), index, node.inputs[0]) for node, index in one.out.uses()] if one.out is not None else []
    beside = (x for row, index, x in rows if row is not None and row.slot(index) is not None and x is not None)
    return any(x.producer() in one.subject.linear_of for x in beside)


@graph_rule("OQ211", "zero-point-out-of-range", "error")
def zero_point_out_of_range(subject: Subject) -> Iterator[Finding]:
    """A zero point is stored as a number that its type does not have.

    What it does:
        Reads the typed field of zero points, where a number may stand that the type cannot hold.

    Why is this bad:
        Readers wrap it around or refuse it: a zero point of 300 becomes 44.

    Use instead:
        A zero point within the range of its type.
    """
    told = set[ir.Value]()
    for one in subject.linears:
        tensor = constant_tensor(one.zero_value)
        if one.zero_value is None or one.zero_value in told or tensor is None:
            continue
        told.add(one.zero_value)
        record, spec = getattr(tensor, "record", None), QTYPES.get(tensor.dtype.name.lower())
        if record is None or spec is None or spec.bits < 8 or spec.is_float or not record.int32_data:
            continue
        worst = max(record.int32_data, key=lambda number: max(spec.qmin - number, number - spec.qmax))
        if not spec.qmin <= worst <= spec.qmax:
            text = f"its zero point '{one.zero_value.name}' is stored as {worst}, outside {dtype_name(tensor.dtype)}"
            yield Finding(one.node, text, numbers={"stored": worst, "least": spec.qmin, "greatest": spec.qmax})


@graph_rule("OQ213", "overridable-parameter", "warning", fix="freeze-defaults", safe=False)
def overridable_parameter(subject: Subject) -> Iterator[Finding]:
    """A scale or zero point is a graph input, so that a caller may change it.

    What it does:
        Looks for pairs whose parameters are inputs of the graph.

    Why is this bad:
        No runtime fuses such a pair: the layer runs in float.

    Use instead:
        Parameters as initializers.

    Fix safety:
        Unsafe: where the input has a default, it can no longer be overridden; one without stays.
    """
    inputs = set(subject.model.graph.inputs)
    for one in subject.linears if inputs else ():
        for what, value in (("scale", one.scale_value), ("zero point", one.zero_value)):
            if value in inputs and value is not None:
                has = value.const_value is not None
                yield Finding(one.node, f"its {what} '{value.name}' is an input of the graph", fixable=has)


_SIGNED = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT4, ir.DataType.INT2})
_EIGHT_AND_MORE = frozenset(ir.DataType[name] for name in ("INT8", "UINT8", "INT16", "UINT16"))
_KNOWN = frozenset(dtype.value for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED)
