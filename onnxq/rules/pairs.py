"""OQ10x: QuantizeLinear and DequantizeLinear belong together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject


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
        The scale and zero point of the QuantizeLinear, best as the same initializers.

    Fix safety:
        Safe: the DequantizeLinear takes the parameters of its QuantizeLinear.
    """
    for reader in subject.linears:
        producer = reader.data.producer() if reader.data is not None and not reader.quantizes else None
        writer = subject.linear_of.get(producer) if producer is not None else None
        if writer is None or not writer.quantizes:
            continue
        for what, numbers in _differences(writer, reader):
            text = (
                f"its {what} differs from that of '{writer.node.name}' ({writer.node.op_type}), which made its integers"
            )
            yield Finding(reader.node, text, numbers=numbers)


def _differences(writer: Linear, reader: Linear) -> Iterator[tuple[str, dict[str, object]]]:
    for what, one, other in (("scale", writer.scale, reader.scale), ("zero point", writer.zero, reader.zero)):
        if one is None or other is None or np.array_equal(one.ravel(), other.ravel()):
            continue
        at = int(np.argmax(one.ravel() != other.ravel())) if one.size == other.size else 0
        yield what, {"quantize": float(one.ravel()[at]), "dequantize": float(other.ravel()[at]), "channel": at}
    several = any(p.scale is not None and p.scale.size > 1 for p in (writer, reader))
    if several and writer.axis != reader.axis:
        yield "axis", {"quantize": writer.axis, "dequantize": reader.axis}
    if writer.block_size != reader.block_size:
        yield "block size", {"quantize": writer.block_size, "dequantize": reader.block_size}
