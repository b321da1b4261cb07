"""`gptq`: round weights so that each layer's output stays what it was on the samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from onnxq.calibration.moments import Moments
from onnxq.calibration.runner import Run, Watch, each
from onnxq.calibration.sources import Source
from onnxq.edit import Namer, replace_initializer
from onnxq.errors import OptionError
from onnxq.facts import Axes, Edge, Encodings, Fact, Feeds, Plan, Ranges, Skips
from onnxq.look import graph_of
from onnxq.numerics.gptq import Curvature, Order
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context, Pass
from onnxq.rounding.gptq import Scales, SharedWeight
from onnxq.rounding.products import Product, read_product
from onnxq.rounding.sequential import Sequential
from onnxq.weights import weight_tensor
from onnxq.wording import plural

View = tuple[object, ...]
Rounded = tuple[SharedWeight, Encoding, float]


@dataclass(frozen=True, kw_only=True)
class Gptq(Pass):
    """`Encodings` -> `Encodings` with integers for the weights, chosen by GPTQ instead of rounding to nearest.

    The speed of the model stays. For each Conv, Gemm, MatMul, LSTM, GRU and RNN the second moments of its input, as
    quantized, are collected from the float model (for a recurrence weight those of the states); layers whose
    factorization would take too long keep nearest rounding, the costliest first, with one note. No row gets a larger
    output error on the samples than by rounding to nearest.

    Attributes:
        rounding: ``nearest`` skips the pass.
        scales: ``keep`` them; ``search`` the one of each row that leaves the least output error; or choose them by
            ``mse`` or ``hqq``, errors weighted by the energy of the inputs they meet, as ``search`` does for blocks.
            With new scales the pass has to stand before `guard-bias`.
        inputs: ``float``: of the float model, all layers in one run. ``rounded``: of the model as rounded so far, layer
            by layer; each makes up for the errors in front of it, and its bias for their mean
            (`onnxq.rounding.sequential`). Two runs over the samples for each layer, worth it for 4 bits in deep models.
        order: Inputs by falling energy (``activation``) or as they lie (``natural``).
        effort: Billions of operations that all layers together may take; 150 are some ten seconds on two cores.
        memory: Megabytes that second moments (``rounded``: values of the float model) may take at a time; more needs
            several passes over the samples.
        samples: Use at most this many samples.
    """

    name: ClassVar[str] = "gptq"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Feeds})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Encodings})
    keeps: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Axes, Skips, Ranges})

    rounding: Literal["gptq", "nearest"] = "gptq"
    scales: Scales = "keep"
    inputs: Literal["float", "rounded"] = "float"
    order: Order = "activation"
    effort: float = 150.0
    memory: int = 512
    samples: int = 32

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Choose the integers; True if biases were corrected, all else stays as it is.

        Raises:
            OptionError: Scales are to be chosen again, but biases are encoded with the old ones; or biases make up for
                weights as they are.
        """
        feeds, old = ctx.maybe(Feeds), ctx.get(Encodings)
        if self.rounding == "nearest":
            return False
        if feeds is None:
            ctx.note("gptq-skipped", None, "no samples to measure on: weights are rounded to nearest")
            return False
        if self.scales != "keep" and old.biases:
            raise OptionError(
                f"gptq: scales={self.scales} changes scales that biases are encoded with; put guard-bias behind it"
            )
        if old.corrected:
            raise OptionError("gptq changes weights whose errors biases make up for; put guard-bias behind it")
        weights = self._affordable(_weights(old, model, ctx), ctx)
        source = replace(feeds.source, limit=min(self.samples, feeds.source.limit or self.samples))
        shares: list[float] = []
        rounded: dict[tuple[ir.Value, int], Encoding] = {}
        run = Sequential(model, old, source, self.order, self.scales, ctx, self.memory * 10**6)
        found = run.go(weights) if self.inputs == "rounded" else self._all(weights, model, old, source, ctx)
        for weight, encoding, share in found:
            rounded[weight.edge.value, id(weight.encoding)] = encoding
            shares.append(share)
        if shares:
            times = 1 / max(float(np.mean(shares)), 1e-30)
            why = (
                f"weights of {plural(len(shares), 'layer')} rounded by GPTQ: "
                f"{times:.1f} times less output error than to nearest"
            )
            ctx.note("gptq", None, why, layers=len(shares), times=round(times, 2))
        # Uses in bodies share the copy, though nobody observes them.
        ctx.put(replace(old, weights={e: rounded.get((e.value, id(w)), w) for e, w in old.weights.items()}))
        namer = Namer(model)
        for edge, bias in run.biases.items():
            replace_initializer(edge.value, bias, namer)
        return bool(run.biases)

    def _all(
        self, weights: list[SharedWeight], model: ir.Model, encodings: Encodings, source: Source, ctx: Context
    ) -> Iterator[Rounded]:
        """On the inputs of the float model, as many weights at a time as the memory allows."""
        for part in self._parts(weights):
            moments: dict[View, Moments] = {}
            watches: dict[ir.Value, list[Watch]] = {}
            for product in (p for weight in part for p in weight.products):
                if product.view not in moments:
                    moments[product.view] = Moments(product, encodings.activations.get(product.source))
                    watches.setdefault(product.source, []).append(moments[product.view].add)
            shown = {value: partial(each, tuple(adds)) for value, adds in watches.items()}
            Run(model, source, shown, ctx, self.memory * 10**6).go()
            yield from self._round(part, moments, ctx)

    def _round(self, weights: list[SharedWeight], moments: dict[View, Moments], ctx: Context) -> Iterator[Rounded]:
        """Each weight that saw samples, its encoding with integers, and the share of nearest rounding's error left."""
        last: tuple[tuple[View, ...], Curvature] | None = None
        for i, weight in enumerate(weights):
            ctx.progress("round weights", i, len(weights))
            views = tuple(p.view for p in weight.products)
            found = moments[views[0]]
            for view in views[1:]:
                found = found.plus(moments[view])
            if not found.rows:
                continue
            if last is None or last[0] != views:
                last = views, Curvature.of(found.hessian, order=self.order)
            yield weight, *weight.round(found.hessian, last[1], self.scales)

    def _affordable(self, weights: list[SharedWeight], ctx: Context) -> list[SharedWeight]:
        """The weights that fit the effort, cheapest first chosen, in graph order."""
        left = self.effort * 1e9
        chosen: set[SharedWeight] = set()
        for weight in sorted(weights, key=lambda w: w.work(self.scales)):
            left -= weight.work(self.scales)
            if left < 0:
                break
            chosen.add(weight)
        if len(chosen) < len(weights):
            all_ = plural(len(weights), "layer")
            why = f"{len(weights) - len(chosen)} of {all_} too large for the effort of gptq: nearest"
            ctx.note("gptq-effort", None, why, layers=len(weights) - len(chosen))
        return [weight for weight in weights if weight in chosen]

    def _parts(self, weights: list[SharedWeight]) -> list[list[SharedWeight]]:
        """Neighbours whose moments fit the memory together."""
        parts: list[list[SharedWeight]] = []
        seen: set[View] = set()
        room = 0.0
        for weight in weights:
            new = {p.view: p for p in weight.products if p.view not in seen}
            size = sum((p.groups if p.apart else 1) * p.inputs**2 * 8 for p in new.values())
            if not parts or size > room:
                parts.append([])
                seen, room = set(), self.memory * 1e6
            parts[-1].append(weight)
            seen |= set(new)
            room -= size
        return parts


def _weights(encodings: Encodings, model: ir.Model, ctx: Context) -> list[SharedWeight]:
    """The weights of main-graph layers whose inputs can be observed, each encoding once; a note for each other one."""
    uses: dict[tuple[ir.Value, int], list[Product]] = {}
    for edge, encoding in encodings.weights.items():
        qtype = encoding.spec.qtype
        found = f"GPTQ chooses integers, not {qtype}" if qtype.is_float else _product(edge, model)
        if isinstance(found, Product):
            uses.setdefault((edge.value, id(encoding)), []).append(found)
        elif found:
            ctx.note("gptq-nearest", edge.node, f"'{edge.value.name}' is rounded to nearest: {found}")
    return [SharedWeight(tuple(products), encodings.weights[products[0].edge]) for products in uses.values()]


def _product(edge: Edge, model: ir.Model) -> Product | str:
    if edge.node.graph is not model.graph:
        return "its inputs are inside a body, where nobody observes them"
    tensor = weight_tensor(edge.value)
    assert tensor is not None
    found = read_product(edge, tuple(int(d) for d in tensor.shape.numpy()))
    if isinstance(found, Product) and graph_of(found.source) is not model.graph:
        return "its inputs are inside a body, where nobody observes them"
    return found
