"""`resolve-axes`: turn "per channel" and "in blocks" into a concrete axis for each use of each weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq import ops
from onnxq.diagnostics import Severity
from onnxq.errors import OptionError
from onnxq.facts import Axes, Decision, Edge, Fact, Goal, Plan
from onnxq.look import onnx_op
from onnxq.numerics.spec import Blocked, Granularity, PerAxis, PerTensor
from onnxq.passbase import Context, Pass
from onnxq.planning import Planner
from onnxq.weights import weight_tensor
from onnxq.wording import plural

BLOCKS_SINCE = 21  # first opset whose DequantizeLinear has block_size


@dataclass(frozen=True, kw_only=True)
class ResolveAxes(Pass):
    """`Plan` -> `Axes`: the output-channel or block axis of each weight *use*, from the operator table.

    Uses, not tensors: one weight read by ``Gemm(transB=0)`` and ``Gemm(transB=1)`` has two axes; a weight behind a
    Transpose, Reshape, Cast, … counts as it comes out of it. Blocks run along the axis that is summed over. Everything
    that is not as asked is noted: weights of one dimension and uses without an output-channel axis are per tensor
    (unless the plan names an axis); blocks over several axes, or as long as the axis, are per channel; the groups of
    a ConvTranspose share their scales. An LSTM, GRU or RNN of two directions has one scale for each direction and gate
    row, as blocks that are a whole row long; where opset (below 21) or target have no blocks, both directions share.

    Attributes:
        gather: One scale for each row that a Gather looks up, or for each column of its table.
        short_block: What happens where the block size does not divide the axis. ``allow``: the last block is shorter,
            as ONNX permits, with a note. ``fit``: the largest power of two from 16 up that is no longer than the block
            size and divides the axis; where there is none, as ``allow``. ``skip``: the layer stays float. No zeros are
            padded, since the op's other operand would have to grow, too.
    """

    name: ClassVar[str] = "resolve-axes"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Axes, Plan})

    gather: Literal["row", "column"] = "row"
    short_block: Literal["allow", "fit", "skip"] = "allow"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Resolve every planned weight; the graph stays as it is.

        Raises:
            OptionError: The plan names an axis that the weight does not have, or a block size below 1.
            FactError: A layer is to be skipped, and no target is known to plan again for.
        """
        plan = ctx.get(Plan)
        if self.short_block == "skip":
            plan = self._without_short_blocks(plan, model, ctx)
        goal = ctx.maybe(Goal)
        blocks = model.opset_imports.get("", 0) >= BLOCKS_SINCE and (goal is None or goal.target.weights.blocked)
        axes = Axes()
        for edge, spec in plan.weights.items():
            axes.of[edge] = _Use(edge, ctx, self, blocks).resolve(spec.granularity)
        ctx.put(axes)
        return False

    def _without_short_blocks(self, plan: Plan, model: ir.Model, ctx: Context) -> Plan:
        """The plan made again without the layers that would get a short last block."""
        found: dict[ir.Node, Decision] = {}
        for edge, spec in plan.weights.items():
            wanted = spec.granularity
            length = _Use(edge, ctx, self, True).short(wanted) if isinstance(wanted, Blocked) else 0
            if length and isinstance(wanted, Blocked):
                values = f"the {plural(length, 'value')} of '{edge.value.name}' along their axis"
                why = f"blocks of {wanted.size} do not divide {values}"
                ctx.note("short-block", edge.node, f"{why}: stays float", length=length, block=wanted.size)
                found[edge.node] = Decision("float", "short-block", why)
        if not found:
            return plan
        banned = {**plan.wishes.banned, **found}
        plan = Planner(ctx.get(Goal).target, replace(plan.wishes, banned=banned)).make(model)
        ctx.put(plan)
        return plan


