"""Which layers cost most accuracy, and what leaving them float costs in time: a search over trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxq.encoding import activation_encodings
from onnxq.facts import Decision, Plan, Range
from onnxq.layers import Layer, read_layer
from onnxq.look import dims_of, onnx_op
from onnxq.planning import Planner
from onnxq.planning.requantized import requantized
from onnxq.targets import Target
from onnxq.trials.trial import Trial, decibels

# Work of an elementwise op per value, in products: it moves memory, and so does the pair around it.
ELEMENTWISE = 8
# Once a model needs sparing, it is spared until it is this many dB better than enough.
MARGIN = 2.0
# A step must take away this share of the noise to be worth a layer.
WORTHWHILE = 0.015

Ranges = Mapping[ir.Value, Range]


@dataclass
class Search:
    """State of one search.

    Attributes:
        model: The prepared float model.
        target: Rules of the runtime.
        trial: Open trial session of the first plan.
        ranges: Range of every planned value.
        plan: The best plan so far.
        noise: Its noise share.
        runs: Plans tried so far.
    """

    model: ir.Model
    target: Target
    trial: Trial
    ranges: dict[ir.Value, Range]
    plan: Plan
    noise: float = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.noise = self._try(self.plan, self.ranges)

    def choose_method(self) -> dict[str, float]:
        """Take the calibration method with the least noise for all values; returns dB by method."""
        names = {name for r in self.ranges.values() for name in r.candidates}
        found: dict[str, float] = {}
        for name in sorted(names):
            ranges = {v: _with(r, name) for v, r in self.ranges.items()}
            noise = self._try(self.plan, ranges)
            found[name] = decibels(noise)
            if noise < self.noise:
                self.noise, best = noise, ranges
                self.ranges = best
        return found

    def spare(
        self, enough: float, budget: float, limit: int
    ) -> Iterator[tuple[tuple[ir.Node, ...], float, float, float]]:
        """Leave layers float one by one, the costliest in accuracy first; then, with trials left, two neighbours.

        A value between two layers stays quantized as long as one of them runs on integers.

        Args:
            enough: Signal to noise ratio, in dB, at which nothing is spared; otherwise stop `MARGIN` above it.
            budget: Share of the plan's work that may go back to float.
            limit: Try at most this many candidates.

        Yields:
            Nodes, dB before, dB after, share of the work.
        """
        total = self._work(self.plan)
        left, start = budget * total, self.runs
        if decibels(self.noise) >= enough or total == 0:
            return
        for find in (self._singles, self._neighbours):
            first = self.noise
            for noise, nodes in sorted(find(limit - self.runs + start), key=lambda s: s[0]):
                if noise > first * (1 - WORTHWHILE):
                    break
                plan = self._without(self.plan, *nodes)
                cost = self._work(self.plan) - self._work(plan)
                if cost > left or self._worse(plan):
                    continue
                together = self._try(plan, self.ranges)
                if together > self.noise * (1 - WORTHWHILE):
                    continue
                yield nodes, decibels(self.noise), decibels(together), cost / total
                self.plan, self.noise, left = plan, together, left - cost
                if decibels(self.noise) >= enough + MARGIN:
                    return

    def _worse(self, plan: Plan) -> bool:
        """Whether a plan leaves layers float that the runtime then rounds more coarsely than we would."""
        return len(requantized(plan)) > len(requantized(self.plan))

    def _singles(self, limit: int) -> list[tuple[float, tuple[ir.Node, ...]]]:
        """Noise with one node left float, for the nodes of the most telling runs of neighbours.

        Neighbours are first tried together, then the members of the best groups one by one: a third of the trials
        finds where the noise is made, the rest who makes it.
        """
        nodes = self._candidates()
        size = -(-len(nodes) // max(limit // 3, 1))
        groups = [nodes[i : i + size] for i in range(0, len(nodes), size)]
        if size > 1:
            groups.sort(key=lambda group: self._try(self._without(self.plan, *group), self.ranges))
        out: list[tuple[float, tuple[ir.Node, ...]]] = []
        seen: set[frozenset[object]] = set()
        for node in (node for group in groups for node in group):
            if len(out) >= limit - len(groups):
                break
            plan = self._without(self.plan, node)
            key = frozenset(plan.activations)
            if key not in seen and not self._worse(plan):
                seen.add(key)
                out.append((self._try(plan, self.ranges), (node,)))
        return out

    def _neighbours(self, limit: int) -> list[tuple[float, tuple[ir.Node, ...]]]:
        """Noise with a layer and one that reads it left float, for the first ``limit`` such pairs in graph order."""
        makers: dict[ir.Value, ir.Node] = {}
        nodes = self._candidates()
        for node in nodes:
            makers[self._tail(node)] = node
        pairs = ((makers[value], e.node) for e, value in self.plan.readers.items() if value in makers)
        chosen = list(dict.fromkeys(pair for pair in pairs if pair[1] in nodes))[: max(limit, 0)]
        return [(self._try(self._without(self.plan, *pair), self.ranges), pair) for pair in chosen]

    def _tail(self, node: ir.Node) -> ir.Value:
        """The value a layer or a single op hands on."""
        layer = read_layer(node, self.plan.wishes.banned) if self.plan.decisions[node].code == "layer" else None
        return layer.tail if isinstance(layer, Layer) else node.outputs[0]

    def _try(self, plan: Plan, ranges: Ranges) -> float:
        self.runs += 1
        return self.trial.noise(plan, activation_encodings(plan, ranges))

    def _without(self, plan: Plan, *nodes: ir.Node) -> Plan:
        why = Decision("float", "sensitive", "costs more accuracy than it saves time")
        wishes = replace(plan.wishes, banned={**plan.wishes.banned, **dict.fromkeys(nodes, why)})
        return Planner(self.target, wishes).make(self.model)

    def _candidates(self) -> list[ir.Node]:
        """Integer nodes in graph order."""
        return [
            node
            for node, decision in self.plan.decisions.items()
            if decision.status == "integer" and decision.code not in ("part-of-layer", "already-quantized")
        ]

    def _work(self, plan: Plan) -> float:
        """Products that a plan computes on integers for one sample."""
        work = 0.0
        for node, decision in plan.decisions.items():
            if decision.status != "integer" or decision.code == "part-of-layer":
                continue
            layer = read_layer(node, plan.wishes.banned) if decision.code == "layer" else None
            if isinstance(layer, Layer):
                work += self._size(layer) * layer.terms
            elif node.outputs[0] in self.ranges:
                work += self.ranges[node.outputs[0]].size * ELEMENTWISE
        return work

    def _size(self, layer: Layer) -> float:
        """Values that a layer computes for one sample."""
        known = self.ranges.get(layer.tail)
        if known is not None:
            return known.size
        first = self.ranges.get(layer.inputs[0].value)  # nobody observes an output that stays float
        if first is not None and layer.channels and onnx_op(layer.node, "Gemm", "MatMul"):
            return first.size / max(layer.terms, 1) * layer.channels
        dims = dims_of(layer.tail)
        return 0.0 if dims is None else float(math.prod(d or 1 for d in dims))


def _with(known: Range, method: str) -> Range:
    if method not in known.candidates:
        return known
    lo, hi = known.candidates[method]
    return replace(known, lo=lo, hi=hi)
