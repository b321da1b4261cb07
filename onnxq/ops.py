"""The operator table: where an op carries weights, which axis is the output channel, where its bias sits.

Every pass and rule that asks "which axis?" asks here. Sources: the operator texts of ONNX and of onnxruntime's contrib
ops (weight layouts: Conv [M, C/g, k...], ConvTranspose [C, M/g, k...], Gemm and FusedMatMul with their trans
attributes, MatMul as numpy.matmul, LSTM/GRU/RNN W [D, G*H, I] and R [D, G*H, H], MatMulNBits [N, blocks, bytes]).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.look import attr_int, attr_str, onnx_op

# (node, rank of the weight) -> axis, never negative
AxisOf = Callable[[ir.Node, int], int]

MICROSOFT = "com.microsoft"
RECURRENT = ("LSTM", "GRU", "RNN")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True)
class WeightSlot:
    """One input that may carry a weight.

    Attributes:
        index: Input index.
        channel_axis: Output-channel axis of that input; of a Gather the looked-up one (one scale a row).
        contraction_axis: Axis summed over, the axis that blocks run along (of a Gather: along the row); None where
            several axes are.
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


def _row(node: ir.Node, rank: int) -> int:
    return max(rank - 2, 0)


def _last(node: ir.Node, rank: int) -> int:
    return rank - 1


def _fused(letter: str, last: bool) -> AxisOf:
    """FusedMatMul axis of rows or columns: transBatch puts the rows at axis 0, trans swaps rows and columns."""

    def axis(node: ir.Node, rank: int) -> int:
        if last is not bool(attr_int(node, f"trans{letter}", 0)):
            return rank - 1
        return 0 if attr_int(node, f"transBatch{letter}", 0) else max(rank - 2, 0)

    return axis


def _looked_up(node: ir.Node, rank: int) -> int:
    return attr_int(node, "axis", 0) % rank if rank else 0


def _along_row(node: ir.Node, rank: int) -> int:
    """The last axis that Gather does not look up."""
    return rank - 1 if _looked_up(node, rank) != rank - 1 else max(rank - 2, 0)


def _conv(weight: int, bias: int | None, channel: int = 0) -> OpInfo:
    return OpInfo((WeightSlot(weight, _always(channel)),), bias)


def _product(a: int | None, b: int, bias: int | None = None) -> OpInfo:
    """A matrix product with its operands at inputs ``a`` and ``b``."""
    slots = (WeightSlot(b, _last, _row), *(() if a is None else (WeightSlot(a, _row, _last),)))
    return OpInfo(slots, bias)


def _gemm_like(a: int, b: int, bias: int) -> OpInfo:
    return OpInfo((WeightSlot(b, _gemm("B", 0), _gemm("B", 1)), WeightSlot(a, _gemm("A", 1), _gemm("A", 0))), bias)


_recurrent = OpInfo((WeightSlot(1, _always(1), _always(2)), WeightSlot(2, _always(1), _always(2))), bias=3)
_attention = OpInfo((WeightSlot(1, _always(1), _always(0)),), bias=2)

