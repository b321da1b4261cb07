"""What a model asks not to report: ``onnxq.noqa`` in the metadata of a node, a tensor, a graph or the model.

The value is a comma list of codes or prefixes, as in ``OQ303,OQ7``; empty means every rule. At a graph it counts for
all that lies in it, at the model for everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.linting.rule import Finding, Rule
from onnxq.linting.wire import Wire

KEY = "onnxq.noqa"
UNUSED = "OQ901"


@dataclass
class _Entry:
    """One prefix at one place."""

    prefix: str
    place: Place
    used: bool = False


@dataclass
class Suppressions:
    """All of one model."""

    wire: Wire
    everywhere: list[_Entry] = field(default_factory=list)
    graphs: dict[str, list[_Entry]] = field(default_factory=dict)
    nodes: dict[tuple[str, str], list[_Entry]] = field(default_factory=dict)
    values: dict[tuple[str, str], list[_Entry]] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.everywhere = _entries(self.wire.model, Place())
        self.functions = {scope.path for scope in self.wire.scopes[1:] if scope.outer is None}
        for scope in self.wire.scopes:
            self._add(self.graphs, scope.path, _entries(scope.body, Place(graph=scope.path)))
            for tensor in [t for t in scope.initializers if t.metadata_props]:
                self._add(self.values, (scope.path, tensor.name), _entries(tensor, scope.place(value=tensor.name)))
            asking = {i for i, node in enumerate(scope.protos) for e in node.metadata_props if e.key == KEY}
            for index in sorted(asking):
                key = (scope.path, scope.names[index] or next(iter(scope.makes[index]), ""))
                self._add(self.nodes, key, _entries(scope.protos[index], scope.place(index)))

    @staticmethod
    def _add(where: dict[Any, list[_Entry]], key: object, entries: list[_Entry]) -> None:
        if entries:
            where.setdefault(key, []).extend(entries)

    def covers(self, rule: Rule, finding: Finding, place: Place) -> bool:
        """Whether a finding is not to be reported."""
        candidates = [*self.everywhere]
        if self.graphs or self.nodes or self.values:
            for path in self._around(place.graph):
                candidates += self.graphs.get(path, [])
            candidates += self.nodes.get((place.graph, place.node or place.value), [])
            candidates += self.values.get((place.graph, place.value), [])
        hits = [entry for entry in candidates if rule.code.startswith(entry.prefix)]
        for entry in hits:
            entry.used = True
        return bool(hits)

    def _around(self, path: str) -> list[str]:
        """A graph and those around it; the main graph is not around local functions."""
        parts = path.split("/")
        paths = ["/".join(parts[:size]) for size in range(1, len(parts) + 1)]
        return paths if any(one in self.functions for one in paths) else ["", *paths]

    def unused(self, chosen: Sequence[Rule]) -> Iterator[Diagnostic]:
        """Suppressions that suppressed nothing although a rule they name ran."""
        if not any(rule.code == UNUSED for rule in chosen):
            return
        for group in ([self.everywhere], self.graphs.values(), self.nodes.values(), self.values.values()):
            for entries in group:
                for entry in entries:
                    ran = any(rule.code.startswith(entry.prefix) for rule in chosen)
                    if ran and not entry.used:
                        text = (
                            f"{KEY} asks not to report {entry.prefix or 'anything'}, and there is nothing of the kind"
                        )
                        yield Diagnostic(UNUSED, text, Severity.WARNING, entry.place, {}, "unused-suppression")


def _entries(message: Any, place: Place) -> list[_Entry]:
    found: list[_Entry] = []
    for entry in message.metadata_props:
        if entry.key == KEY:
            found += [_Entry(code.strip(), place) for code in entry.value.split(",")]
    return found
