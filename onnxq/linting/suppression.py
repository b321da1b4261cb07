"""What a model asks not to report: ``onnxq.noqa`` in the metadata of a node, a tensor, a graph or the model.

The value is a comma list of codes or prefixes, as in ``OQ303,OQ7``; empty means every rule. At a graph it counts for
all that lies in it, at the model for everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.linting.rule import Finding, Rule
from onnxq.linting.wire import Wire

KEY = "onnxq.noqa"
UNUSED = "OQ901"

_Key = TypeVar("_Key")


@dataclass
class _Entry:
    """One prefix at one place."""

    prefix: str
    place: Place
    used: bool = False


@dataclass
class _Entries:
    """All entries of a model, by where they stand."""

    everywhere: list[_Entry]
    graphs: dict[str, list[_Entry]] = field(default_factory=dict)
    nodes: dict[tuple[str, str], list[_Entry]] = field(default_factory=dict)
    values: dict[tuple[str, str], list[_Entry]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[_Entry]:
        yield from self.everywhere
        yield from chain.from_iterable(self.graphs.values())
        yield from chain.from_iterable(self.nodes.values())
        yield from chain.from_iterable(self.values.values())


class Suppressions:
    """All of one model; they are looked for when there is something to suppress."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @cached_property
    def _entries(self) -> _Entries:
        found = _Entries(_read(self._wire.model, Place()))
        for scope in self._wire.scopes:
            _add(found.graphs, scope.path, _read(scope.body, Place(graph=scope.path)))
            for tensor in [t for t in scope.initializers if t.metadata_props]:
                _add(found.values, (scope.path, tensor.name), _read(tensor, scope.place(value=tensor.name)))
            asking = {i for i, node in enumerate(scope.protos) for e in node.metadata_props if e.key == KEY}
            for index in sorted(asking):
                key = (scope.path, scope.names[index] or next(iter(scope.makes[index]), ""))
                _add(found.nodes, key, _read(scope.protos[index], scope.place(index)))
        return found

    @cached_property
    def _functions(self) -> set[str]:
        return {scope.path for scope in self._wire.scopes[1:] if scope.outer is None}

    def covers(self, rule: Rule, finding: Finding, place: Place) -> bool:
        """Whether a finding is not to be reported."""
        entries = self._entries
        candidates = [*entries.everywhere]
        if entries.graphs or entries.nodes or entries.values:
            for path in self._around(place.graph):
                candidates += entries.graphs.get(path, [])
            candidates += entries.nodes.get((place.graph, place.node or place.value), [])
            candidates += entries.values.get((place.graph, place.value), [])
        hits = [entry for entry in candidates if rule.code.startswith(entry.prefix)]
        for entry in hits:
            entry.used = True
        return bool(hits)

    def _around(self, path: str) -> list[str]:
        """A graph and those around it; the main graph is not around local functions."""
        parts = path.split("/")
        paths = ["/".join(parts[:size]) for size in range(1, len(parts) + 1)]
        return paths if any(one in self._functions for one in paths) else ["", *paths]

    def unused(self, chosen: Sequence[Rule]) -> Iterator[Diagnostic]:
        """Suppressions that suppressed nothing although a rule they name ran."""
        if not any(rule.code == UNUSED for rule in chosen):
            return
        for entry in self._entries:
            ran = any(rule.code.startswith(entry.prefix) for rule in chosen)
            if ran and not entry.used:
                what = entry.prefix or "anything"
                text = f"{KEY} asks not to report {what}, and there is nothing of the kind"
                yield Diagnostic(UNUSED, text, Severity.WARNING, entry.place, {}, "unused-suppression")


def _add(where: dict[_Key, list[_Entry]], key: _Key, entries: list[_Entry]) -> None:
    if entries:
        where.setdefault(key, []).extend(entries)


def _read(message: Any, place: Place) -> list[_Entry]:
    found: list[_Entry] = []
    for entry in message.metadata_props:
        if entry.key == KEY:
            found += [_Entry(code.strip(), place) for code in entry.value.split(",")]
    return found
