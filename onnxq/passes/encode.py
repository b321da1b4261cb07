"""`encode`: scale and zero point for every planned edge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.errors import DataError, FactError
from onnxq.facts import Axes, Edge, Encodings, Fact, Plan, Range, Ranges
from onnxq.layers import clip_limit
from onnxq.look import constant
from onnxq.numerics.encodings import WeightMethod, from_range, from_values
from onnxq.numerics.spec import Encoding, PerTensor, TensorSpec
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class Encode(Pass):
    """`Plan`, `Axes`, `Ranges` -> `Encodings`.

    Values of one sharing group get one encoding, over the union of their ranges. One weight used twice with the same
    spec and axis gets one encoding. Bias encodings are added by `guard-bias`.

    Attributes:
        weight_method: ``minmax`` covers every weight; ``mse`` shrinks each channel's range to the least squared error.
    """

    name: ClassVar[str] = "encode"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Axes})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Ranges})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Encodings})

    weight_method: WeightMethod = "minmax"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Compute all encodings; the graph stays as it is."""
        plan, axes = ctx.get(Plan), ctx.get(Axes)
        out = Encodings()
        ranges = self._ranges(plan, ctx.maybe(Ranges))
        for group in groups(plan):
            encoding = self._activation(group, plan.activations[group[0]], ranges)
            out.activations.update(dict.fromkeys(group, encoding))
        known: dict[tuple[ir.Value, TensorSpec], Encoding] = {}
        for i, (edge, wish) in enumerate(plan.weights.items()):
            ctx.progress("encode weights", i, len(plan.weights))
            spec = wish.at(axes.of.get(edge, PerTensor()))
            key = (edge.value, spec)
            if key not in known:
                known[key] = self._weight(edge, spec, ctx)
            out.weights[edge] = known[key]
        ctx.put(out)
        return False

    def _ranges(self, plan: Plan, ranges: Ranges | None) -> dict[ir.Value, Range]:
        known = dict(ranges.of) if ranges else {}
        for value, (lo, hi) in plan.fixed.items():
            known.setdefault(value, Range(lo, hi, lo, hi))
        missing = sorted(v.name or "" for v in plan.activations if v not in known)
        if missing:
            names = ", ".join(missing[:3])
            raise FactError(
                f"{len(missing)} planned values have no range ({names}{', …' if len(missing) > 3 else ''}): "
                "run calibrate and leave-float before encode, or give ranges"
            )
        return known

    def _activation(self, group: list[ir.Value], spec: TensorSpec, ranges: dict[ir.Value, Range]) -> Encoding:
        lo, hi = min(ranges[v].lo for v in group), max(ranges[v].hi for v in group)
        dtype = np.float16 if any(v.dtype == ir.DataType.FLOAT16 for v in group) else np.float32
        encoding = from_range(lo, hi, spec, dtype=dtype)
        limit = min((c for c in map(clip_limit, group) if c is not None), default=None)
        if limit is not None and lo >= 0:
            encoding = _within(encoding, limit)
        return encoding

    def _weight(self, edge: Edge, spec: TensorSpec, ctx: Context) -> Encoding:
        weight = constant(edge.value)
        assert weight is not None
        dtype = np.float16 if weight.dtype == np.float16 else np.float32
        try:
            encoding = from_values(weight, spec, method=self.weight_method, dtype=dtype)
        except DataError as error:
            raise DataError(f"{edge.node.name} ({edge.node.op_type}), weight '{edge.value.name}': {error}") from error
        if encoding.dead:
            why = f"{len(encoding.dead)} of {encoding.scale.size} channels of '{edge.value.name}' are all (nearly) zero"
            ctx.note("dead-channels", edge.node, why, channels=list(encoding.dead[:64]), count=len(encoding.dead))
        return encoding


def _within(encoding: Encoding, limit: float) -> Encoding:
    """Lower the scale by one unit in the last place where its top would lie above a Clip's bound."""
    q = encoding.spec.qtype
    top = encoding.scale * encoding.scale.dtype.type(q.qmax - int(encoding.zero_point))
    if limit > 0 and top > limit:
        return replace(encoding, scale=np.asarray(np.nextafter(encoding.scale, encoding.scale.dtype.type(0))))
    return encoding


def groups(plan: Plan) -> list[list[ir.Value]]:
    """The planned values in order, those that must share one encoding together (union of overlapping groups)."""
    parent: dict[ir.Value, ir.Value] = {v: v for v in plan.activations}

    def root(v: ir.Value) -> ir.Value:
        while parent[v] is not v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    for first, *rest in plan.shared:
        for other in rest:
            if first in parent and other in parent:
                parent[root(other)] = root(first)
    out: dict[ir.Value, list[ir.Value]] = {}
    for value in plan.activations:
        out.setdefault(root(value), []).append(value)
    return list(out.values())
