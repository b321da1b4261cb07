"""From the cheapest choice for every part of a model to the most exact one, a step at a time.

Each step takes the move that buys most accuracy for its cost: one part another choice, or two neighbours their most
exact ones at once, since a value between two layers is only exact when both leave it alone. Where costs and noise of
the parts add up, these steps are the convex hull of all combinations (the greedy solution of the multiple-choice
knapsack problem; Sinha and Zoltners, Operations Research 27, 1979). Where they do not, moves are valued where they are
made, so that the path follows what really happens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Picks = tuple[int, ...]
Evaluate = Callable[[Picks], tuple[float, float]]
"""Cost and noise of a combination: which choice of each part."""
Move = tuple[tuple[int, int], ...]

# Smaller relative differences are rounding.
_SAME = 1e-9


@dataclass(frozen=True)
class State:
    """One combination.

    Attributes:
        picks: The choice of each part.
        cost: What it costs, in any unit.
        noise: Noise it is expected to make, in any unit that adds up.
    """

    picks: Picks
    cost: float
    noise: float


@dataclass
class Search:
    """The search over one model.

    Attributes:
        counts: Number of choices of each part; the last one is the most exact.
        evaluate: Cost and noise of a combination.
        links: Pairs of parts that stand next to each other.
        tried: What was evaluated so far.
    """

    counts: Sequence[int]
    evaluate: Evaluate
    links: Iterable[tuple[int, int]] = ()
    tried: dict[Picks, State] = field(default_factory=dict)
    _options: list[list[int]] = field(init=False)
    _beside: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._options = [list(range(count)) for count in self.counts]
        self._beside = [[] for _ in self.counts]
        for a, b in dict.fromkeys(tuple(sorted(link)) for link in self.links):
            if a != b:
                self._beside[a].append(b)
                self._beside[b].append(a)

    def path(self, start: Picks) -> list[State]:
        """Combinations from the cheapest to the most exact, each dearer and more exact than the one before it."""
        self._drop_dominated(start)
        states = [self._cheapest(start)]
        states += self._climb(states[0])
        return front(states)

    def _drop_dominated(self, start: Picks) -> None:
        """Forget choices that cost more than another one of their part without being more exact, all else as given."""
        for part, options in enumerate(self._options):
            found = {option: self._at(_set(start, ((part, option),))) for option in options}
            last = options[-1]
            kept = [o for o in options if o == last or not any(_beats(found[p], found[o], p, o) for p in options)]
            self._options[part] = kept

    def _cheapest(self, start: Picks) -> State:
        """Descend from ``start`` until no change of one part makes it cheaper (or, as cheap, more exact)."""
        here, moved = self._at(start), True
        while moved:
            moved = False
            for part, options in enumerate(self._options):
                for option in options:
                    there = self._at(_set(here.picks, ((part, option),)))
                    if _cheaper(there, here):
                        here, moved = there, True
        return here

    def _climb(self, here: State) -> Iterable[State]:
        """The best moves, one after the other; values are brought up to date when a move comes first (lazy greedy)."""
        moves = [
            [((part, option),) for option in options]
            + [((part, options[-1]), (other, self._options[other][-1])) for other in self._beside[part] if part < other]
            for part, options in enumerate(self._options)
        ]
        queue: list[tuple[float, Move]] = []
        current: dict[Move, float] = {}

        def value(of: Iterable[Move]) -> None:
            for move in of:
                current[move] = self._gain(here, move)
                if current[move] > 0:
                    heapq.heappush(queue, (-current[move], move))

        value(move for each in moves for move in each)
        while queue:
            stored, move = heapq.heappop(queue)
            if current[move] != -stored:
                continue
            if self._gain(here, move) != -stored:
                value([move])
                continue
            here = self._at(_set(here.picks, move))
            yield here
            touched = dict.fromkeys(part for part, _ in move)
            touched |= dict.fromkeys(other for part in touched for other in self._beside[part])
            value(m for part in touched for m in moves[part])

    def _gain(self, here: State, move: Move) -> float:
        """Noise taken away for each unit of cost; infinite where it costs nothing, 0 where it helps nothing."""
        there = self._at(_set(here.picks, move))
        less = here.noise - there.noise
        if less <= _SAME * here.noise:
            return 0.0
        more = there.cost - here.cost
        return math.inf if more <= 0 else less / more

    def _at(self, picks: Picks) -> State:
        if picks not in self.tried:
            self.tried[picks] = State(picks, *self.evaluate(picks))
        return self.tried[picks]


def front(states: Iterable[State]) -> list[State]:
    """Those that no other one beats in cost and noise, cheapest first."""
    out: list[State] = []
    for state in sorted(states, key=lambda s: (s.cost, s.noise, s.picks)):
        if not out or state.noise < out[-1].noise:
            out.append(state)
    return out


def spread(states: Sequence[State], count: int) -> list[int]:
    """Indices of ``count`` states, the first and the last among them, evenly spread over the decibels of their noise.

    Args:
        states: A front, at least one state.
        count: How many, at least 2.
    """
    if len(states) <= count:
        return list(range(len(states)))
    noisy = [i for i, s in enumerate(states) if s.noise > 0]
    levels = [math.log(states[i].noise) for i in noisy]
    chosen = {0, len(states) - 1}
    for k in range(1, count - 1):
        wanted = levels[0] + (levels[-1] - levels[0]) * k / (count - 1)
        chosen.add(min(noisy, key=lambda i: abs(math.log(states[i].noise) - wanted)))
    return sorted(chosen)


def _set(picks: Picks, move: Move) -> Picks:
    out = list(picks)
    for part, option in move:
        out[part] = option
    return tuple(out)


def _cheaper(there: State, here: State) -> bool:
    if abs(there.cost - here.cost) <= _SAME * abs(here.cost):
        return there.noise < here.noise * (1 - _SAME)
    return there.cost < here.cost


def _beats(a: State, b: State, i: int, j: int) -> bool:
    """Whether choice ``i`` makes ``j`` needless; of equal ones the first stays."""
    if a.cost > b.cost or a.noise > b.noise:
        return False
    return (a.cost, a.noise) != (b.cost, b.noise) or i < j
