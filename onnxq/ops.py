"""The operator table: where an op carries weights, which axis is the output channel, where its bias sits.

Every pass and rule that asks "which axis?" asks here. Sources: the ONNX operator texts (weight layouts of Conv
[M, C/g, k...], ConvTranspose [C, M/g, k...], Gemm with transA/transB, MatMul as numpy.matmul).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.look import attr_int

# (node, rank of the weight) -> axis, never negative
AxisOf = Callable[[ir.Node, int], int]


@dataclass(frozen=True)
class WeightSlot:
    """One input that may carry a weight.

    Attributes:
        index: Input index.
        channel_axis: Output-channel axis of that input.
        contraction_axis: Axis summed over, the axis that blocks run along; None where several axes are.
    """

    index: int
    channel_axis: AxisOf
    contraction_axis: AxisOf | None = None


@dataclass(frozen=True)
class OpInfo:
    """Weight-carrying inputs and the bias input of one op."""

    weights: tuple[WeightSlot, ...]
    bias: int | None = None

    def slot(self, index: int) -> WeightSlot | None:
        """The weight slot at an input index."""
        return next((s for s in self.weights if s.index == index), None)


def _always(axis: int) -> AxisOf:
    return lambda node, rank: axis


def _gemm(letter: str, on: int) -> AxisOf:
    """Gemm axis: ``on`` if the operand is transposed, the other axis if not."""
    return lambda node, rank: on if attr_int(node, f"trans{letter}", 0) else 1 - on


OPS: dict[tuple[str, str], OpInfo] = {
    ("", "Conv"): OpInfo((WeightSlot(1, _always(0)),), bias=2),
    ("", "ConvTranspose"): OpInfo((WeightSlot(1, _always(1)),), bias=2),
    ("", "Gemm"): OpInfo(
        (WeightSlot(1, _gemm("B", 0), _gemm("B", 1)), WeightSlot(0, _gemm("A", 1), _gemm("A", 0))), bias=2
    ),
    ("", "MatMul"): OpInfo(
        (
            WeightSlot(1, lambda node, rank: rank - 1, lambda node, rank: max(rank - 2, 0)),
            WeightSlot(0, lambda node, rank: max(rank - 2, 0), lambda node, rank: rank - 1),
        )
    ),
    ("", "Gather"): OpInfo((WeightSlot(0, _always(0), lambda node, rank: rank - 1),)),
}


def info(node: ir.Node) -> OpInfo | None:
    """The table row of a node, None for ops without weights."""
    return OPS.get((node.domain, node.op_type))


def channel_axis(node: ir.Node, index: int, rank: int) -> int | None:
    """Output-channel axis of input ``index`` when that input is a weight of ``rank`` dimensions; None if it has none.

    A 1-D MatMul operand has no output-channel axis: it is summed away.
    """
    row = info(node)
    slot = row.slot(index) if row else None
    if slot is None or rank == 0 or (node.op_type == "MatMul" and rank == 1):
        return None
    return slot.channel_axis(node, rank)


def input_channel_axis(node: ir.Node, index: int, rank: int) -> int | None:
    """Axis of activation input ``index``, of ``rank`` dimensions, that holds the input channels; None if none does."""
    if index == 0 and (node.domain, node.op_type) in (("", "Conv"), ("", "ConvTranspose")):
        return 1 if rank > 1 else None
    row = info(node)
    slot = row.slot(index) if row and node.op_type in ("MatMul", "Gemm") else None
    if slot is None or slot.contraction_axis is None or rank == 0:
        return None
    return slot.contraction_axis(node, rank)
