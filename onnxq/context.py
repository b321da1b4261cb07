"""What one run carries from pass to pass: facts, notes, seeded random numbers, a work directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import onnx_ir as ir

from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.errors import FactError
from onnxq.facts import Fact

F = TypeVar("F", bound=Fact)


class Progress(Protocol):
    """Called with (label, done, total); total 0 means unknown. Drawn by the command line, ignored elsewhere."""

    def __call__(self, label: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` units of ``label`` are finished."""


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
    _stale: dict[type[Fact], str] = field(default_factory=dict)
    _running: str = ""
    _root: ir.Graph | None = None

    def put(self, *facts: Fact) -> Context:
        """Store facts, replacing older ones of the same type; returns self."""
        for fact in facts:
            self._facts[type(fact)] = fact
            self._stale.pop(type(fact), None)
        return self

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All fresh facts, in the order their types were first written."""
        return tuple(self._facts.values())

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
            by = self._stale.get(kind)
            why = f"went stale when {by} changed the graph" if by else "no earlier step wrote"
            raise FactError(f"{self._running or 'a pass'} reads {kind.__name__}, which {why}") from None

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

    def forget_stale(self, keep: frozenset[type[Fact]], by: str = "") -> None:
        """Drop facts about the graph, except the given types; ``by`` is the step that changed the graph."""
        stale = [k for k in self._facts if not (k.stays or k in keep)]
        for kind in stale:
            del self._facts[kind]
            self._stale[kind] = by


def place_of(at: ir.Node | ir.Value | None, root: ir.Graph | None = None) -> Place:
    """The `Place` of an IR object; names the graph when it is not ``root``."""
    if at is None:
        return Place()
    graph = at.graph
    inside = graph.name or "subgraph" if graph is not None and root is not None and graph is not root else ""
    node = at.producer() if isinstance(at, ir.Value) else at
    value = at.name or "" if isinstance(at, ir.Value) else ""
    if node is None:
        return Place(value=value, graph=inside)
    return Place(node.name or "", node.op_type, value, inside)
