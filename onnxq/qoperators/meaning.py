"""What a QuantizeLinear or DequantizeLinear stores, in a form that is equal for nodes that mean the same."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.look import attr_int, constant, dims_of
from onnxq.pairs import parameter
from onnxq.qoperators.parameters import content


@dataclass(frozen=True)
class Meaning:
    """Scale, zero point and layout of a pair node.

    Attributes:
        scale: The numbers, or the value that holds a computed scale.
        zero: The numbers, or the value that holds a computed zero point; None for 0.
        axis: Axis, not negative where the rank is known; None for a single scale.
        block_size: Values in a block; 0 without blocks.
    """

    scale: Hashable
    zero: Hashable
    axis: int | None
    block_size: int

    @classmethod
    def of(cls, node: ir.Node) -> Meaning:
        """Read a pair node; one number in whatever shape is the same as a scalar."""
        scale, zero = constant(parameter(node, 1)), parameter(node, 2)
        single, zeros = scale is not None and scale.size == 1, constant(zero)
        dims, axis = dims_of(node.inputs[0]), attr_int(node, "axis", 1)
        plain = zero is None or (zeros is not None and not zeros.any())
        return cls(
            (scale.dtype, scale.tobytes()) if scale is not None else parameter(node, 1),
            None if plain else content(zero) if zeros is None or not single else (zeros.dtype, zeros.tobytes()),
            None if single else axis % len(dims) if dims else axis,
            attr_int(node, "block_size", 0),
        )
