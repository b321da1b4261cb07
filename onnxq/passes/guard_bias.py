"""`guard-bias`: int32 biases at input scale x weight scale, that never overflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from onnxq.biases.correction import input_means, mean_shift
from onnxq.biases.layers import Array, Biased, read_biased
from onnxq.biases.notes import BiasNotes
from onnxq.errors import DataError
from onnxq.facts import Edge, Encodings, Fact, Feeds, Goal, Plan, Ranges
from onnxq.numerics import bias as arithmetic
from onnxq.numerics.affine import quantize
from onnxq.numerics.spec import Encoding, QType
from onnxq.passbase import Context, Pass
from onnxq.rounding.gptq import requantized
from onnxq.targets.target import BiasPolicy, BiasRules


@dataclass(frozen=True)
class Guarded:
    """One planned bias with the encodings it depends on.

    Attributes:
        of: The layer.
        x: Encoding of its activation.
        policy: What becomes of it where it does not fit.
        integer_output: Whether a QuantizeLinear follows.
    """

    of: Biased
    x: Encoding
    policy: BiasPolicy
    integer_output: bool

    @property
    def s_x(self) -> float:
        """Scale of the activation in units of the bias."""
        return float(self.x.scale) * self.of.factor


@dataclass(frozen=True, kw_only=True)
class GuardBias(Pass):
    """`Encodings` -> `Encodings` with biases: ``b_q = rint(b / s_b)``, ``s_b = s_x * s_w`` rounded once, zero point 0.

    Where a channel's ``|b| / s_b`` does not fit int32 the target decides (`BiasRules.policy`; 16 bits have their own):

    ``raise-weight-scale``: kernels take ``s_x * s_w`` whatever the bias says, so that channel's weight scale grows
    until bias *and* sum of products fit int32, and its weights are requantized. Its output moves by at most
    ``K |b| (2^a - 1) / 2^32`` (K products, a: activation bits); the mean of that, ``E[dw x]``, is taken out of the
    bias where samples or means of inputs are there. ``own-scale``: the bias of that channel gets the smallest scale
    that holds it, exact to ``|b| / 2^32``, and the weights stay. ``float``: the layer's bias stays float.

    An all-zero channel is nothing but its bias: its scale, free to choose, is the smallest one that holds it. Scales
    that their type cannot hold (float16) leave the bias float. Notes name each adjusted channel. Integers chosen
    before, by `gptq`, become the nearest ones in channels that are raised.

    Attributes:
        bias: ``auto``: int32, by the target's policy. ``int32``: the same, but an error where that is impossible.
            ``float``: as it was, where the target allows that; int32 elsewhere, with a note. Targets that take no
            integers there get floats whatever is asked for.
    """

    name: ClassVar[str] = "guard-bias"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal, Ranges, Feeds})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Encodings})

    bias: Literal["auto", "int32", "float"] = "auto"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Adjust weight scales where needed, then encode every planned bias; the graph stays as it is.

        Raises:
            DataError: A bias holds NaN or infinity, or no scale can hold it and ``bias`` is ``int32``.
        """
        plan, old, goal = ctx.get(Plan), ctx.get(Encodings), ctx.maybe(Goal)
        rules = goal.target.bias if goal else BiasRules(QType.named("int32"), "raise-weight-scale")
        out = replace(old, weights=dict(old.weights), biases={}, corrected=dict(old.corrected))
        notes = BiasNotes(ctx)
        layers = list(self._layers(plan, old, rules, notes))
        adjusted = self._raise([g for g in layers if g.policy != "own-scale"], old, out, notes)
        for guarded in layers:
            self._encode(guarded, plan, out, notes)
        self._correct([g for g in layers if g.of.weight in adjusted], adjusted, model, out, ctx)
        notes.finish()
        ctx.put(out)
        return False

    def _layers(self, plan: Plan, old: Encodings, rules: BiasRules, notes: BiasNotes) -> Iterator[Guarded]:
        """The planned biases that become integers."""
        for edge in plan.biases:
            found = read_biased(edge)
            if isinstance(found, str):
                notes.left_float(edge, found)
                continue
            x, weight = old.read_by(found.source), _weight(found, old)
            assert x is not None
            integer_output = found.tail in plan.activations or edge.node.outputs[0] in plan.activations
            may_float = rules.float_bias in ("anywhere", "always") or (
                rules.float_bias == "float-output" and not integer_output
            )
            if (self.bias == "float" and may_float) or rules.float_bias == "always":
                notes.as_asked(edge)
                continue
            if self.bias == "float":
                notes.not_float(edge)
            if edge in old.corrected:
                found = replace(found, values=old.corrected[edge])
            policy = rules.policy_for(arithmetic.wide(x.spec, weight.spec))
            guarded = Guarded(found, x, policy, integer_output)
            if policy == "float" and may_float and self.bias == "auto":
                unfit = np.flatnonzero(_least(guarded, weight) > weight.scale)
                if unfit.size:
                    notes.left_float(edge, "it does not fit int32 at input scale x weight scale", unfit)
                    continue
            yield guarded

    def _raise(
        self, layers: list[Guarded], old: Encodings, out: Encodings, notes: BiasNotes
    ) -> dict[Edge, tuple[Encoding, Encoding]]:
        """Put raised weight scales into ``out``; each adjusted use with its encodings before and after.

        Uses that share an encoding go on sharing it: the largest need decides.
        """
        needed: dict[int, tuple[Encoding, Array]] = {}
        encodings = {g.of.weight: _weight(g.of, old) for g in layers}
        for guarded in layers:
            weight = encodings[guarded.of.weight]
            least = _least(guarded, weight)
            known = needed.get(id(weight))
            needed[id(weight)] = (weight, least if known is None else np.maximum(known[1], least))
        changed = {key: (w, new) for key, (w, least) in needed.items() if (new := arithmetic.raised(w, least)) is not w}
        readers = {g.of.weight: g for g in layers}
        adjusted: dict[Edge, tuple[Encoding, Encoding]] = {}
        for edge, weight in {**old.weights, **encodings}.items():
            if id(weight) not in changed:
                continue
            _, after = changed[id(weight)]
            reader = readers.get(edge)
            if edge not in old.weights and reader is not None:  # integers behind a DequantizeLinear
                after = replace(after, integers=quantize(reader.of.weights(), after))
            elif after.integers is not None and after.integers is weight.integers:
                after = requantized(edge, weight, after)
                changed[id(weight)] = (weight, after)
            out.weights[edge] = after
            adjusted[edge] = (weight, after)
            notes.raised(edge, weight, after, reader.x if reader else None, reader.of.terms if reader else 0)
        return adjusted

    def _encode(self, guarded: Guarded, plan: Plan, out: Encodings, notes: BiasNotes) -> None:
        of, edge = guarded.of, guarded.of.bias
        weight = _weight(of, out)
        product = arithmetic.product_scale(guarded.s_x, of.tiled(weight.scale), of.dtype)
        size = of.size if product.ndim else of.size.max(initial=0.0)
        scale = product
        if guarded.policy == "own-scale":
            zeros = of.tiled(arithmetic.empty(weight)) > 0
            scale = np.asarray(arithmetic.own_scale(np.where(zeros, 0, product).astype(product.dtype), size))
        fits = arithmetic.normal(scale)
        fits &= size <= np.where(fits, scale, 1).astype(np.float64) * (arithmetic.LARGEST + 128)
        if not fits.all():
            bad = np.flatnonzero(~fits)
            why = f"{of.dtype.name} holds no scale for it"
            if self.bias == "int32":
                where = f"{of.node.name} ({of.node.op_type}), bias '{edge.value.name}'"
                raise DataError(f"{where}: {why} in channel {int(bad[0])}; bias: auto leaves such a bias float")
            notes.left_float(edge, why, bad, guarded.integer_output)
            return
        out.biases[edge] = arithmetic.bias_encoding(plan.biases[edge], scale, of.values.ndim - 1)
        if guarded.policy == "own-scale":
            notes.own_scale(edge, product, scale)
        integers = not (guarded.x.spec.qtype.is_float or weight.spec.qtype.is_float)
        raised = guarded.policy != "own-scale" and not arithmetic.wide(guarded.x.spec, weight.spec)
        if integers and not raised:  # else no accumulator of integers, or the raise saw to it
            notes.headroom(edge, arithmetic.largest_sum(guarded.x.spec, weight.spec, of.terms), size / scale)

    def _correct(
        self,
        layers: list[Guarded],
        adjusted: dict[Edge, tuple[Encoding, Encoding]],
        model: ir.Model,
        out: Encodings,
        ctx: Context,
    ) -> None:
        """Take what raised channels add on average out of their biases."""
        layers = [g for g in layers if g.of.bias in out.biases and g.of.values.ndim == 1]
        raised = {g.of.bias: _raised(g.of, *adjusted[g.of.weight]) for g in layers}
        layers = [g for g in layers if raised[g.of.bias].any()]
        feeds = ctx.maybe(Feeds)
        source = feeds.source if feeds else None
        means = input_means([g.of.source for g in layers], model, ctx.maybe(Ranges), source, ctx) if layers else {}
        for guarded in layers:
            of, edge = guarded.of, guarded.of.bias
            shift = mean_shift(of, *adjusted[of.weight], means.get(of.source.value, {}))
            if shift is not None:
                limit = out.biases[edge].scale.astype(np.float64) * arithmetic.LARGEST
                corrected = of.values - np.where(raised[edge], shift, 0.0)
                out.corrected[edge] = np.clip(corrected, -limit, limit)


def _weight(of: Biased, encodings: Encodings) -> Encoding:
    """The encoding of a layer's weight: planned, or as stored."""
    found = encodings.weights.get(of.weight, of.stored)
    assert found is not None
    return found


def _least(guarded: Guarded, weight: Encoding) -> Array:
    """The smallest weight scale, per entry, at which the layer's bias and sums fit int32."""
    of, x = guarded.of, guarded.x.spec
    products = 0 if arithmetic.wide(x, weight.spec) else arithmetic.largest_sum(x, weight.spec, of.terms)
    room = arithmetic.rounding_room(x, of.terms)
    size = of.gathered(of.size, weight.scale)
    return arithmetic.least_scale(weight, size, guarded.s_x, products, room, of.dtype)


def _raised(of: Biased, before: Encoding, after: Encoding) -> Array:
    """Which channels have a coarser weight scale than before."""
    return np.broadcast_to(of.tiled(after.scale) > of.tiled(before.scale), of.size.shape)