OPS: dict[tuple[str, str], OpInfo] = {
    ("", "Conv"): _conv(1, 2),
    ("", "ConvTranspose"): _conv(1, 2, channel=1),
    ("", "Gemm"): _gemm_like(0, 1, 2),
    ("", "MatMul"): _product(0, 1),
    ("", "Gather"): OpInfo((WeightSlot(0, _looked_up, _along_row),)),
    **{("", op): _recurrent for op in RECURRENT},
    ("", "QLinearConv"): _conv(3, 8),
    ("", "ConvInteger"): _conv(1, None),
    ("", "QLinearMatMul"): _product(0, 3),
    ("", "MatMulInteger"): _product(0, 1),
    (MICROSOFT, "QLinearConv"): _conv(3, 8),
    (MICROSOFT, "QGemm"): _gemm_like(0, 3, 6),
    (MICROSOFT, "MatMulIntegerToFloat"): _product(0, 1, bias=6),
    (MICROSOFT, "DynamicQuantizeMatMul"): _product(None, 1, bias=4),
    (MICROSOFT, "MatMulNBits"): _conv(1, 5),
    (MICROSOFT, "FusedMatMul"): OpInfo(
        (
            WeightSlot(1, _fused("B", last=True), _fused("B", last=False)),
            WeightSlot(0, _fused("A", last=False), _fused("A", last=True)),
        )
    ),
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "QAttention"): _attention,
}
_PRODUCTS = frozenset({"MatMul", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"})
_PRODUCTS |= {"FusedMatMul"}


def info(node: ir.Node) -> OpInfo | None:
    """The table row of a node, None for ops without weights. The row of an Einsum follows from its equation."""
    return _einsum(node) if onnx_op(node, "Einsum") else OPS.get((node.domain, node.op_type))


def channel_axis(node: ir.Node, index: int, rank: int) -> int | None:
    """Output-channel axis of input ``index`` when that input is a weight of ``rank`` dimensions; None if it has none.

    A 1-D operand of a matrix product has no output-channel axis: it is summed away. The bias of an LSTM, GRU or RNN,
    [D, 2*G*H], counts as a weight here; other biases hold nothing but output channels.
    """
    if rank == 2 and index == 3 and onnx_op(node, *RECURRENT):
        return 1
    row = info(node)
    slot = row.slot(index) if row else None
    if slot is None or rank == 0 or (node.op_type in _PRODUCTS and rank == 1):
        return None
    axis = slot.channel_axis(node, rank)
    return axis if axis < rank else None


def contraction_axis(node: ir.Node, index: int, dims: Sequence[int]) -> int | None:
    """The one axis of a weight of shape ``dims`` that an output value is a sum over: where blocks run.

    Of a Gather, which sums nothing, the axis along its rows. A Conv or ConvTranspose sums over channels and kernel, so
    that it has one only with a kernel of 1 (ConvTranspose: and one group).
    """
    row = info(node)
    slot = row.slot(index) if row else None
    if slot is None or not dims:
        return None
    if slot.contraction_axis is not None:
        axis = slot.contraction_axis(node, len(dims))
        return axis if axis < len(dims) else None
    if len(dims) < 3 or any(d != 1 for d in dims[2:]) or scale_tiles(node) > 1:
        return None
    if onnx_op(node, "Conv", "ConvTranspose"):
        return 1 - slot.channel_axis(node, len(dims))
    return None


def scale_tiles(node: ir.Node) -> int:
    """How often the scales along the channel axis must be tiled (`numpy.tile`) to get one for each output channel.

    A ConvTranspose with ``group`` > 1 has its M output channels as [M/group] entries of axis 1, which all groups share:
    output channel c has the scale c mod (M/group).
    """
    return attr_int(node, "group", 1) if onnx_op(node, "ConvTranspose") else 1


def channels(node: ir.Node, index: int, dims: Sequence[int]) -> int | None:
    """Number of output channels of a weight of shape ``dims``; None if it has none."""
    axis = channel_axis(node, index, len(dims))
    return None if axis is None else dims[axis] * scale_tiles(node)


def terms(node: ir.Node, index: int, dims: Sequence[int]) -> int:
    """How many products are summed for one output value, of a ConvTranspose at most; 0 where there is no weight."""
    row = info(node)
    slot = row.slot(index) if row else None
    if slot is None:
        return 0
    if slot.contraction_axis is not None:
        axis = slot.contraction_axis(node, len(dims))
        return dims[axis] if axis < len(dims) else 0
    return math.prod(dims) // (channels(node, index, dims) or 1)


def input_channel_axis(node: ir.Node, index: int, rank: int) -> int | None:
    """Axis of activation input ``index``, of ``rank`` dimensions, that holds the input channels; None if none does."""
    if index == 0 and (node.domain, node.op_type) in (("", "Conv"), ("", "ConvTranspose")):
        return 1 if rank > 1 else None
    row = info(node)
    slot = row.slot(index) if row and node.op_type in ("MatMul", "Gemm") else None
    if slot is None or slot.contraction_axis is None or rank == 0:
        return None
    return slot.contraction_axis(node, rank)


def _einsum(node: ir.Node) -> OpInfo | None:
    """Two operands of plain letters: the one letter that only a weight and the output have is its channel axis."""
    left, arrow, out = attr_str(node, "equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or not set("".join(terms)) <= _LETTERS or any(len(set(t)) < len(t) for t in terms):
        return None
    if not arrow:
        out = "".join(sorted(set(terms[0]) ^ set(terms[1])))
    slots = []
    for index in (1, 0):
        own, other = terms[index], terms[1 - index]
        channels = [i for i, letter in enumerate(own) if letter in out and letter not in other]
        summed = [i for i, letter in enumerate(own) if letter not in out]
        if len(channels) == 1:
            slots.append(WeightSlot(index, _always(channels[0]), _always(summed[0]) if len(summed) == 1 else None))
    return OpInfo(tuple(slots)) if slots else None
