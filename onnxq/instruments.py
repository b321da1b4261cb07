"""Instruments: what can watch a pipeline while it runs. Each is one class; a run takes any number of them."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
import traceback
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq import border
from onnxq.calibration.sources import Source, open_source
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.errors import InputError, OptionError, PassFailed, near
from onnxq.facts import Feeds
from onnxq.passbase import Instrument, Pipeline, Step, flatten, step_name
from onnxq.recipe import dump
from onnxq.registry import Registry
from onnxq.session import Runtime, open_session
from onnxq.validity import interface, verify

Array = np.ndarray[Any, Any]


class Timing(Instrument):
    """Wall time of each step, in seconds, into ``report.seconds``."""

    def __init__(self) -> None:
        self._start = 0.0

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: tuple[Step, ...]) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        """Stop it."""
        ctx.report.seconds.append((step_name(step), time.perf_counter() - self._start))


class DumpAfter(Instrument):
    """Write the model after some steps: ``<folder>/<number>-<step>.onnx``, numbered through the whole run.

    Args:
        folder: Where to; made when the first model is written.
        names: Steps after which to write. ``all`` means every step that changed the graph.
        pipeline: What is going to run, to find misspelt names at once.

    Raises:
        OptionError: No step has such a name.
    """

    def __init__(self, folder: str | Path, names: Iterable[str], pipeline: Pipeline) -> None:
        self._folder, self._names, self._number = Path(folder), frozenset(names), 0
        known = {step_name(step) for step in flatten(pipeline)}
        for name in sorted(self._names - known - {"all"}):
            raise OptionError(f"dump-after {name}: no step of {pipeline} is called so{near(name, known)}")

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        """Write the model if it is asked for."""
        self._number += 1
        name = step_name(step)
        if name in self._names or ("all" in self._names and changed):
            border.save(model, self._folder / f"{self._number:02}-{_file_name(name)}.onnx")


class VerifyEach(Instrument):
    """Check the model after each step; the first step that breaks it is named.

    A step may not leave an invalid model (`onnxq.validity`), change names or number of inputs and outputs, or claim to
    have changed nothing although it did.
    """

    def __init__(self) -> None:
        self._interface: tuple[tuple[str, ...], ...] | None = None
        self._print = b""

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: tuple[Step, ...]) -> None:
        """Check the model that comes in, once.

        Raises:
            InputError: It is invalid before any step ran.
        """
        if self._interface is None:
            found, self._print = verify(model)
            if found:
                raise InputError(f"the model is invalid before the first step: {found}")
            self._interface = interface(model)

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        """Check the model that came out.

        Raises:
            PassFailed: The step broke it.
        """
        name, earlier = step_name(step), self._print
        found, self._print = verify(model)
        if found:
            raise PassFailed(f"{name} broke the model: {found}")
        now, before = interface(model), self._interface
        if now != before:
            raise PassFailed(f"{name} changed the inputs or outputs from {before} to {now}")
        if not changed and self._print != earlier:
            raise PassFailed(f"{name} changed the graph but said that it did not, so facts would go stale unseen")


class CompareEach(Instrument):
    """Run the model before and after each step that changed it, with true semantics; how far are the outputs apart?

    Samples are those of the run (`onnxq.facts.Feeds`), else random ones. Rows go to ``report.tables["compare-each"]``:
    the step, its worst output, the largest absolute error there against the model before the step, the same relative to
    the largest absolute value of the reference, and the largest relative error against the first model that ran. A
    model that onnxruntime cannot run (an old opset, say) is a note, and the comparison goes on with the next one.

    Args:
        samples: How many to use.
    """

    def __init__(self, samples: int = 4) -> None:
        self._samples = samples
        self._feeds: Source | None = None
        self._first: list[list[Array]] = []
        self._last: list[list[Array]] = []

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: tuple[Step, ...]) -> None:
        """Run the first model, once.

        Raises:
            OptionError: There are no samples, and the model's inputs have open dimensions.
        """
        if self._feeds is None:
            given = ctx.maybe(Feeds)
            self._feeds = given.source if given else open_source("random", model, samples=self._samples, seed=ctx.seed)
            self._first = self._last = self._run(model, ctx, f"before {step_name(step)}")

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        """Run the changed model and compare."""
        if not changed:
            return
        before, self._last = self._last, self._run(model, ctx, f"after {step_name(step)}")
        self._first = self._first or self._last
        if before and self._last and model.graph.outputs:
            errors = [_error(*pair) for pair in zip(_by_output(before), _by_output(self._last), strict=True)]
            total = [_error(*pair)[1] for pair in zip(_by_output(self._first), _by_output(self._last), strict=True)]
            worst = max(range(len(errors)), key=lambda i: errors[i][1])
            row = {"step": step_name(step), "output": model.graph.outputs[worst].name, "max_error": errors[worst][0]}
            row |= {"relative": errors[worst][1], "total_relative": max(total)}
            ctx.report.tables.setdefault("compare-each", []).append(row)

    def _run(self, model: ir.Model, ctx: Context, when: str) -> list[list[Array]]:
        """Outputs by sample; nothing if the model does not run."""
        runtime = Runtime(true_semantics=True, custom_op_library=ctx.custom_op_library)
        try:
            with open_session(model, runtime) as session:
                return [session.run(feeds) for feeds in islice(iter(self._feeds or ()), self._samples)]
        except InputError as error:
            ctx.note("not-comparable", None, f"{when}: {error}", Severity.WARNING)
            return []


class Reproducer(Instrument):
    """When a step fails, write all that is needed to see it fail again.

    The folder gets ``model.onnx``, ``recipe.yaml`` (what was left to run from there), ``command.txt``, ``error.txt``
    and ``facts/*.json`` for reading. The model is the one before the failing step, or an earlier one: the last from
    which the rest of the recipe can start without facts about the graph, since those are not in a model file.

    Args:
        folder: Where to.
        arguments: Command-line arguments that the rest needs, for example ``["--data", "samples"]``.
        registry: Names that recipes use.
    """

    def __init__(self, folder: str | Path, arguments: Sequence[str], registry: Registry) -> None:
        self._folder, self._arguments, self._registry = Path(folder), tuple(arguments), registry
        self._model: ir.Model | None = None
        self._rest: tuple[Step, ...] = ()

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: tuple[Step, ...]) -> None:
        """Keep the structure of the model (weights are shared) where the rest of the recipe could start."""
        if all(fact.stays for fact in ctx.facts):
            with contextlib.suppress(RuntimeError):  # a graph that an earlier step broke has no copy
                self._model, self._rest = model.clone(), rest

    def failed(self, step: Step, model: ir.Model, ctx: Context, error: Exception) -> None:
        """Write the folder."""
        if self._model is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        border.save(self._model, self._folder / "model.onnx")
        lines = traceback.format_exception(error)
        (self._folder / "error.txt").write_text("".join(lines), encoding="utf-8")
        for fact in ctx.facts:
            if hasattr(fact, "to_json"):
                path = self._folder / "facts" / f"{type(fact).__name__.lower()}.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(fact.to_json(), indent=1) + "\n", encoding="utf-8")
        command = ["onnxq", "run", "recipe.yaml", "model.onnx", "-o", "out.onnx", *self._arguments]
        try:
            text = dump(Pipeline(steps=self._rest, label="rest"), registry=self._registry)
            (self._folder / "recipe.yaml").write_text(text, encoding="utf-8")
            (self._folder / "command.txt").write_text(shlex.join(command) + "\n", encoding="utf-8")
        except OptionError as why:
            names = ", ".join(map(step_name, self._rest))
            (self._folder / "command.txt").write_text(f"# no recipe: {why}\n# steps: {names}\n", encoding="utf-8")


def _error(reference: Sequence[Array], other: Sequence[Array]) -> tuple[float, float]:
    """Largest absolute error, and the same over the largest absolute reference; infinite where shapes differ."""
    left, right = _arrays(reference), _arrays(other)
    if len(left) != len(right):
        return float("inf"), float("inf")
    worst = scale = 0.0
    for a, b in zip(left, right, strict=True):
        if a.shape != b.shape or a.dtype.kind not in "fiub" or b.dtype.kind not in "fiub":
            if not np.array_equal(a, b):
                return float("inf"), float("inf")
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(x - y))
        worst = max(worst, float(np.max(np.nan_to_num(gap, nan=np.inf, posinf=np.inf), initial=0.0)))
        scale = max(scale, float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0)))
    return worst, worst / scale if scale else (0.0 if worst == 0 else float("inf"))


def _by_output(runs: list[list[Array]]) -> list[tuple[Array, ...]]:
    return list(zip(*runs, strict=True))


def _arrays(values: Sequence[Any]) -> list[Array]:
    """All arrays; onnxruntime gives a list for an output that is a sequence."""
    return [np.asarray(a) for value in values for a in (value if isinstance(value, list) else [value])]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
