"""The order of nodes: which stand too early, and which can have no order at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from operator import ge
from typing import NamedTuple

from onnxq.linting.wire import Scope, Wire


class Unsorted(NamedTuple):
    """A scope in which a node reads what a later one makes.

    Attributes:
        scope: The scope.
        reads: Names that each node reads, those that its bodies read included.
        made: Position of the node that makes a name first.
    """

    scope: Scope
    reads: list[list[str]]
    made: dict[str, int]

    @property
    def late(self) -> Iterator[tuple[int, str]]:
        """Each node that stands too early, with the first name that it misses."""
        for index, names in enumerate(self.reads):
            late = next((name for name in names if self.made.get(name, -1) >= index), None)
            if late is not None:
                yield index, late

    def circle(self) -> list[int]:
        """Nodes between which no order is possible: what is left without those that need nothing, or nothing needs."""
        needs = [{self.made[name] for name in names if name in self.made} for names in self.reads]
        left = _without_ends(needs, set(range(len(needs))))
        wanted: list[set[int]] = [set() for _ in needs]
        for index in left:
            for other in needs[index] & left:
                wanted[other].add(index)
        return sorted(_without_ends(wanted, left))


def unsorted_scopes(wire: Wire) -> Iterator[Unsorted]:
    """The scopes whose nodes are not in topological order."""
    behind = _captured(wire)
    for scope in wire.scopes:
        reads = scope.reads
        if behind:
            reads = [[*names, *behind.get((scope, i), ())] for i, names in enumerate(reads)]
        made = _made_at(scope)
        positions = [i for i, names in enumerate(reads) for _ in names]
        if any(map(ge, map(made.get, chain.from_iterable(reads), repeat(-1)), positions)):
            yield Unsorted(scope, reads, made)


def _without_ends(needs: list[set[int]], among: set[int]) -> set[int]:
    """Take away what needs nothing of what is left, again and again."""
    left, open_ = set(among), {i: len(needs[i] & among) for i in among}
    users: dict[int, list[int]] = {}
    for index in among:
        for other in needs[index] & among:
            users.setdefault(other, []).append(index)
    ready = [i for i, count in open_.items() if not count]
    while ready:
        done = ready.pop()
        left.discard(done)
        for user in users.get(done, ()):
            open_[user] -= 1
            if not open_[user]:
                ready.append(user)
    return left


def _made_at(scope: Scope) -> dict[str, int]:
    """The position of the first node that makes a name, without those that are there from the start."""
    last = len(scope.makes) - 1
    at = {name: last - i for i, names in enumerate(reversed(scope.makes)) for name in names}
    for name in ("", *scope.inputs, *scope.constants):
        at.pop(name, None)
    return at


def _captured(wire: Wire) -> dict[tuple[Scope, int], set[str]]:
    """What the bodies of a node read from the graphs around them."""
    found: dict[tuple[Scope, int], set[str]] = {}
    for scope in wire.scopes:
        if scope.outer is not None:
            names = wire.wanted[scope].union(scope.outputs) - scope.defined
            found.setdefault((scope.outer, scope.holder), set()).update(names)
    return found
