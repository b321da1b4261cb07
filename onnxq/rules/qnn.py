"""OQ641–OQ645: what onnxruntime's QNN provider does not take on HTP, beyond types and granularity (OQ606–OQ609).

Sources: the documentation of the QNN execution provider, its operator builders, and onnxruntime's configuration for it
(`onnxruntime.quantization.execution_providers.qnn`). None of it was run here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import onnx_op
from onnxq.rules._around import MOVERS, bits, dequantizer, quantizer
from onnxq.states import dtype_name

_FIXED = {
    ("Sigmoid", ir.DataType.UINT16): (2.0**-16, 0),
    ("Sigmoid", ir.DataType.INT16): (2.0**-15, 0),
    ("Tanh", ir.DataType.UINT16): (2.0**-15, 32768),
    ("Tanh", ir.DataType.INT16): (2.0**-15, 0),
}
"""Scale and zero point that HTP wants of a 16-bit output."""


@graph_rule("OQ641", "qnn-signed-activation", "warning", targets=("qnn",))
def qnn_signed_activation(subject: Subject) -> Iterator[Finding]:
    """Activations are of a signed type.

    What it does:
        Looks for int8 and int16 QuantizeLinear of activations. Source: "QNN operators typically support the uint8 and
        uint16 data types" (documentation of the provider).

    Why is this bad:
        Operators that take only the unsigned types run on the CPU instead.

    Use instead:
        uint8 or uint16.
    """
    for one in subject.linears:
        if one.quantizes and one.dtype in (ir.DataType.INT8, ir.DataType.INT16) and _is_activation(one):
            yield Finding(one.node, f"it writes {dtype_name(one.dtype)}; most operators of HTP take unsigned ones")


def _is_activation(one: Linear) -> bool:
    return isinstance(constant_behind(one.data), str)


@graph_rule("OQ642", "qnn-dynamic-shape", "error", targets=("qnn",))
def qnn_dynamic_shape(subject: Subject) -> Iterator[Finding]:
    """An input has a shape that is not fixed.

    What it does:
        Looks for inputs of the model with symbolic or unknown dimensions. Source: "QNN EP does not support models with
        dynamic shapes" (documentation of the provider).

    Why is this bad:
        The provider takes none of the graph: it runs on the CPU.

    Use instead:
        Fixed numbers (`python -m onnxruntime.tools.make_dynamic_shape_fixed`).
    """
    for value in subject.model.graph.inputs:
        shape = value.shape
        if not value.is_initializer() and (shape is None or not all(isinstance(d, int) for d in shape)):
            dims = "unknown" if shape is None else str([d if isinstance(d, int) else str(d) for d in shape])
            yield Finding(value, f"the shape of input '{value.name}' is not fixed: {dims}")


@graph_rule("OQ643", "qnn-control-flow", "error", targets=("qnn",))
def qnn_control_flow(subject: Subject) -> Iterator[Finding]:
    """The model has an If, Loop or Scan.

    What it does:
        Looks for these nodes. An If with one output is a warning. Source: the documentation of the provider, which says
        "Loops and Ifs are not supported", and since version 2.5 lists If with "Single output per branch" and "both
        branches are always executed".

    Why is this bad:
        They, and what they hold, run on the CPU, and the graph is cut in parts. Of an If that is taken,
        both branches cost time.

    Use instead:
        The branch that is meant; a Loop of fixed length as its steps.
    """
    for node in subject.of("If", "Loop", "Scan"):
        if onnx_op(node, "If") and len(node.outputs) == 1:
            text = "QNN has no If before version 2.5 of the provider, and runs both branches since"
            yield Finding(node, text, severity=Severity.WARNING)
        elif onnx_op(node, "If"):
            count = len(node.outputs)
            yield Finding(node, f"QNN takes an If with one output, this one has {count}", numbers={"outputs": count})
        else:
            yield Finding(node, f"QNN has no {node.op_type}")


@graph_rule("OQ644", "qnn-fixed-output", "warning", targets=("qnn",))
def qnn_fixed_output(subject: Subject) -> Iterator[Finding]:
    """A Sigmoid or Tanh of 16 bits has another scale than HTP wants.

    What it does:
        Compares the 16-bit pair behind each Sigmoid and Tanh: 1/65536 from 0 for a Sigmoid with uint16, 1/32768 from
        the middle for a Tanh. Source: onnxruntime's configuration for QNN (`quant_config.py`).

    Why is this bad:
        The operator is not taken, and runs on the CPU.

    Use instead:
        That scale and zero point.
    """
    for node in subject.of("Sigmoid", "Tanh"):
        behind = quantizer(subject, node.outputs[0])
        wanted = _FIXED.get((node.op_type, behind.dtype)) if behind is not None and behind.dtype is not None else None
        if behind is None or wanted is None or behind.scale is None or behind.scale.size != 1:
            continue
        scale, zero = float(behind.scale.ravel()[0]), 0 if behind.zero is None else int(np.ravel(behind.zero)[0])
        if abs(scale - wanted[0]) > 1e-6 * wanted[0] or zero != wanted[1]:
            numbers = {"scale": scale, "zero point": zero, "scale wanted": wanted[0], "zero point wanted": wanted[1]}
            text = f"{node.op_type} '{node.name}' of {dtype_name(behind.dtype)} wants another scale or zero point"
            yield Finding(behind.node, text, f"Take scale {wanted[0]} and zero point {wanted[1]}.", numbers)


@graph_rule("OQ645", "qnn-wide-matmul", "warning", targets=("qnn",))
def qnn_wide_matmul(subject: Subject) -> Iterator[Finding]:
    """Both operands of a MatMul have 16 bits.

    What it does:
        Looks for MatMul between 16-bit pairs. Source: "Supported input data types on HTP backend: (uint8, uint8),
        (uint8, uint16), (uint16, uint8)" (table of operators of the provider).

    Why is this bad:
        It runs on the CPU.

    Use instead:
        8 bits on one side.
    """
    for node in subject.of("MatMul"):
        pairs = [dequantizer(subject, value, MOVERS) for value in node.inputs]
        if all(bits(one) == 16 for one in pairs):
            yield Finding(node, "both operands have 16 bits; HTP takes 8 bits for one of them")
