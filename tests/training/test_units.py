"""How large parameters are, and that layers of any size learn alike."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.numerics.spec import Blocked, PerAxis, PerTensor
from onnxq.training.optimizers import Adam, Sgd
from onnxq.training.units import unit

W = np.array([[3.0, -4.0, 0.0, 1.0, 7.0], [0.0, 0.0, 0.0, 0.0, 0.0]], np.float32)
WHOLE = np.sqrt(75 / 10)


@pytest.mark.parametrize(
    ("granularity", "expected"),
    [
        (None, WHOLE),
        (PerTensor(), WHOLE),
        (PerAxis(0), [[np.sqrt(15)], [WHOLE]]),
        (PerAxis(1), [[3 / np.sqrt(2), 4 / np.sqrt(2), WHOLE, 1 / np.sqrt(2), 7 / np.sqrt(2)]]),
        (PerAxis(-1), [[3 / np.sqrt(2), 4 / np.sqrt(2), WHOLE, 1 / np.sqrt(2), 7 / np.sqrt(2)]]),
        (Blocked(size=2, axis=1), [[5 / np.sqrt(2)] * 2 + [1 / np.sqrt(2)] * 2 + [7.0], [WHOLE] * 5]),
        (Blocked(size=2, axis=0), [np.abs(W[0]) / np.sqrt(2) + [0, 0, WHOLE, 0, 0]] * 2),
    ],
)
def test_root_mean_square_of_what_shares_a_scale(granularity, expected):
    found = unit(W, granularity)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.broadcast_to(found, W.shape), np.broadcast_to(expected, W.shape), rtol=1e-6)


def test_of_zeros_it_is_1():
    assert unit(np.zeros(3, np.float32)) == 1
    np.testing.assert_array_equal(unit(np.zeros((2, 3), np.float32), PerAxis(0)), [[1], [1]])


@pytest.mark.parametrize(("made", "rate"), [(Adam, 0.01), (Sgd, 0.001)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_layer_of_any_size_learns_alike(made, rate, size):
    """y = w x with x so large that y is not: the same course, relative to the size."""
    rng = np.random.default_rng(0)
    start, goal = rng.normal(size=(2, 3, 4)).astype(np.float32)
    courses = []
    for scale in (1.0, size):
        w = (start * np.float32(scale)).copy()
        optimizer = made({"w": w}, {"w": "weight"}, units={"w": unit(w, PerAxis(0))})
        for _ in range(20):
            optimizer.update({"w": (w / np.float32(scale) - goal) / np.float32(scale)}, rate)
        courses.append(w / np.float32(scale))
    np.testing.assert_allclose(courses[1], courses[0], rtol=1e-3, atol=1e-5)
    assert np.abs(courses[0] - start).max() > 1e-2
