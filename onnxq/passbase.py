"""Passes and pipelines: a pass is a frozen dataclass that is an `onnx_ir` pass; a pipeline is a pass made of passes.

Facts (`onnxq.facts`) are checked before anything runs: every fact a pass reads needs an earlier writer. A fact goes
stale when a pass changed the graph, unless that pass lists it in ``keeps`` or the fact is not about the graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
import onnx_ir as ir

from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.errors import FactError, OnnxqError, PassFailed
from onnxq.facts import Fact

if TYPE_CHECKING:
    from onnx import ModelProto

F = TypeVar("F", bound=Fact)
Step = ir.passes.PassBase


class Progress(Protocol):
    """Called with (label, done, total); total 0 means unknown. Drawn by the command line, ignored elsewhere."""

    def __call__(self, label: str, done: int, total: int) -> None: ...


@dataclass
class Report:
    """What happened: notes in order, and seconds per step."""

    notes: list[Diagnostic] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)

    def of(self, code: str) -> list[Diagnostic]:
        """The notes with one code."""
        return [n for n in self.notes if n.code == code]


@dataclass
class Context:
    """What one run carries: facts, notes, seeded random numbers, a work directory."""

    report: Report = field(default_factory=Report)
    seed: int = 0
    progress: Progress = lambda label, done, total: None
    custom_op_library: str | None = None
    _facts: dict[type[Fact], Fact] = field(default_factory=dict)
    _running: str = ""
    _root: ir.Graph | None = None

    def put(self, *facts: Fact) -> Context:
        """Store facts, replacing older ones of the same type; returns self."""
        for fact in facts:
            self._facts[type(fact)] = fact
        return self

    def has(self, kind: type[Fact]) -> bool:
        """Whether a fresh fact of this type is there."""
        return kind in self._facts

    def get(self, kind: type[F]) -> F:
        """The fact of this type.

        Raises:
            FactError: None was written, or it went stale.
        """
        try:
            return cast("F", self._facts[kind])
        except KeyError:
            raise FactError(f"{self._running or 'a pass'} reads {kind.__name__}, which no earlier step wrote") from None

    def maybe(self, kind: type[F]) -> F | None:
        """The fact of this type, or None."""
        return cast("F | None", self._facts.get(kind))

    def note(
        self,
        code: str,
        at: ir.Node | ir.Value | None,
        why: str,
        severity: Severity = Severity.INFO,
        **numbers: Any,
    ) -> None:
        """Record a decision about a node or value."""
        place = place_of(at, self._root)
        self.report.notes.append(Diagnostic(code, why, severity, place, numbers, self._running))

    def rng(self) -> np.random.Generator:
        """A generator seeded by the run's seed: the same numbers for the same recipe."""
        return np.random.default_rng(self.seed)

    @contextmanager
    def work_dir(self) -> Iterator[Path]:
        """A temporary folder, gone afterwards whatever happens."""
        with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
            yield Path(folder)

    def forget_stale(self, keep: frozenset[type[Fact]]) -> None:
        """Drop facts about the graph, except the given types."""
        self._facts = {k: v for k, v in self._facts.items() if k.stays or k in keep}


def place_of(at: ir.Node | ir.Value | None, root: ir.Graph | None = None) -> Place:
    """The `Place` of an IR object; names the graph when it is not ``root``."""
    if at is None:
        return Place()
    node = at.producer() if isinstance(at, ir.Value) else at
    value = at.name or "" if isinstance(at, ir.Value) else ""
    if node is None:
        return Place(value=value)
    graph = node.graph
    inside = graph.name or "subgraph" if graph is not None and root is not None and graph is not root else ""
    return Place(node.name or "", node.op_type, value, inside)


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

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """The `onnx_ir` door: run alone, with a context of its own."""
        return ir.passes.PassResult(model, run_step(self, model, Context()))

    def apply(self, source: ModelProto | bytes | str | Path, *, ctx: Context | None = None) -> ModelProto:
        """Run alone on a message, bytes or a file; the source stays untouched.

        Raises:
            InputError: The source cannot be read.
            FactError: The pass reads facts; run it in a `Pipeline`.
        """
        from onnxq import border

        missing = [f.__name__ for f in self.reads if ctx is None or not ctx.has(f)]
        if missing:
            raise FactError(f"{self.name} reads {', '.join(sorted(missing))}: run it in a Pipeline after its writer")
        crossing = border.open_model(source)
        run_step(self, crossing.model, ctx or Context())
        return crossing.to_proto()

    def __str__(self) -> str:
        return self.name or type(self).__name__


