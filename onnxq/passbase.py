"""Passes and pipelines: a pass is a frozen dataclass that is an `onnx_ir` pass; a pipeline is a pass made of passes.

Facts (`onnxq.facts`) are checked before anything runs: every fact a pass reads needs an earlier writer. A fact goes
stale when a pass changed the graph, unless that pass lists it in ``keeps`` or the fact is not about the graph.
Steps that other libraries made, and plain functions over messages, are in `onnxq.foreign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from onnxq.context import Context as Context
from onnxq.context import Progress as Progress
from onnxq.context import Report as Report
from onnxq.errors import FactError, OnnxqError, OptionError, PassFailed
from onnxq.facts import Fact

if TYPE_CHECKING:
    from onnx import ModelProto

Step = ir.passes.PassBase

MAX_ROUNDS = 10
"""How often an ``until_stable`` pipeline repeats its steps before it gives up with a note."""


@dataclass(frozen=True, kw_only=True)
class Pass(ir.passes.InPlacePass):
    """One transformation. Subclasses are frozen dataclasses: the fields are the options, for Python, YAML and CLI.

    Class attributes:
        name: Kebab-case name, unique in the registry.
        reads: Facts that must be there.
        maybe_reads: Facts used when there.
        writes: Facts this pass stores.
        keeps: Facts that stay true although the graph changed.
        idempotent: A second run changes nothing.
    """

    name: ClassVar[str] = ""
    reads: ClassVar[frozenset[type[Fact]]] = frozenset()
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset()
    writes: ClassVar[frozenset[type[Fact]]] = frozenset()
    keeps: ClassVar[frozenset[type[Fact]]] = frozenset()
    idempotent: ClassVar[bool] = True

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Transform the model in place; True if the graph changed."""
        raise TypeError(f"{type(self).__name__} has no run()")

    def preflight(self, ctx: Context) -> None:
        """Before any step of a pipeline runs: refuse what options and the caller's facts show to be wrong."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """The `onnx_ir` door: run alone, with a context of its own."""
        return ir.passes.PassResult(model, run_step(self, model, Context()))

    def apply(self, source: ModelProto | bytes | str | Path, *, ctx: Context | None = None) -> ModelProto:
        """Run alone on a message, bytes or a file; the source stays untouched.

        Raises:
            InputError: The source cannot be read.
            FactError: The pass reads facts; run it in a `Pipeline`.
        """
        missing = [f.__name__ for f in self.reads if ctx is None or not ctx.has(f)]
        if missing:
            raise FactError(f"{self.name} reads {', '.join(sorted(missing))}: run it in a Pipeline after its writer")
        from onnxq import border

        crossing = border.open_model(source)
        run_step(self, crossing.model, ctx or Context())
        return crossing.to_proto()

    def __str__(self) -> str:
        return self.name or type(self).__name__


class Instrument:
    """Hooks around each step of a pipeline; override what you need."""

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: tuple[Step, ...]) -> None:
        """Called before a step; ``rest`` is all that is left of the whole run and starts with that step."""

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        """Called after a step that worked."""

    def failed(self, step: Step, model: ir.Model, ctx: Context, error: Exception) -> None:
        """Called when a step, or a hook after it, raised; the error goes on upwards afterwards."""


@dataclass(frozen=True, kw_only=True)
class Pipeline(Pass):
    """Steps in order. A pipeline is a pass, so pipelines nest.

    Attributes:
        steps: onnxq passes, pipelines, or any `onnx_ir.passes.PassBase`.
        label: Name used in messages.
        until_stable: Repeat until no step changes the graph, at most `MAX_ROUNDS` times.
        instruments: Hooks around each step, also of nested pipelines; no part of a pipeline's identity.

    Raises:
        OptionError: A step that is not a pass.
    """

    name: ClassVar[str] = "pipeline"

    steps: tuple[Step, ...] = ()
    label: str = "pipeline"
    until_stable: bool = False
    instruments: tuple[Instrument, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        for step in self.steps:
            if not isinstance(step, ir.passes.PassBase):
                hint = "call it to make an instance" if isinstance(step, type) else "wrap functions in proto_pass()"
                raise OptionError(f"{self.label}: {step!r} is not a pass; {hint}")

    def check(self, have: Iterable[type[Fact]] = ()) -> None:
        """Check that each fact is written before it is read.

        Args:
            have: Facts the caller puts into the context.

        Raises:
            FactError: Names pass, fact and the passes of this pipeline that would write it.
        """
        known = set(have)
        flat = list(flatten(self))
        for step in flat:
            if not isinstance(step, Pass):
                continue
            for fact in sorted(step.reads - known, key=lambda f: f.__name__):
                writers = sorted({str(s) for s in flat if isinstance(s, Pass) and fact in s.writes})
                if fact.ask and not writers:
                    raise FactError(f"{self.label}: {step} needs {fact.ask}")
                hint = f"; {', '.join(writers)} writes it but stands later" if writers else ""
                raise FactError(f"{self.label}: {step} reads {fact.__name__}, which no earlier step writes{hint}")
            known |= step.writes

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Run all steps; True if any changed the graph."""
        self.check(ctx._facts)
        for step in flatten(self):
            if isinstance(step, Pass):
                step.preflight(ctx)
        return self._run(model, ctx, self.instruments, ())

    def _run(
        self, model: ir.Model, ctx: Context, instruments: tuple[Instrument, ...], behind: tuple[Step, ...]
    ) -> bool:
        tail = (self, *behind) if self.until_stable else behind
        changed = False
        for _ in range(MAX_ROUNDS if self.until_stable else 1):
            again = False
            for i, step in enumerate(self.steps):
                rest = (*self.steps[i:], *tail)
                if isinstance(step, Pipeline):
                    again |= step._run(model, ctx, instruments + step.instruments, rest[1:])
                else:
                    again |= _watched(step, model, ctx, instruments, rest)
            changed |= again
            if not again:
                return changed
        if self.until_stable:
            ctx.note("not-stable", None, f"{self.label}: stopped, though round {MAX_ROUNDS} still changed the graph")
        return changed

    def __str__(self) -> str:
        return self.label


