"""OQ10x: QuantizeLinear and DequantizeLinear belong together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import Array
from onnxq.pairs import dtype_of
from onnxq.states import DEQUANTIZE, dtype_name, is_q


@graph_rule("OQ101", "pair-parameters-differ", "error", fix="repair-pairs")
def pair_parameters_differ(subject: Subject) -> Iterator[Finding]:
    """A DequantizeLinear reads integers with another scale, zero point or axis than they were made with.

    What it does:
        Compares scale, zero point, axis and block size of each DequantizeLinear with those of the QuantizeLinear whose
        integers it reads.

    Why is this bad:
        The pair no longer stands for rounding: values come out scaled or shifted. A scale that is off by 1.5 gives
        values that are off by half, and neither onnx.checker nor onnxruntime says a word.

    Example:
        `QuantizeLinear(scale=0.02, zero_point=128) -> DequantizeLinear(scale=0.03, zero_point=128)`

    Use instead:
        The scale and zero point of the QuantizeLinear, best as the same initializers. Scales that differ in the last
        digits alone are a warning: the numbers are right, and kernels on integers want them equal.

    Fix safety:
        Safe: the DequantizeLinear takes the parameters of its QuantizeLinear.
    """
    for writer, reader in _pairs(subject):
        for what, numbers, severity in _differences(writer, reader):
            text = f"its {what} differs from that of {_name(writer)}, which made its integers"
            yield Finding(reader.node, text, numbers=numbers, severity=severity)


def _differences(writer: Linear, reader: Linear) -> Iterator[tuple[str, dict[str, object], Severity | None]]:
    """What differs, the numbers, and the severity where it is not the rule's own."""
    if writer.scale_value is not reader.scale_value:
        yield from _compared("scale", writer.scale, reader.scale)
    if writer.zero_value is not reader.zero_value:
        yield from _compared("zero point", _zero(writer), _zero(reader))
    if writer.axis != reader.axis and any(p.scale is not None and p.scale.size > 1 for p in (writer, reader)):
        rank = len(writer.dims) if writer.dims is not None else 0
        if not rank or writer.axis % rank != reader.axis % rank:
            yield "axis", {"quantize": writer.axis, "dequantize": reader.axis}, None
    if writer.block_size != reader.block_size:
        yield "block size", {"quantize": writer.block_size, "dequantize": reader.block_size}, None


def _compared(
    what: str, one: Array | None, other: Array | None
) -> Iterator[tuple[str, dict[str, object], Severity | None]]:
    if one is None or other is None or not one.size or not other.size:
        return
    one, other = one.ravel(), other.ravel()
    if one.size != other.size and 1 not in (one.size, other.size):
        yield f"number of {what}s", {"quantize": one.size, "dequantize": other.size}, None
        return
    kind = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)  # a float16 scale of a float32 one
    wrong = one.astype(kind) != other.astype(kind)
    if wrong.any():
        at = int(np.argmax(wrong))
        numbers: dict[str, object] = {"quantize": _at(one, at), "dequantize": _at(other, at)}
        close = np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=_LAST_DIGITS, atol=0)
        yield what, {**numbers, "channel": at} if wrong.size > 1 else numbers, Severity.WARNING if close else None


def _at(row: Array, index: int) -> object:
    """An entry of a row; a single one stands for all."""
    return row[index if row.size > 1 else 0].item()


_LAST_DIGITS = 1e-5
"""Relative difference of scales that changes no result by a step."""


@graph_rule("OQ102", "pair-types-differ", "error", fix="repair-pairs")
def pair_types_differ(subject: Subject) -> Iterator[Finding]:
    """A DequantizeLinear takes the integers of a QuantizeLinear for another type.

    What it does:
        Compares the type that each QuantizeLinear writes with the zero point of the DequantizeLinear that reads it.

    Why is this bad:
        The model does not load.

    Use instead:
        A zero point of the type of the integers.

    Fix safety:
        Safe: the DequantizeLinear takes the parameters of its QuantizeLinear.
    """
    for writer, reader in _pairs(subject):
        theirs = dtype_of(reader.zero_value)
        if writer.dtype is not None and theirs is not None and writer.dtype != theirs:
            text = f"its zero point is {dtype_name(theirs)}, and {_name(writer)} writes {dtype_name(writer.dtype)}"
            yield Finding(reader.node, text)


