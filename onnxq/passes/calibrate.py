"""`calibrate`: the range of every planned activation, from samples."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import onnx_ir as ir

from onnxq.calibration.observers import Means, Method, Observation, Observer
from onnxq.calibration.runner import Run, Watch
from onnxq.diagnostics import Severity
from onnxq.errors import DataError, OptionError
from onnxq.facts import Fact, Feeds, Plan, Range, Ranges
from onnxq.look import graph_of, is_constant
from onnxq.numerics.histograms import BINS
from onnxq.ops import input_channel_axis
from onnxq.passbase import Context, Pass

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Calibrate(Pass):
    """`Plan`, `Feeds` -> `Ranges`.

    The float model runs on the samples, one at a time; memory does not grow with their number. Values whose range is
    known without data are taken from the plan; values inside If/Loop/Scan bodies cannot be observed and get no range.
    A value that is infinite by construction (a mask) gets no range either, with the reason; any other infinity, and
    NaN, stops the run and names value and sample.

    Attributes:
        method: ``minmax``, ``average`` (of each sample's ends), ``percentile``, ``entropy`` (KL divergence), ``mse``,
            or ``auto`` (``mse``, and the others as candidates for `spare-sensitive`).
        percentile: Share of the values to keep, in per cent, for method ``percentile``.
        bins: A histogram has more than this many bins.
        ranges: File of a calibration cache to use instead of samples; its method counts, not ``method``.
        samples: Use at most this many of the samples.
        means: Also keep the mean of each input channel of layers with weights, for bias correction.
        memory: Megabytes that the observed values of one sample may take before they are observed in several passes.
    """

    name: ClassVar[str] = "calibrate"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Feeds})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Ranges})

    method: Method = "minmax"
    percentile: float = 99.99
    bins: int = BINS
    ranges: str = ""
    samples: int | None = None
    means: bool = False
    memory: int = 1024

    def __post_init__(self) -> None:
        self._how()
        if self.ranges:  # then no samples are read
            object.__setattr__(self, "reads", frozenset({Plan}))
        for name, value in (("samples", self.samples), ("memory", self.memory)):
            if value is not None and value < 1:
                raise OptionError(f"calibrate: {name} must be at least 1, got {value}")

    def _how(self, method: str | None = None) -> Observation:
        own = next((m for m in get_args(Method) if m == method), self.method)
        return Observation(own, self.percentile, self.bins)

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Find the ranges; the graph stays as it is."""
        plan = ctx.get(Plan)
        ctx.put(_cached(self.ranges, plan, model, ctx) if self.ranges else self._observed(plan, model, ctx))
        return False

    def _observed(self, plan: Plan, model: ir.Model, ctx: Context) -> Ranges:
        how = self._how()
        ranges = Ranges(method=str(how))
        observers: dict[ir.Value, Observer] = {}
        for value, spec in plan.activations.items():
            if value in plan.fixed:
                lo, hi = plan.fixed[value]
                ranges.of[value] = Range(lo, hi, lo, hi)
            elif not spec.dynamic and _observable(value, model, ctx):
                observers[value] = self._how(plan.methods.get(value)).observer()
        means = _means(plan, model) if self.means else {}
        if observers or means:
            source = ctx.get(Feeds).source
            if self.samples is not None:
                source = replace(source, limit=min(self.samples, source.limit or self.samples))
            run = Run(model, source, _watches(observers, means), ctx, self.memory * 10**6)
            run.go()
            ranges.infinite, ranges.samples = run.infinite, run.samples
            if observers and not run.infinite and all(observer.lo > observer.hi for observer in observers.values()):
                raise DataError(f"{source.text}: all samples are empty, a dimension of theirs is 0")
        self._conclude(plan, observers, ranges, ctx)
        ranges.means = {value: found.result() for value, found in means.items() if value not in ranges.infinite}
        return ranges

    def _conclude(self, plan: Plan, observers: dict[ir.Value, Observer], ranges: Ranges, ctx: Context) -> None:
        for value, observer in observers.items():
            if value in ranges.infinite:
                ctx.note("infinite-range", value, f"it gets no range: {ranges.infinite[value]}")
                continue
            if observer.lo > observer.hi:
                ctx.note("no-range", value, "it was empty in every sample")
                continue
            found = ranges.of[value] = observer.range(plan.activations[value])
            if found.seen_lo == found.seen_hi and not is_constant(value):
                why = f"all its values were {found.seen_lo:g} in every sample: are the data what the model will see?"
                ctx.note("constant-activation", value, why, Severity.WARNING, value=found.seen_lo)


def _cached(file: str, plan: Plan, model: ir.Model, ctx: Context) -> Ranges:
    """The ranges of a cache file; each planned value without one is noted."""
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read the calibration cache {file}: {why}") from error
    try:
        ranges = Ranges.from_json(data, model)
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from error
    for value, spec in plan.activations.items():
        if value in plan.fixed:
            lo, hi = plan.fixed[value]
            ranges.of[value] = Range(lo, hi, lo, hi)
        elif not spec.dynamic and value not in ranges.of and value not in ranges.infinite:
            ctx.note("no-range", value, f"the calibration cache {Path(file).name} does not have it", Severity.WARNING)
    return ranges


def _observable(value: ir.Value, model: ir.Model, ctx: Context) -> bool:
    if graph_of(value) is model.graph:
        return True
    ctx.note("no-range", value, "it lies inside a subgraph, whose values cannot be observed")
    return False


def _means(plan: Plan, model: ir.Model) -> dict[ir.Value, Means]:
    """Accumulators for the activations that meet weights in a Conv, Gemm or MatMul of the main graph."""
    out: dict[ir.Value, Means] = {}
    for edge in plan.weights:
        for index, value in enumerate(edge.node.inputs[:2]):
            if index == edge.index or value is None or is_constant(value) or graph_of(value) is not model.graph:
                continue
            if input_channel_axis(edge.node, index, 2) is not None:
                out.setdefault(value, Means()).along(partial(input_channel_axis, edge.node, index))
    return out


def _watches(observers: dict[ir.Value, Observer], means: dict[ir.Value, Means]) -> dict[ir.Value, Watch]:
    """One watch a value, for one or both purposes."""
    out: dict[ir.Value, Watch] = {value: observer.add for value, observer in observers.items()}
    for value, mean in means.items():
        out[value] = partial(_both, out[value], mean.add) if value in out else mean.add
    return out


def _both(first: Watch, second: Watch, x: Array, lo: float, hi: float) -> None:
    first(x, lo, hi)
    second(x, lo, hi)
