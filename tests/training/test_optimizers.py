import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.training import optimizers
from onnxq.training.optimizers import OPTIMIZERS, Adam, Sgd


def adam(p, gradients, rate, decay=0.0):
    """Kingma and Ba 2015, algorithm 1, in float64."""
    p, m, v = p.astype(float), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        p = p * (1 - rate * decay) - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p


def sgd(p, gradients, rate, decay=0.0):
    p, v = p.astype(float), 0.0
    for g in gradients:
        v = 0.9 * v + g
        p = p * (1 - rate * decay) - rate * v
    return p


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(), (1,), (3, 5), (2, 1, 7)]),
    st.sampled_from([(Adam, adam), (Sgd, sgd)]),
    st.sampled_from([0.0, 0.1]),
)
def test_steps_are_those_of_the_papers(seed, shape, both, decay):
    made, oracle = both
    rng = np.random.default_rng(seed)
    start = rng.normal(size=shape).astype(np.float32)
    gradients = [(rng.normal(size=shape) * 10.0 ** rng.integers(-4, 3)).astype(np.float32) for _ in range(8)]
    parameters = {"w": start.copy()}
    optimizer = made(parameters, {"w": "weight"}, decay=decay)
    for g in gradients:
        optimizer.update({"w": np.array(g)}, 1e-2)
    np.testing.assert_allclose(parameters["w"], oracle(start, gradients, 1e-2, decay), rtol=2e-5, atol=2e-6)
    assert optimizer.steps == 8


@pytest.mark.parametrize(("made", "oracle"), [(Adam, adam), (Sgd, sgd)])
def test_scales_move_in_their_logarithm_at_a_rate_of_their_own(made, oracle):
    rng = np.random.default_rng(0)
    start = np.array([1e-6, 1.0, 40.0], np.float32)
    gradients = [rng.normal(size=3).astype(np.float32) for _ in range(5)]
    parameters = {"s": start.copy(), "w": np.ones(2, np.float32)}
    optimizer = made(parameters, {"s": "scale", "w": "weight"}, factors={"scale": 0.5}, scaling={"s": 0.25})
    logs, moving = start.astype(float), []
    for g in gradients:
        moving.append(g * 0.25 * logs)  # dL/d(log s), times LSQ's factor
        optimizer.update({"s": g.copy(), "w": np.zeros(2, np.float32)}, 0.02)
        logs = np.exp(oracle(np.log(start.astype(float)), moving, 0.01))
    np.testing.assert_allclose(parameters["s"], logs, rtol=1e-5)
    np.testing.assert_array_equal(parameters["w"], 1)  # nothing pulls, nothing decays


def test_biases_do_not_decay_and_kinds_have_their_rates():
    parameters = {"w": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    optimizer = Sgd(parameters, {"w": "weight", "b": "bias"}, factors={"bias": 2.0}, decay=0.5)
    optimizer.update({"w": np.ones(2, np.float32), "b": np.ones(2, np.float32)}, 0.1)
    np.testing.assert_allclose(parameters["w"], 1 * 0.95 - 0.1)
    np.testing.assert_allclose(parameters["b"], 1 - 0.2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_in_place_and_whatever_the_piece(name, monkeypatch):
    rng = np.random.default_rng(1)
    start, g = rng.normal(size=(7, 11)).astype(np.float32), rng.normal(size=(7, 11)).astype(np.float32)
    results = []
    for piece in (1 << 15, 5):
        monkeypatch.setattr(optimizers, "_PIECE", piece)
        array = start.copy()
        optimizer = OPTIMIZERS[name]({"w": array}, {"w": "weight"}, decay=0.1)
        states = {id(a) for by in optimizer.state.values() for a in by.values()}
        for _ in range(3):
            optimizer.update({"w": g.copy()}, 0.1)
        assert states == {id(a) for by in optimizer.state.values() for a in by.values()}
        assert all(a.dtype == np.float32 for by in optimizer.state.values() for a in by.values())
        results.append(array)
    np.testing.assert_array_equal(*results)
    assert not np.array_equal(results[0], start)