def _watched(
    step: Step, model: ir.Model, ctx: Context, instruments: tuple[Instrument, ...], rest: tuple[Step, ...]
) -> bool:
    for hook in instruments:
        hook.before(step, model, ctx, rest)
    try:
        changed = run_step(step, model, ctx)
        for hook in instruments:
            hook.after(step, model, ctx, changed)
    except Exception as error:
        for hook in instruments:
            hook.failed(step, model, ctx, error)
        raise
    return changed


def flatten(pipeline: Pipeline) -> Iterator[Step]:
    """All leaf steps in order."""
    for step in pipeline.steps:
        if isinstance(step, Pipeline):
            yield from flatten(step)
        else:
            yield step


def step_name(step: Step) -> str:
    """What messages call a step: its name, or the class name of somebody else's pass."""
    return str(step) if isinstance(step, Pass) else type(step).__name__


def run_step(step: Step, model: ir.Model, ctx: Context) -> bool:
    """Run one step of either kind, keep its facts fresh, and turn stray exceptions into `PassFailed`."""
    before, ctx._running = ctx._running, step_name(step)
    ctx._root = model.graph
    try:
        if isinstance(step, Pipeline):
            return step.run(model, ctx)
        if isinstance(step, Pass):
            step.requires(model)
            changed, keep = step.run(model, ctx), step.keeps | step.writes
            step.ensures(model)
        else:
            changed, keep = run_foreign(step, model), frozenset()
    except OnnxqError:
        raise
    except Exception as error:
        raise PassFailed(f"{step_name(step)}: {type(error).__name__}: {error}") from error
    finally:
        ctx._running = before
    if changed:
        ctx.forget_stale(keep, step_name(step))
    return changed


def run_foreign(step: Step, model: ir.Model) -> bool:
    """Run somebody else's pass on ``model``, which takes over the result of a functional one; True if it changed."""
    result = step(model)
    if result.model is model or not (result.modified or step.destructive):
        return bool(result.modified)
    adopt(model, result.model)
    return True


def adopt(model: ir.Model, other: ir.Model) -> None:
    """Make ``model`` hold what ``other`` holds, so that functional passes fit into in-place pipelines."""
    functions, metadata = dict(other.functions), dict(other.metadata_props)
    model.graph = other.graph
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(model, name, getattr(other, name))
    model.functions.clear()
    model.functions.update(functions)
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
