"""OQ614–OQ617: weights that onnxruntime's CPU provider does not load, stops at, or rounds (measured with 1.32)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import constant_tensor, onnx_op
from onnxq.rules._around import (
    FOLDS,
    MOVERS,
    bits,
    clip_behind,
    dequantizer,
    in_reach,
    no_nbits,
    quantizer,
    single,
    weights,
)
from onnxq.states import dtype_name


@graph_rule("OQ614", "int2-activation", "error", targets=("ort-cpu",))
def int2_activation(subject: Subject) -> Iterator[Finding]:
    """A 2-bit weight meets 8-bit activations.

    What it does:
        Looks for Conv, MatMul and Gemm whose weight is int2 or uint2, per tensor or per channel, between 8-bit pairs.

    Why is this bad:
        onnxruntime 1.32 makes QLinearConv, QLinearMatMul or QGemm of it, which take no 2-bit weights, and does not
        load the model.

    Use instead:
        Float activations (weight-only MatMul), blocks, 4-bit weights, or weights stored as int8.
    """
    for one, node in weights(subject):
        if bits(one) != 2 or one.block_size or not onnx_op(node, "Conv", "MatMul", "Gemm"):
            continue
        front = dequantizer(subject, node.inputs[0], MOVERS)
        behind = quantizer(subject, node.outputs[0], (*FOLDS, *MOVERS))
        bare = any(pair is None or pair.zero_value is None for pair in (one, front, behind))
        if bits(front) == 8 == bits(behind) and not (bare and onnx_op(node, "Gemm")):
            text = f"its weight is {dtype_name(one.dtype)}, and {node.op_type} '{node.name}' stands between 8-bit pairs"
            yield Finding(one.node, f"{text}: the model does not load")


@graph_rule("OQ615", "batched-weight", "error", targets=("ort-cpu",))
def batched_weight(subject: Subject) -> Iterator[Finding]:
    """A stored weight of rank 3 or more has several scales, and its MatMul no QuantizeLinear behind it.

    What it does:
        Looks for MatMul nodes with 8-bit activations and such an 8-bit weight whose output is not quantized.

    Why is this bad:
        onnxruntime 1.32 makes MatMulIntegerToFloat of it. The session is made, and stops at the first run.

    Use instead:
        One scale for the weight, or a pair behind the MatMul.
    """
    for one, node in weights(subject):
        dims = one.dims
        if not onnx_op(node, "MatMul") or dims is None or len(dims) < 3 or bits(one) != 8 or single(one):
            continue
        if one.block_size or bits(dequantizer(subject, node.inputs[0])) != 8:
            continue
        if quantizer(subject, node.outputs[0], FOLDS) is None and clip_behind(node.outputs[0]) is None:
            text = f"its weight of shape {list(dims)} has several scales, and nothing quantizes what MatMul"
            yield Finding(one.node, f"{text} '{node.name}' makes: the first run stops", numbers={"rank": len(dims)})


@graph_rule("OQ616", "branch-weight", "error", targets=("ort-cpu",))
def branch_weight(subject: Subject) -> Iterator[Finding]:
    """The integers or scales of a weight-only MatMul in a body lie in the graph around it.

    What it does:
        Looks for MatMul and Gemm in If, Loop and Scan bodies of which onnxruntime would make MatMulNBits, and whose
        integers or scales are initializers of an outer graph.

    Why is this bad:
        onnxruntime 1.32 looks for them in the body only, and does not load the model: "Missing required weight".

    Use instead:
        Initializers of the body, or a DequantizeLinear outside.
    """
    for one, node in weights(subject):
        if no_nbits(subject, one, node) or one.node.graph is not node.graph:
            continue
        if not in_reach(subject, one.node, one.data, one.scale_value):
            text = f"its integers or scale lie outside the body where {node.op_type} '{node.name}' reads them"
            yield Finding(one.node, f"{text}: the model does not load")


@graph_rule("OQ617", "float-weight-beside-pairs", "warning", targets=("ort-cpu",))
def float_weight_beside_pairs(subject: Subject) -> Iterator[Finding]:
    """A layer with a float weight stands between pairs.

    What it does:
        Looks for Conv, ConvTranspose and Gemm with a DequantizeLinear in front, a QuantizeLinear behind, and a stored
        float weight.

    Why is this bad:
        onnxruntime 1.32 rounds the weight to int8 as it loads the model, with one scale for all channels: errors of
        some per cent, and of all of a channel with small weights. No message says so.

    Use instead:
        A quantized weight per channel; or no pair on one side of a layer that is to stay float.
    """
    for node in subject.of("Conv", "ConvTranspose", "Gemm"):
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = constant_tensor(weight)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        front = dequantizer(subject, node.inputs[0])
        behind = quantizer(subject, node.outputs[0], FOLDS)
        if front is None or behind is None or not _known(front) or not in_reach(subject, node, weight):
            continue
        name = weight.name if weight is not None else ""
        text = f"its float weight '{name}' is rounded to int8, one scale for all channels, when the model is loaded"
        yield Finding(node, text)


def _known(one: Linear) -> bool:
    return single(one) and one.scale is not None and bool(np.isfinite(one.scale).all())
