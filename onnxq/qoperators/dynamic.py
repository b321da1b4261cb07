"""Operators that quantize their own input: their form starts with a DynamicQuantizeLinear."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.ops import MICROSOFT
from onnxq.qoperators.products import columns, product_and_bias
from onnxq.qoperators.raising import Raiser, Rewrite


def dynamic_quantize_matmul(node: ir.Node, raiser: Raiser) -> str:
    """``MatMul(DQ(DynamicQuantizeLinear(a)), DQ(b)) (+ bias)``, which onnxruntime fuses again."""
    a, b, b_scale, b_zero, bias = (*node.inputs, None, None)[:5]
    assert a and b and b_scale
    right = raiser.dequantized(node, b, b_scale, b_zero, columns(node, b, b_scale))
    integers, scale, zero = raiser.dynamically_quantized(node, a).outputs
    left = raiser.dequantized(node, integers, scale, zero)
    product_and_bias(node, raiser, left, right, bias)
    return ""


FORMS: dict[tuple[str, str], Rewrite] = {(MICROSOFT, "DynamicQuantizeMatMul"): dynamic_quantize_matmul}
