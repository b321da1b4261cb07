"""int32 biases of integer operators: their scale is the product of the scales of the operands, nowhere written."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.look import constant, dims_of
from onnxq.qoperators.parameters import content
from onnxq.qoperators.raising import Raiser


def dequantized_bias(
    raiser: Raiser, node: ir.Node, bias: ir.Value, scales: Sequence[ir.Value], axis: int = 0, factor: float = 1.0
) -> ir.Value:
    """``int32 bias -> DequantizeLinear`` with the scale that integer kernels take for granted.

    Args:
        raiser: Makes the nodes.
        node: What is replaced.
        bias: int32.
        scales: Scales of the operands, each a single number or one a channel.
        axis: The bias's channel axis.
        factor: A further factor of the scale: alpha of a Gemm.

    Raises:
        Refused: The opset has no such pair.
    """
    scale = product(raiser, node, scales, f"{bias.name or node.name}_scale", factor)
    return raiser.dequantized(node, bias, scale, None, axis)


def product(raiser: Raiser, node: ir.Node, scales: Sequence[ir.Value], name: str, factor: float = 1.0) -> ir.Value:
    """``factor`` times scales, each a single number or one a channel; of constants now, in their own type."""
    arrays = [array for array in map(constant, scales) if array is not None]
    if len(arrays) == len(scales):
        result = np.asarray(factor, arrays[0].dtype)
        for array in arrays:
            result = np.asarray(result * (array.reshape(()) if array.size == 1 else array), arrays[0].dtype)
        return raiser.constant(node, name, result)

    def make() -> ir.Value:
        factors = list(scales)
        if factor != 1.0:
            factors.insert(0, raiser.constant(node, f"{name}_factor", np.asarray(factor, np.float32)))
        made = factors[0]
        for other in factors[1:]:
            wider = max((made, other), key=_size)
            made = raiser.float_op(node, "Mul", [made, other], name=name, like=wider, dtype=other.dtype)
        return made

    return raiser.once(("product", *map(content, scales), factor, node.graph), make)


def _size(value: ir.Value) -> tuple[int, int]:
    dims = dims_of(value) or ()
    return math.prod(d or 0 for d in dims), len(dims)
