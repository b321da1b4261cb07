"""Bounds, and which measured point is taken."""

from __future__ import annotations

from typing import Any

import pytest

from onnxq.errors import OptionError
from onnxq.tuning.outcome import Bounds, Point, beaten, choose, nearest


def point(db: float | None, estimated: float, size: int = 100, **more: Any) -> Point:
    return Point(size, db, more.pop("cosine", 0.9), more.pop("agreement", 0.9), 0.0, estimated, **more)


FRONT = [
    point(10, 0.2, 50, agreement=0.7, ratio=0.5),
    point(25, 0.4, 60, agreement=0.98, ratio=0.3),
    point(24, 0.5, 70, agreement=0.96, ratio=0.6),
    point(40, 0.7, 80, agreement=0.99, ratio=0.7),
    point(None, 1.0, 100, agreement=1.0, ratio=1.0, cosine=1.0),
]


@pytest.mark.parametrize(
    ("bounds", "taken"),
    [
        ({"min_sqnr": 20}, 1),
        ({"min_sqnr": 30}, 3),
        ({"min_sqnr": 90}, 4),
        ({"min_agreement": 0.97}, 1),
        ({"min_cosine": 0.95}, 4),
        ({"max_size": 75}, 1),
        ({"max_size": 85}, 3),
        ({"max_size": 10}, None),
        ({"max_latency_ratio": 0.65}, 1),
        ({"max_latency_ratio": 0.1}, None),
        ({"min_sqnr": 20, "max_size": 55}, None),
        ({"min_sqnr": 30, "max_latency_ratio": 0.8}, 3),
    ],
)
def test_what_is_taken(bounds: dict[str, float], taken: int | None) -> None:
    assert choose(FRONT, Bounds(**bounds)) == taken


def test_the_nearest_falls_short_by_least() -> None:
    assert nearest(FRONT, Bounds(max_size=40)) == 0
    assert nearest(FRONT, Bounds(min_sqnr=24.5, max_size=59)) == 1
    assert nearest(FRONT, Bounds(min_sqnr=12, max_size=55)) == 1, "5 bytes of 55 are less than 2 dB of 12"


def test_points_that_another_one_beats_in_everything() -> None:
    assert beaten(FRONT, Bounds(min_sqnr=1)) == {2}
    assert beaten(FRONT[:2] * 2, Bounds(min_sqnr=1)) == set(), "equal ones beat nobody"
    assert beaten(FRONT, Bounds(max_latency_ratio=1)) == {2}
    slow = [point(20, 0.3, ratio=0.9), point(19, 0.4, ratio=0.2)]
    assert beaten(slow, Bounds(max_latency_ratio=1)) == set() and beaten(slow, Bounds(min_sqnr=1)) == {1}


def test_all_that_is_missed_is_told() -> None:
    bounds = Bounds(min_sqnr=30, min_cosine=0.99, min_agreement=0.97, max_size=40, max_latency_ratio=0.4)
    texts = bounds.missed(FRONT[0])
    for text, part in zip(texts, ("10.0 dB", "0.900000", "70.00%", "50 bytes", "0.50"), strict=True):
        assert part in text
    assert bounds.shortfall(FRONT[0]) == pytest.approx(20 / 30 + 0.09 / 0.99 + 0.27 / 0.97 + 0.25 + 0.25)


def test_not_a_number_meets_no_bound() -> None:
    bad = point(float("nan"), 0.1, cosine=float("nan"))
    assert len(Bounds(min_sqnr=1, min_cosine=0.1).missed(bad)) == 2


@pytest.mark.parametrize("bounds", [{}, {"min_cosine": -1}, {"min_agreement": 97}, {"max_latency_ratio": 0}])
def test_bad_bounds(bounds: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=r"bound|must be"):
        Bounds(**bounds)