class _Use:
    """One use of one weight."""

    def __init__(self, edge: Edge, ctx: Context, options: ResolveAxes, blocks: bool) -> None:
        tensor = weight_tensor(edge.value)
        assert tensor is not None
        self.edge, self.ctx, self.options, self.blocks = edge, ctx, options, blocks
        self.dims = [int(d) for d in tensor.shape.numpy()]
        self.label = f"its weight '{edge.value.name}' of shape {self.dims}"

    def resolve(self, wanted: Granularity) -> Granularity:
        """The granularity with its axis."""
        if isinstance(wanted, PerTensor):
            return wanted
        if wanted.axis is not None and not -len(self.dims) <= wanted.axis < len(self.dims):
            where = f"{self.edge.node.name} ({self.edge.node.op_type})"
            raise OptionError(f"{where}: the plan asks for {wanted}, {self.label} has {len(self.dims)} axes")
        if isinstance(wanted, Blocked):
            if wanted.size < 1:
                raise OptionError(f"a block holds at least one value, got {wanted}")
            axis = self._block_axis(wanted)
            if axis is not None:
                return self._blocked(wanted.size, axis)
            if len(self.dims) > 1:
                self._note("per-channel-weight", "is summed over several axes: per channel, not in blocks")
        elif wanted.axis is not None:
            return PerAxis(wanted.axis % len(self.dims))
        return self._per_channel()

    def short(self, wanted: Blocked) -> int:
        """Length of the block axis if its last block would be shorter than the others, else 0."""
        axis = self._block_axis(wanted)
        length = 0 if axis is None else self.dims[axis]
        return length if length > wanted.size and length % wanted.size else 0

    def _block_axis(self, wanted: Blocked) -> int | None:
        if wanted.axis is not None:
            return wanted.axis % len(self.dims)
        if len(self.dims) < 2:
            return None
        return ops.contraction_axis(self.edge.node, self.edge.index, self.dims)

    def _blocked(self, size: int, axis: int) -> Granularity:
        length = self.dims[axis]
        if size >= length:
            return self._one_block(axis)
        if length % size == 0:
            return Blocked(size, axis)
        # onnxruntime has kernels for blocks of 16 and up.
        fits = [b for b in (1 << k for k in range(4, size.bit_length())) if length % b == 0]
        if self.options.short_block == "fit" and fits:
            why = f"has {plural(length, 'value')} along axis {axis}: blocks of {fits[-1]}, not {size}"
            self._note("fitted-block", why, length=length, block=fits[-1], asked=size)
            return Blocked(fits[-1], axis)
        why = f"has {plural(length, 'value')} along axis {axis}: the last block of {size} holds {length % size}"
        self._note("short-block", why, length=length, block=size, last=length % size)
        return Blocked(size, axis)

    def _one_block(self, axis: int) -> Granularity:
        """One block is the whole axis: per channel where there is one other axis, else a scale for each other index."""
        others = [i for i, d in enumerate(self.dims) if i != axis and d > 1]
        channel = self._channel_axis()
        if channel not in (None, axis) and set(others) <= {channel}:
            return self._per_channel()
        if len(others) < 2 and len(self.dims) > 1:
            return PerAxis(others[0] if others else (0 if axis else 1))
        return Blocked(self.dims[axis], axis) if len(self.dims) > 1 else PerTensor()

    def _channel_axis(self) -> int | None:
        node, rank = self.edge.node, len(self.dims)
        if self.options.gather == "column" and onnx_op(node, "Gather"):
            return ops.contraction_axis(node, self.edge.index, self.dims)
        return ops.channel_axis(node, self.edge.index, rank)

    def _per_channel(self) -> Granularity:
        node, axis = self.edge.node, self._channel_axis()
        if axis is None or len(self.dims) < 2:
            self._note("per-tensor-weight", "has no output-channel axis: per tensor")
            return PerTensor()
        if onnx_op(node, *ops.RECURRENT) and self.dims[0] > 1:
            if self.blocks and len(self.dims) == 3:
                return Blocked(self.dims[2], 2)
            self._note("shared-directions", "has one scale a gate row for both directions: no blocks here")
        groups = ops.scale_tiles(node)
        if groups > 1:
            scales = self.dims[axis]
            why = f"has {plural(scales, 'scale')} for {groups * scales} channels: its {groups} groups share them"
            self._note("group-shared-scale", why, scales=scales, groups=groups)
        return PerAxis(axis)

    def _note(self, code: str, why: str, **numbers: int) -> None:
        self.ctx.note(code, self.edge.node, f"{self.label} {why}", Severity.INFO, **numbers)
