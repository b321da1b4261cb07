"""OQ631–OQ633: what TensorRT's ONNX importer does not take, beyond types and zero points (OQ606–OQ609).

Sources: the operator table of onnx-tensorrt for TensorRT 10.15, its importer, and NVIDIA's page on the Quantize
operator. None of it was run here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.qoperators.table import FORMS
from onnxq.rules._around import bits
from onnxq.states import INTEGER_OPS


@graph_rule("OQ631", "tensorrt-computed-scale", "error", targets=("tensorrt",))
def tensorrt_computed_scale(subject: Subject) -> Iterator[Finding]:
    """A scale is computed at run time.

    What it does:
        Looks for pairs whose scale is no constant. Source: "The scale tensor must be a build-time constant" (page on
        the Quantize operator).

    Why is this bad:
        TensorRT builds no engine.

    Use instead:
        Static quantization: constant scales.
    """
    for one in subject.linears:
        if one.scale_value is not None and not subject.is_constant(one.scale_value):
            yield Finding(one.node, f"its scale '{one.scale_value.name}' is no constant")


@graph_rule("OQ632", "tensorrt-not-imported", "error", targets=("tensorrt",), fix="qoperator-to-qdq")
def tensorrt_not_imported(subject: Subject) -> Iterator[Finding]:
    """TensorRT's importer has no such operator.

    What it does:
        Looks for DynamicQuantizeLinear, for operators on integers, of ai.onnx and of com.microsoft, and for MatMulNBits
        and its like. Source: the operator table of onnx-tensorrt, where they are marked N or missing. The importer goes
        by the operator's type alone, and takes QuantizeLinear, DequantizeLinear and Gelu of com.microsoft for those of
        ai.onnx: these are no finding.

    Why is this bad:
        The model is not imported, unless a plugin of that name is registered.

    Use instead:
        Float operators between pairs, with constant scales.

    Fix safety:
        Safe: exact but for values in the middle of two integers. DynamicQuantizeLinear stays.
    """
    for domain, op_type in sorted({(node.domain, node.op_type) for node in subject.nodes}):
        key = f"{domain}::{op_type}" if domain else op_type
        if key not in INTEGER_OPS and key != "DynamicQuantizeLinear" and not op_type.startswith("QLinear"):
            continue
        fixable = (domain, op_type) in FORMS
        text = f"TensorRT's importer has no {op_type}{f' of {domain}' if domain else ''}"
        for node in subject.of(op_type, domain=domain):
            yield Finding(node, text, "" if fixable else "Quantize the float model for it.", fixable=fixable)


@graph_rule("OQ633", "tensorrt-odd-int4", "error", targets=("tensorrt",))
def tensorrt_odd_int4(subject: Subject) -> Iterator[Finding]:
    """A 4-bit tensor has an odd number of values, or blocks of uneven size.

    What it does:
        Counts the values of 4-bit weights, and compares the axis of blocks with the block size. Sources:
        TensorRT ("4-bit quantization requires an even number of elements") and its importer ("Inferred block size is
        not an integer").

    Why is this bad:
        The model is not imported.

    Use instead:
        Widen the weight by zeros (`skip-odd-pack-axis` with `on-odd: pad`), leave it at 8 bits, or take a block size
        that divides the axis.
    """
    for one in subject.linears:
        dims = one.dims
        if one.quantizes or bits(one) != 4 or dims is None or None in dims:
            continue
        known = [d or 0 for d in dims]
        if math.prod(known) % 2:
            yield Finding(one.node, f"its 4-bit tensor of shape {known} has an odd number of values")
        elif one.block_size and -len(known) <= one.axis < len(known) and known[one.axis] % one.block_size:
            numbers = {"length": known[one.axis], "block size": one.block_size}
            yield Finding(one.node, f"blocks of {one.block_size} do not divide axis {one.axis}", numbers=numbers)
