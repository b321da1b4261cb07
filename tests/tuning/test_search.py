"""The search against all combinations: the convex hull where parts add up, and never far from the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.tuning.search import Evaluate, Picks, Search, State, front, spread

Part = list[tuple[int, int]]
"""Cost and noise of each choice of one part; whole numbers, so that sums are exact."""

CHOICES = st.tuples(st.integers(1, 50), st.integers(1, 1000))
EXACT = st.tuples(st.integers(1, 50), st.just(0))
PARTS = st.lists(
    st.tuples(st.lists(CHOICES, min_size=1, max_size=3), EXACT).map(lambda p: [*p[0], p[1]]), min_size=1, max_size=5
)
MANY = settings(max_examples=100, deadline=None, derandomize=True)


def adding(parts: Sequence[Part]) -> Evaluate:
    return lambda picks: (
        float(sum(p[i][0] for p, i in zip(parts, picks, strict=True))),
        float(sum(p[i][1] for p, i in zip(parts, picks, strict=True))),
    )


def everything(parts: Sequence[Part], evaluate: Evaluate) -> list[State]:
    return front(State(picks, *evaluate(picks)) for picks in itertools.product(*(range(len(p)) for p in parts)))


def hull(states: Sequence[State]) -> list[tuple[float, float]]:
    """Corners of the lower convex hull of a front, by the cross product."""
    out: list[tuple[float, float]] = []
    for x, y in ((s.cost, s.noise) for s in states):
        while len(out) > 1 and (out[-1][0] - out[-2][0]) * (y - out[-2][1]) <= (x - out[-2][0]) * (
            out[-1][1] - out[-2][1]
        ):
            out.pop()
        out.append((x, y))
    return out


def found(parts: Sequence[Part], evaluate: Evaluate, links: Sequence[tuple[int, int]] = ()) -> list[State]:
    return Search([len(p) for p in parts], evaluate, links).path(tuple(0 for _ in parts))


@MANY
@given(PARTS)
def test_parts_that_add_up_give_the_convex_hull_of_all_combinations(parts: list[Part]) -> None:
    evaluate = adding(parts)
    path, best = found(parts, evaluate), everything(parts, evaluate)
    assert {(s.cost, s.noise) for s in path} >= set(hull(best))
    assert (path[0].cost, path[-1].noise) == (best[0].cost, 0.0)


@MANY
@given(PARTS, st.integers(0, 4000))
def test_a_bound_is_met_within_one_step_of_the_cheapest_combination(parts: list[Part], bound: int) -> None:
    evaluate = adding(parts)
    ours = min(s.cost for s in found(parts, evaluate) if s.noise <= bound)
    best = min(s.cost for s in everything(parts, evaluate) if s.noise <= bound)
    step = max(max(c for c, _ in part) - min(c for c, _ in part) for part in parts)
    assert best <= ours <= best + step


@MANY
@given(PARTS)
def test_the_path_gets_dearer_and_more_exact_and_says_what_is_true(parts: list[Part]) -> None:
    evaluate = adding(parts)
    path = found(parts, evaluate)
    for a, b in itertools.pairwise(path):
        assert a.cost < b.cost and a.noise > b.noise
    assert all(evaluate(s.picks) == (s.cost, s.noise) for s in path)
    assert path == found(parts, evaluate), "deterministic"


def chain(noise: Sequence[int], saved: Sequence[int]) -> Evaluate:
    """Layers in a row: integer (0) or float (1). The value between two is exact only if both are float."""

    def evaluate(picks: Picks) -> tuple[float, float]:
        cost = float(sum(s for s, p in zip(saved, picks, strict=True) if p))
        cost += sum(1.0 for a, b in itertools.pairwise(picks) if a != b)  # a pair that is not fused
        total = float(sum(1 for p in picks if not p))
        total += sum(n for n, a, b in zip(noise, picks, picks[1:], strict=False) if not (a and b))
        return cost, total

    return evaluate


def test_two_neighbours_are_left_float_together() -> None:
    """No single step helps the value between them, which makes nearly all of the noise."""
    evaluate = chain([2, 1000, 2], [5, 5, 5, 5])
    path = found([[(0, 0)] * 2] * 4, evaluate, [(0, 1), (1, 2), (2, 3)])
    assert path[0].picks == (0, 0, 0, 0) and path[1].picks == (0, 1, 1, 0)


@MANY
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.data())
def test_chains_are_near_the_best(noise: list[int], data: st.DataObject) -> None:
    """Values between layers: each bound is met for at most two steps more than the cheapest of all combinations."""
    saved = data.draw(st.lists(st.integers(1, 20), min_size=len(noise) + 1, max_size=len(noise) + 1))
    evaluate, parts = chain(noise, saved), [[(0, 0)] * 2] * len(saved)
    path = found(parts, evaluate, list(itertools.pairwise(range(len(saved)))))
    for best in everything(parts, evaluate):
        ours = min(s.cost for s in path if s.noise <= best.noise)
        assert best.cost <= ours <= best.cost + 2 * (max(saved) + 2)


def test_few_evaluations() -> None:
    """Linear in the parts, not the product of their choices."""
    parts: list[Part] = [[(1, 90 + i), (3, 20), (9, 0)] for i in range(60)]
    search = Search([3] * 60, adding(parts))
    assert len(search.path((0,) * 60)) == 121 and len(search.tried) < 15 * 60 * 3


def test_what_costs_nothing_is_taken_at_the_start() -> None:
    evaluate = adding([[(5, 10), (5, 3), (9, 0)], [(4, 7), (2, 7), (9, 0)]])
    assert found([[(0, 0)] * 3] * 2, evaluate)[0].picks == (1, 1)


@pytest.mark.parametrize(("count", "indices"), [(2, [0, 5]), (4, [0, 2, 3, 5]), (9, [0, 1, 2, 3, 4, 5])])
def test_points_are_spread_over_decibels(count: int, indices: list[int]) -> None:
    states = [State((i,), float(i), noise) for i, noise in enumerate([1.0, 0.9, 0.1, 0.01, 0.001, 0.0])]
    assert spread(states, count) == indices
    assert spread(states[:1], 5) == [0]
