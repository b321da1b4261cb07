"""`encode`: scale and zero point for every planned edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.encoding import activation_encodings, weight_encoding
from onnxq.errors import FactError
from onnxq.facts import Axes, Edge, Encodings, Fact, Plan, Range, Ranges
from onnxq.numerics.encodings import WeightMethod
from onnxq.numerics.spec import Encoding, PerTensor, TensorSpec
from onnxq.passbase import Context, Pass
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class Encode(Pass):
    """`Plan`, `Axes`, `Ranges` -> `Encodings`.

    Values of one sharing group get one encoding, over the union of their ranges; so does a bridge to a reader of
    another type. One weight used twice with the same
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
        out = activation_encodings(plan, self._ranges(plan, ctx.maybe(Ranges)))
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
                f"no range for {plural(len(missing), 'planned value')} ({names}{', …' if len(missing) > 3 else ''}): "
                "run calibrate and leave-float before encode, or give ranges"
            )
        return known

    def _weight(self, edge: Edge, spec: TensorSpec, ctx: Context) -> Encoding:
        if spec.qtype.is_float and self.weight_method != "minmax":
            why = f"scales of {spec.qtype} weights cover all values: {self.weight_method} is for integers"
            ctx.note("weight-method", edge.node, why)
        encoding = weight_encoding(edge, spec, self.weight_method)
        if encoding.dead:
            channels = plural(encoding.scale.size, "channel")
            why = f"'{edge.value.name}' is (nearly) zero in {len(encoding.dead)} of {channels}"
            ctx.note("dead-channels", edge.node, why, channels=list(encoding.dead[:64]), count=len(encoding.dead))
        return encoding
