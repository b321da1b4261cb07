"""`resolve-axes`: turn "per channel" into a concrete axis for each use of each weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq import ops
from onnxq.facts import Axes, Edge, Fact, Plan
from onnxq.numerics.spec import Blocked, Granularity, PerAxis, PerTensor
from onnxq.passbase import Context, Pass
from onnxq.weights import weight_tensor


@dataclass(frozen=True, kw_only=True)
class ResolveAxes(Pass):
    """`Plan` -> `Axes`: the output-channel axis of each weight *use*, from the operator table.

    Uses, not tensors: one weight read by ``Gemm(transB=0)`` and ``Gemm(transB=1)`` has two axes; a weight behind a
    Transpose counts as it comes out of it. Blocks run along the axis that is summed over. One-dimensional weights and
    uses without an output-channel axis are per tensor, blocks over several axes per channel, with a note.
    """

    name: ClassVar[str] = "resolve-axes"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Axes})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Resolve every planned weight; the graph stays as it is."""
        axes = Axes()
        for edge, spec in ctx.get(Plan).weights.items():
            axes.of[edge] = self._resolve(edge, spec.granularity, ctx)
        ctx.put(axes)
        return False

    def _resolve(self, edge: Edge, wanted: Granularity, ctx: Context) -> Granularity:
        if isinstance(wanted, PerTensor) or wanted.axis is not None:
            return wanted
        tensor = weight_tensor(edge.value)
        assert tensor is not None
        dims = [int(d) for d in tensor.shape.numpy()]
        weight = f"its weight '{edge.value.name}' of shape {dims}"
        row = ops.info(edge.node)
        slot = row.slot(edge.index) if row else None
        if isinstance(wanted, Blocked) and slot is not None and slot.contraction_axis is not None and dims:
            return Blocked(wanted.size, slot.contraction_axis(edge.node, len(dims)))
        axis = ops.channel_axis(edge.node, edge.index, len(dims))
        if axis is None or len(dims) < 2:
            ctx.note("per-tensor-weight", edge.node, f"{weight} has no output-channel axis: per tensor")
            return PerTensor()
        if isinstance(wanted, Blocked):
            ctx.note(
                "per-channel-weight", edge.node, f"{weight} is summed over several axes: per channel, not in blocks"
            )
        return PerAxis(axis)