@graph_rule("OQ103", "q-without-dq", "warning")
def q_without_dq(subject: Subject) -> Iterator[Finding]:
    """Nothing reads the integers of a QuantizeLinear.

    What it does:
        Looks for QuantizeLinear nodes whose output has no use. What reads the float value in its place is named.

    Why is this bad:
        The value is not rounded as the file seems to say, and the layer in front of it runs in float: integer kernels
        need a pair behind them.

    Use instead:
        A DequantizeLinear that the readers of the value read.
    """
    for one in subject.quantizers:
        if one.out is not None and not one.out.uses() and not one.out.is_graph_output():
            past = [use.name or use.op_type for use, _ in (one.data.uses() if one.data else ()) if use is not one.node]
            text = "nothing reads its integers"
            if past:
                text += f", and '{past[0]}' reads the value it was made for"
            elif one.data is not None and one.data.is_graph_output():
                text += ", and the value it was made for is a graph output"
            yield Finding(one.node, text, "Let the readers read its DequantizeLinear, or take it out.")


@graph_rule("OQ104", "q-read-by-several-dqs", "info", fix="split-pairs")
def q_read_by_several_dqs(subject: Subject) -> Iterator[Finding]:
    """Several DequantizeLinear read one QuantizeLinear.

    What it does:
        Counts the DequantizeLinear behind each QuantizeLinear.

    Why is this bad:
        Valid, and fused for uint8; onnxruntime does not turn int8 into uint8 there, so that layers run in float, and
        its training build refuses it.

    Use instead:
        One DequantizeLinear with several readers, or a pair for each reader.

    Fix safety:
        Safe: each reader gets a pair of its own, with the same scale and zero point.
    """
    for one in subject.quantizers:
        readers = [r for r, _ in one.out.uses() if is_q(r, DEQUANTIZE)] if one.out is not None else []
        if len(readers) > 1:
            yield Finding(one.node, f"{len(readers)} DequantizeLinear read it", numbers={"readers": len(readers)})


@graph_rule("OQ106", "double-pair", "warning")
def double_pair(subject: Subject) -> Iterator[Finding]:
    """A value is quantized twice in a row, at different ranges.

    What it does:
        Looks for QuantizeLinear -> DequantizeLinear -> QuantizeLinear of an activation, of the same type, with another
        scale or zero point.

    Why is this bad:
        onnxruntime's default session takes one of the two pairs out, so that values differ by up to a step from what
        the file says. Where one range is smaller, it also clips for nothing.

    Use instead:
        One pair.
    """
    for one in subject.quantizers:
        before = _maker(subject, one)
        first = _maker(subject, before) if before is not None and not before.quantizes else None
        if before is None or first is None or not first.quantizes or subject.is_constant(first.data):
            continue
        if before.dtype != one.dtype or one.dtype is None or before.scale is None or one.scale is None:
            continue  # a bridge to another type is meant
        if list(_differences(one, before)):
            numbers = {"scale before": float(before.scale.flat[0]), "scale": float(one.scale.flat[0])}
            text = f"it quantizes what {_name(before)} has just dequantized, at another range"
            yield Finding(one.node, text, numbers=numbers)


@graph_rule("OQ109", "quantized-output", "warning")
def quantized_output(subject: Subject) -> Iterator[Finding]:
    """A graph gives out integers without their scale.

    What it does:
        Looks for QuantizeLinear nodes whose output is a graph output.

    Why is this bad:
        The caller gets integers and has to know scale and zero point from elsewhere.

    Use instead:
        A DequantizeLinear behind it; or say in the documentation of the model what the integers mean.
    """
    for one in subject.quantizers:
        if one.out is not None and one.out.is_graph_output():
            yield Finding(one.node, f"its integers '{one.out.name}' are an output of the graph")


def _zero(one: Linear) -> Array | None:
    """The zero point; 0 where it is left out."""
    return np.zeros(1, np.int64) if one.zero_value is None else one.zero


def _maker(subject: Subject, one: Linear) -> Linear | None:
    """The pair node that makes what one reads."""
    producer = one.data.producer() if one.data is not None else None
    return subject.linear_of.get(producer) if producer is not None else None


def _pairs(subject: Subject) -> Iterator[tuple[Linear, Linear]]:
    """Each DequantizeLinear behind a QuantizeLinear, with it."""
    for reader in subject.dequantizers:
        writer = _maker(subject, reader)
        if writer is not None and writer.quantizes:
            yield writer, reader


def _name(one: Linear) -> str:
    return f"'{one.node.name}' ({one.node.op_type})"
