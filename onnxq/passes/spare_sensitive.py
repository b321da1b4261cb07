"""`spare-sensitive`: measure the whole model, and leave float the few layers that cost most accuracy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import onnx_ir as ir

from onnxq.calibration.sources import Source
from onnxq.facts import Decision, Fact, Feeds, Goal, Plan, Range, Ranges
from onnxq.passbase import Context, Pass
from onnxq.planning import Planner
from onnxq.session import Runtime
from onnxq.trials.sensitivity import Search
from onnxq.trials.trial import Feeds as Sample
from onnxq.trials.trial import decibels, open_trial
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class SpareSensitive(Pass):
    """`Plan`, `Ranges` -> `Plan`, `Ranges`: the best calibration method, and sensitive layers left float.

    The float model with switchable pairs runs on a few samples. First each calibration method is tried for the whole
    model; then, if the outputs are noisier than ``enough``, layers are left float one at a time (in small models also
    two neighbours), and those that help most within a budget of work stay float. Outputs are compared, nothing is
    timed: same input, same result.

    Attributes:
        search: ``false`` skips the pass.
        enough: Signal to noise ratio of the outputs, in dB, at which nothing is spared; else 2 dB more are aimed at.
        budget: Share of the integer work that may go back to float.
        samples: Samples to measure on, spread over the data.
        trials: Candidates to try, at most: groups of neighbours, members of the best groups, then pairs of neighbours.
        max_layers: Models with more planned layers are left as they are, with a note.
    """

    name: ClassVar[str] = "spare-sensitive"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Ranges, Goal})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Feeds})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Ranges})

    search: bool = True
    enough: float = 30.0
    budget: float = 0.1
    samples: int = 8
    trials: int = 48
    max_layers: int = 400

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Search, then plan again; the graph stays as it is."""
        plan, ranges, goal = ctx.get(Plan), ctx.get(Ranges), ctx.get(Goal)
        feeds = ctx.maybe(Feeds)
        why = self._why_not(plan, feeds)
        if why or feeds is None:
            if self.search:
                ctx.note("search-skipped", None, why)
            return False
        samples = spread_samples(feeds.source, self.samples)
        known = dict(ranges.of)
        for value, (lo, hi) in plan.fixed.items():
            known.setdefault(value, Range(lo, hi, lo, hi))
        runtime = Runtime(custom_op_library=ctx.custom_op_library)
        banned = dict(plan.wishes.banned)
        with open_trial(model, plan, samples, runtime) as trial:
            search = Search(model, goal.target, trial, known, plan)
            methods = search.choose_method()
            first = decibels(search.noise)
            for nodes, before, after, share in search.spare(self.enough, self.budget, self.trials):
                others = "".join(f" with {n.name}" for n in nodes[1:])
                text = f"left float{others}: the outputs' signal to noise rises from {before:.1f} to {after:.1f} dB"
                ctx.note(
                    "sensitive", nodes[0], f"{text} for {share:.1%} of the integer work",
                    before_db=round(before, 2), after_db=round(after, 2), work=round(share, 4),
                )  # fmt: skip
                banned |= dict.fromkeys(nodes, Decision("float", "sensitive", text))
                ctx.progress("spare sensitive layers", search.runs, 0)
        for method, ratio in methods.items():
            methods[method] = round(ratio, 2)
        last = decibels(search.noise)
        measured = f"outputs measured on {plural(len(samples), 'sample')}"
        why = f"{measured}: {first:.1f} dB with all layers, {last:.1f} dB as planned"
        ctx.note("measured", None, why, first_db=round(first, 2), last_db=round(last, 2), methods_db=methods)
        ctx.put(Planner(goal.target, replace(plan.wishes, banned=banned)).make(model))
        ctx.put(replace(ranges, of=search.ranges))
        return False

    def _why_not(self, plan: Plan, feeds: Feeds | None) -> str:
        """Why there is nothing to search, or no way to; empty if there is."""
        if not self.search:
            return "switched off"
        if feeds is None:
            return "no samples to measure on"
        if not plan.activations:
            return "no planned activations"
        if len(plan.weights) > self.max_layers:
            return f"{plural(len(plan.weights), 'layer')}, more than max-layers ({self.max_layers})"
        return ""


def spread_samples(source: Source, count: int) -> list[Sample]:
    """``count`` samples spread evenly over the source, or its first ones where its length is unknown."""
    size = source.size
    if size is None or size <= count:
        return list(islice(source, count))
    wanted = {i * size // count for i in range(count)}
    return [feeds for i, feeds in enumerate(source) if i in wanted]
