"""The search for the cheapest plan that meets a bound: estimate all, measure few, take the best that was measured."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxq.border import open_model
from onnxq.calibration.memory import inferred_dims
from onnxq.calibration.sources import Data, open_source
from onnxq.collector import relaxed
from onnxq.context import Context, Progress
from onnxq.diagnosis.comparing import size_of
from onnxq.errors import OptionError
from onnxq.facts import Feeds, Goal, Plan, Range, Ranges, Wishes
from onnxq.passbase import Pipeline
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.spare_sensitive import spread_samples
from onnxq.planfile import plan_json
from onnxq.planning import Planner
from onnxq.planning.requantized import requantized
from onnxq.recipe import load_recipe
from onnxq.session import Runtime
from onnxq.targets import Target, load_target
from onnxq.trials.sensitivity import Search as Trials
from onnxq.trials.trial import decibels, open_trial
from onnxq.tuning import outcome
from onnxq.tuning.bench import Answer, Bench, answer_of, file_bytes
from onnxq.tuning.choices import Part, Types, becomes, links_of, parts_of, wishes_for
from onnxq.tuning.costs import Costs
from onnxq.tuning.noise import Noise, probe
from onnxq.tuning.outcome import Bounds, Point, Tuning
from onnxq.tuning.search import Search, State, spread

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.calibration.images import Preprocessing

PROBES = 4
"""Samples that sensitivities are measured on."""
FRONT = 8
"""Points of the front that are measured, spread over its accuracies."""
REFINED = 4
"""Points measured between those, where the bound is crossed."""
RACE_SECONDS = 1.0


@relaxed()
def tune(
    model: ModelProto | bytes | str | Path,
    data: Data,
    *,
    output: str | Path | None = None,
    min_sqnr: float | None = None,
    min_cosine: float | None = None,
    min_agreement: float | None = None,
    max_size: float | None = None,
    max_latency_ratio: float | None = None,
    target: str | Path | Target = "ort-cpu",
    answer: Answer = answer_of,
    rounding: str = "gptq",
    samples: int | None = None,
    preprocessing: Preprocessing | str | Path | None = None,
    progress: Progress | None = None,
    custom_op_library: str | None = None,
    seed: int = 0,
) -> Tuning:
    """Find what each layer should become: 8 bits, run-time quantized, 16 bits, integer weights only, or float.

    With a bound on accuracy the cheapest plan that meets all bounds is taken (latency by a table, or size where that is
    bounded), else the most exact one. Only ``max_latency_ratio`` depends on timings.

    Args:
        model: The float model; a path is read lazily.
        data: Samples, to calibrate and to judge: what `onnxq.quantize` takes.
        output: Where to write the model; without it `Tuning.model` holds a message.
        min_sqnr: Least signal to noise ratio of every output, in dB.
        min_cosine: Least cosine of every output.
        min_agreement: Least share of samples with the float model's answer.
        max_size: Most bytes of the model.
        max_latency_ratio: Most latency, measured (CPU time on one thread), as a share of the given model's.
        target: Name of a target, path of a target file, or a `Target`.
        answer: Reduces the outputs of a sample to its answer, compared with `numpy.array_equal`, row by row where it
            is an array of two axes; by default the arg max of every output along its class axis, a row for each entry
            of a batch.
        rounding: ``gptq`` or ``nearest``.
        samples: Take at most this many samples.
        preprocessing: How images become inputs.
        progress: Called with (label, done, total).
        custom_op_library: Shared library with kernels of custom ops.
        seed: Seed of everything random.

    Returns:
        All that was found. Where no plan meets the bounds, ``chosen`` is None and nothing is written.

    Raises:
        OptionError: No bound, or a bad one; a model of which nothing can be quantized.
        OnnxqError: As for `onnxq.quantize`.
    """
    bounds = Bounds(min_sqnr, min_cosine, min_agreement, max_size, max_latency_ratio)
    if rounding not in ("gptq", "nearest"):
        raise OptionError(f"rounding must be gptq or nearest, got '{rounding}'")
    told: Progress = progress or (lambda *_: None)
    runtime = Runtime(custom_op_library=custom_op_library)
    crossing = open_model(model)
    source = open_source(data, crossing.model, preprocessing=preprocessing, samples=samples, seed=seed)
    rules = load_target(target)
    with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
        bench = Bench(model, rules, source, Path(folder), answer, rounding, told, runtime, seed)
        run = _Run(crossing.model, bounds, bench)
        return run.go(Path(output) if output is not None else None)


@dataclass
class _Run:
    """One search."""

    model: ir.Model
    bounds: Bounds
    bench: Bench
    seconds: dict[str, float] = field(default_factory=dict)
    points: dict[int, Point] = field(default_factory=dict)
    front: list[State] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def go(self, output: Path | None) -> Tuning:
        """Search, measure, choose, write."""
        with self._timed("calibrate"):
            ctx = self._calibrated()
        plan, ranges = ctx.get(Plan), ctx.get(Ranges)
        if not plan.weights and not plan.activations:
            raise OptionError("tune has nothing to choose: no layer of this model can be quantized")
        with self._timed("sensitivity"):
            noise, known = self._sensitivity(plan, ranges)
        self._types = Types.of(self.bench.target, plan.wishes)
        self.parts = parts_of(self.model, self.bench.target, plan, self._types)
        fixed = {value: (known[value].lo, known[value].hi) for value in plan.activations if value in known}
        self._base = replace(plan.wishes, ranges=fixed)
        self._costs = Costs(self.model, known, inferred_dims(self.model, next(iter(self.bench.source))))
        with self._timed("search"):
            tried = self._search(noise, links_of(self.parts, plan))
        self._float = self._costs.latency(self._plan(tuple(len(p.choices) - 1 for p in self.parts)))
        with self._timed("measure"):
            self._measure()
        with self._timed("latency"):
            float_ms = self._race()
        order = sorted(self.points)
        points = [self.points[i] for i in order]
        chosen = outcome.choose(points, self.bounds)
        best = outcome.nearest(points, self.bounds) if chosen is None else chosen
        wanted = self._plan(self.front[order[best]].picks)
        with self._timed("write"):
            result = self.bench.build(plan_json(wanted), output) if chosen is not None else None
        size = size_of(self.bench.model, open_model(self.bench.model))
        return Tuning(
            self.bench.source.describe(), self.bench.samples, self.bounds, self.bench.target.name, size,
            float_ms, points, chosen, best, self._choices(wanted, noise), plan_json(wanted),
            result.report if result else ctx.report, {k: round(s, 2) for k, s in self.seconds.items()}, tried,
            output if result else None, result.model if result and output is None else None,
        )  # fmt: skip

    def _calibrated(self) -> Context:
        """Prepare the model; a plan that quantizes all it can, nothing at run time, and its ranges."""
        bench = self.bench
        ctx = Context(seed=bench.seed, progress=bench.progress, custom_op_library=bench.runtime.custom_op_library)
        ctx.put(Goal(bench.target), Feeds(bench.source))
        steps = load_recipe("int8", {"dynamic": "never"}).steps
        last = next(i for i, step in enumerate(steps) if isinstance(step, LeaveFloat))
        Pipeline(steps=steps[: last + 1], label="tune").run(self.model, ctx)
        return ctx

    def _sensitivity(self, plan: Plan, ranges: Ranges) -> tuple[Noise, dict[ir.Value, Range]]:
        """How noise reaches the outputs, and ranges by the method that suits the model best."""
        known = dict(ranges.of)
        for value, (lo, hi) in plan.fixed.items():
            known.setdefault(value, Range(lo, hi, lo, hi))
        probes = spread_samples(self.bench.source, PROBES)
        with open_trial(self.model, plan, probes, self.bench.runtime) as trial:
            trials = Trials(self.model, self.bench.target, trial, known, plan)
            trials.choose_method()
            return (
                probe(self.model, self.bench.target, plan, trials.ranges, trial, self.bench.progress),
                trials.ranges,
            )

    def _search(self, noise: Noise, links: Iterator[tuple[int, int]]) -> int:
        """Fill in the front; returns how many plans were estimated."""
        start = tuple(0 for _ in self.parts)
        allowed = len(requantized(self._plan(start)))
        small = self.bounds.max_size is not None

        def evaluate(picks: tuple[int, ...]) -> tuple[float, float]:
            plan = self._plan(picks)
            if len(requantized(plan)) > allowed:  # the runtime would round more coarsely than we do
                return math.inf, math.inf
            latency, size = self._costs.latency(plan), self._costs.size(plan)
            # The other one breaks ties.
            return (size + 1e-9 * latency if small else latency + 1e-4 * size), noise(plan)

        search = Search([len(p.choices) for p in self.parts], evaluate, links)
        self.front = search.path(start)
        return len(search.tried)

    def _plan(self, picks: tuple[int, ...]) -> Plan:
        wishes: Wishes = wishes_for(picks, self.parts, self._types, self._base)
        return Planner(self.bench.target, wishes).make(self.model)

    def _measure(self) -> None:
        """Build and judge points spread over the front, then more of them where the bounds are crossed."""
        first = spread(self.front, FRONT)
        total = min(len(self.front), len(first) + REFINED)
        for index in first:
            self._judge(index, total)
        while len(self.points) < total:
            index = self._between()
            if index < 0:
                break
            self._judge(index, total)
        order = sorted(self.points)
        for i in outcome.beaten([self.points[i] for i in order], self.bounds):
            del self.points[order[i]]

    def _between(self) -> int:
        """The point of the front half way from the best measured one to its neighbour on the wanted side, or -1."""
        order = sorted(self.points)
        points = [self.points[i] for i in order]
        best = outcome.choose(points, self.bounds)
        here = outcome.nearest(points, self.bounds) if best is None else best
        sides = [here - 1, here] if best is None else [here - 1] if self.bounds.accuracy else [here]
        for left in sides:
            if 0 <= left < len(order) - 1 and order[left + 1] - order[left] > 1:
                return (order[left] + order[left + 1]) // 2
        return -1

    def _judge(self, index: int, total: int) -> None:
        plan, file = self._plan(self.front[index].picks), self._file(index)
        self.bench.build(plan_json(plan), file)
        judged = self.bench.judge(file)
        self.points[index] = point = Point(
            file_bytes(file), judged.sqnr_db, judged.cosine, judged.agreement, decibels(self.front[index].noise),
            self._costs.latency(plan) / self._float, self._counts(plan),
        )  # fmt: skip
        if self.bounds.max_latency_ratio is not None:
            self._time(point, file)
        self.bench.progress("measure plans", len(self.points), total)

    def _race(self) -> float | None:
        """Time what was not timed yet; the float model's milliseconds beside the last of them."""
        self._float_ms: float | None = None
        for done, index in enumerate(sorted(self.points)):
            if self.points[index].ratio is None:
                self._time(self.points[index], self._file(index))
            self.bench.progress("measure latency", done + 1, len(self.points))
        return self._float_ms

    def _time(self, point: Point, file: Path) -> None:
        self._float_ms, point.milliseconds = self.bench.race(file, RACE_SECONDS)
        point.ratio = point.milliseconds / self._float_ms

    def _file(self, index: int) -> Path:
        return self.bench.folder / f"plan-{index}.onnx"

    def _counts(self, plan: Plan) -> dict[str, int]:
        names = becomes(plan)
        return dict(sorted(Counter(names[n] for p in self.parts for n in p.nodes).items()))

    def _choices(self, plan: Plan, noise: Noise) -> list[outcome.Part]:
        """What became of each part, and what it would do to the outputs alone."""
        names, exact = becomes(plan), tuple(len(p.choices) - 1 for p in self.parts)
        out = []
        for i, part in enumerate(self.parts):
            alone = decibels(noise(self._plan((*exact[:i], 0, *exact[i + 1 :]))))
            db = round(alone, 1) if math.isfinite(alone) else None
            out += [outcome.Part(n.name or "", n.op_type, names[n], db) for n in part.nodes]
        return out

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] = time.perf_counter() - start