class Instrument:
    """Hooks around each step of a pipeline; override what you need."""

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: Sequence[Step]) -> None:
        """Called before a step; ``rest`` starts with that step."""

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        """Called after a step that worked."""

    def failed(self, step: Step, model: ir.Model, ctx: Context, error: Exception) -> None:
        """Called when a step raised; the error goes on upwards afterwards."""


@dataclass(frozen=True, kw_only=True)
class Pipeline(Pass):
    """Steps in order. A pipeline is a pass, so pipelines nest.

    Attributes:
        steps: onnxq passes, pipelines, or any `onnx_ir.passes.PassBase`.
        label: Name used in messages.
        until_stable: Repeat (at most 10 times) until no step changes the graph.
        instruments: Hooks around each step, also of nested pipelines.
    """

    name: ClassVar[str] = "pipeline"

    steps: tuple[Step, ...] = ()
    label: str = "pipeline"
    until_stable: bool = False
    instruments: tuple[Instrument, ...] = ()

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
                writers = sorted(str(s) for s in flat if isinstance(s, Pass) and fact in s.writes)
                hint = f"; {', '.join(writers)} writes it but stands later" if writers else ""
                raise FactError(f"{self.label}: {step} reads {fact.__name__}, which no earlier step writes{hint}")
            known |= step.writes

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Run all steps; True if any changed the graph."""
        self.check(ctx._facts)
        return self._run(model, ctx, self.instruments)

    def _run(self, model: ir.Model, ctx: Context, instruments: tuple[Instrument, ...]) -> bool:
        changed = False
        for _ in range(10 if self.until_stable else 1):
            again = False
            for i, step in enumerate(self.steps):
                if isinstance(step, Pipeline):
                    again |= step._run(model, ctx, instruments + step.instruments)
                    continue
                for hook in instruments:
                    hook.before(step, model, ctx, self.steps[i:])
                try:
                    one = run_step(step, model, ctx)
                except Exception as error:
                    for hook in instruments:
                        hook.failed(step, model, ctx, error)
                    raise
                for hook in instruments:
                    hook.after(step, model, ctx, one)
                again |= one
            changed |= again
            if not again:
                break
        return changed

    def __str__(self) -> str:
        return self.label


def flatten(pipeline: Pipeline) -> Iterator[Step]:
    """All leaf steps in order."""
    for step in pipeline.steps:
        if isinstance(step, Pipeline):
            yield from flatten(step)
        else:
            yield step


def run_step(step: Step, model: ir.Model, ctx: Context) -> bool:
    """Run one step of either kind, keep its facts fresh, and turn stray exceptions into `PassFailed`."""
    before, ctx._running = ctx._running, str(step)
    ctx._root = model.graph
    try:
        if isinstance(step, Pass):
            changed = step.run(model, ctx)
            keep = step.keeps | step.writes
        else:
            result = step(model)
            changed, keep = bool(result.modified), frozenset()
            if result.model is not model:
                adopt(model, result.model)
                changed = True
    except OnnxqError:
        raise
    except Exception as error:
        raise PassFailed(f"{step}: {type(error).__name__}: {error}") from error
    finally:
        ctx._running = before
    if changed:
        ctx.forget_stale(frozenset(keep))
    return changed


def adopt(model: ir.Model, other: ir.Model) -> None:
    """Make ``model`` hold what ``other`` holds, so that functional passes fit into in-place pipelines."""
    model.graph = other.graph
    model.ir_version = other.ir_version
    model.functions.clear()
    model.functions.update(other.functions)
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)


@dataclass(frozen=True, kw_only=True)
class ProtoPass(Pass):
    """A plain ``ModelProto -> ModelProto`` function as a step; crosses the border there and back."""

    name: ClassVar[str] = "proto-pass"

    function: Callable[[ModelProto], ModelProto | None]
    label: str = ""

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Call the function on a message of its own; None means "changed in place"."""
        proto = ir.to_proto(model)
        result = self.function(proto)
        adopt(model, ir.from_proto(proto if result is None else result))
        return True

    def __str__(self) -> str:
        return self.label or getattr(self.function, "__name__", self.name)


def proto_pass(function: Callable[[ModelProto], ModelProto | None], *, name: str = "") -> ProtoPass:
    """Wrap a ``ModelProto -> ModelProto`` function so that it stands in a `Pipeline`."""
    return ProtoPass(function=function, label=name)
