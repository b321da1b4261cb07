"""Samples with targets: taken apart, checked, put together, divided."""

import numpy as np
import pytest
from onnx import parser

from onnxq.border import open_model
from onnxq.calibration.feeds import port_of
from onnxq.calibration.sources import open_source
from onnxq.context import Context
from onnxq.errors import DataError, OptionError
from onnxq.training import data as module
from onnxq.training.data import Examples, read
from onnxq.training.samples import Taker
from onnxq.training.shares import CALIBRATION, calibration_source, divide


def model_of(text):
    return open_model(parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')).model


CLASSES = '(float[N, 3] x) => (float[N, 4] y) { y = Pad<mode = "constant">(x, x) }'
TWO = "(float[N, 3] x, float[N] k) => (float[N, 3] y, float[N] z) { y = Relu(x)  z = Relu(k) }"
FIXED = "(float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"


def load(text, data, loss, ctx=None):
    model = model_of(text)
    source = open_source(data, model)
    return read(source, Taker(source.ports, [port_of(v) for v in model.graph.outputs], loss), ctx or Context())


def x(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def test_pairs_and_names_say_the_same():
    a, labels = x(5), np.array([3, 0, 1, 2, 3])
    forms = [
        [(a, labels)],
        [({"x": a}, {"y": labels})],
        [({"x": a}, {"target.y": labels.astype(np.uint8)})],
        [{"x": a, "target.y": labels.astype(np.int32)}],
        [{"x": a, "target": labels}],
        [(a[i : i + 1], labels[i]) for i in range(5)],
        iter([(a[:2], labels[:2]), (a[2:], labels[2:])]),
    ]
    digests = set()
    for form in forms:
        found = load(CLASSES, form, "cross-entropy")
        assert len(found) == 5
        digests.add(found.digest)
        whole = found.batch(range(5))
        np.testing.assert_array_equal(whole.feeds["x"], a)
        np.testing.assert_array_equal(whole.targets["y"], labels)
        assert whole.targets["y"].dtype == np.int64
        np.testing.assert_array_equal(found.batch([3, 1]).feeds["x"], a[[3, 1]])
    assert len(digests) == 1
    assert load(CLASSES, [(a, labels[::-1])], "cross-entropy").digest not in digests


def test_several_inputs_and_outputs():
    a, k = x(2), np.ones(2, np.float32)
    for form in ([({"x": a, "k": k}, {"y": a, "z": k})], [([a, k], {"y": a.astype(float), "z": k})]):
        found = load(TWO, form, "mse").batch([0, 1])
        assert list(found.feeds) == ["x", "k"] and found.targets["y"].dtype == np.float32
        np.testing.assert_array_equal(found.targets["z"], k)
    # without targets a pair of arrays is two inputs
    assert load(TWO, [(a, k)], "distill").batch([0]).feeds["k"] == 1


def test_distill_wants_no_targets_and_ignores_them():
    for form in (
        [x(3)],
        [(x(3), np.zeros(3, int))],
        [{"x": x(3), "target.y": np.zeros(3, int)}],
        [({"x": x(3)}, None)],
    ):
        assert load(CLASSES, form, "distill").batch([0, 1]).targets == {}


def test_files(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", **{"x": x(1, i), "target.y": np.array([i])})
    assert load(CLASSES, tmp_path, "cross-entropy").batch([0, 1, 2]).targets["y"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "2.npz", x=x(1))
    with pytest.raises(DataError, match=r"2\.npz: sample 2 has no target"):
        load(CLASSES, tmp_path, "cross-entropy")


@pytest.mark.parametrize(
    ("text", "loss", "sample", "why"),
    [
        (CLASSES, "mse", x(2), r"sample 0 has no target, which loss mse needs: .*pairs.*'target\.y'"),
        (CLASSES, "cross-entropy", (x(2), np.array([0.0, 1])), "integers; got float64"),
        (CLASSES, "cross-entropy", (x(2), np.array([0, 4])), r"classes 0 to 4, but the output has 4 \(0 to 3\)"),
        (CLASSES, "cross-entropy", (x(2), np.array([-1, 1])), "classes -1 to 1"),
        (CLASSES, "cross-entropy", (x(2), np.array([1, 2, 3])), r"as many entries along axis 0.*'x' 2, 'target\.y' 3"),
        (CLASSES, "mse", (x(2), np.zeros((2, 5), np.float32)), "dimension 1 must be 4"),
        (CLASSES, "mse", (x(2), np.full((2, 4), np.nan)), "target of 'y' is not finite"),
        (CLASSES, "mse", (x(2), np.zeros((2, 4), int)), "floats, got int64"),
        (CLASSES, "mse", ({"x": x(2)}, {"why": x(2)}), "'why' is no output of the model; did you mean y"),
        (CLASSES, "mse", (x(2), np.zeros((2, 4)), 1), "3 unnamed arrays"),
        (CLASSES, "mse", (np.zeros((2, 4), np.float32), x(2)), "dimension 1 must be 3"),
        (CLASSES, "distill", np.zeros((0, 3), np.float32), "at least 1"),
        (CLASSES, "distill", np.full((2, 3), np.nan, np.float32), "input 'x' is NaN"),
        (TWO, "mse", ({"x": x(2), "k": x(2)[:, 0]}, {"y": x(2)}), "no target for output 'z'"),
        (TWO, "mse", ({"x": x(2), "k": x(2)[:, 0]}, x(2)), "does not say of which"),
    ],
)
def test_what_does_not_fit_is_said(text, loss, sample, why):
    with pytest.raises(DataError, match=why):
        load(text, [sample], loss)


def test_no_samples():
    with pytest.raises(DataError, match="holds no samples"):
        load(CLASSES, [], "distill")


def test_other_shapes_are_left_out_with_a_note():
    text = "(float[N, T] x) => (float[N, T] y) { y = Relu(x) }"
    data = [np.full((1, 2 + (i % 3 == 0)), i, np.float32) for i in range(9)]
    ctx = Context()
    found = load(text, data, "distill", ctx)
    assert [found[i].feeds["x"][0, 0] for i in range(len(found))] == [1, 2, 4, 5, 7, 8]
    (note,) = ctx.report.of("samples-left-out")
    assert note.numbers == {"left_out": 3} and "3 of 9 samples" in note.message and "x [1, 2]" in note.message


def test_beyond_memory_on_disk(monkeypatch):
    held = load(CLASSES, [(x(6), np.arange(6) % 4)], "cross-entropy")
    monkeypatch.setattr(module, "MEMORY", 50)
    spilled = Examples(True, limit=50)
    for i in range(6):
        spilled.append(held[i])
    assert spilled._folder is not None and sum(e is None for e in spilled._held) == 4
    for i in range(6):
        assert spilled[i].feeds["x"].tobytes() == held[i].feeds["x"].tobytes()
        assert spilled[i].targets["y"] == held[i].targets["y"]
    spilled.keep([5, 1])
    assert [spilled[i].targets["y"][0] for i in (0, 1)] == [1, 1] and len(spilled) == 2


def test_division():
    examples, ctx = load(CLASSES, [x(107)], "distill"), Context(seed=3)
    shares = divide(examples, 8, 0.1, ctx)
    assert len(shares.held) == 8 and len(shares.train) == 99 and shares.steps == 12
    assert sorted([*shares.held, *shares.train]) == list(range(107))
    first, second = shares.epoch(0), shares.epoch(1)
    assert first == shares.epoch(0) != second
    flat = [i for batch in first for i in batch]
    assert len(set(flat)) == 96 and set(flat) <= set(shares.train) and {len(b) for b in first} == {8}
    assert shares.held_batches() == [shares.held]
    assert divide(examples, 8, 0.1, Context(seed=4)).held != shares.held
    (note,) = ctx.report.of("batches")
    assert note.numbers == {"train": 99, "held_out": 8, "batch": 8, "steps": 12, "rest": 3}


@pytest.mark.parametrize(("rows", "batch", "held"), [(2, 1, 1), (31, 2, 2), (64, 8, 8), (256, 32, 32), (1000, 32, 96)])
def test_batch_where_none_is_asked_for(rows, batch, held):
    shares = divide(load(CLASSES, [x(rows)], "distill"), None, 0.1, Context())
    assert (shares.batch, len(shares.held)) == (batch, held)


def test_too_few_or_nonsense():
    examples = load(CLASSES, [x(7)], "distill")
    with pytest.raises(DataError, match="7 samples to train on: in batches of 4 at least 8"):
        divide(examples, 4, 0.1, Context())
    for batch, share in ((0, 0.1), (1, 0.0), (1, 1.0)):
        with pytest.raises(OptionError):
            divide(examples, batch, share, Context())


def test_a_fixed_batch_is_its_own():
    examples, ctx = load(FIXED, [x(2, i) for i in range(6)], "distill"), Context()
    shares = divide(examples, None, 0.1, ctx)
    assert (shares.batch, len(shares.held), shares.steps) == (1, 1, 5) and ctx.report.of("batch-fixed")
    assert examples.batch(shares.epoch(0)[0]).feeds["x"].shape == (2, 3)
    assert divide(examples, 2, 0.1, Context()).batch == 1
    with pytest.raises(OptionError, match="batch 4: this model's batch is fixed"):
        divide(examples, 4, 0.1, Context())


def test_calibration_sees_training_samples_alone():
    a = np.arange(3 * 700, dtype=np.float32).reshape(700, 3)
    source = open_source([(a, np.zeros(700, int))], model_of(CLASSES))
    examples = load(CLASSES, [a], "distill")
    shares = divide(examples, 32, 0.1, Context())
    batches = list(calibration_source(source, examples, shares))
    seen = np.concatenate([b["x"] for b in batches])
    assert seen.shape == (CALIBRATION, 3) and {b["x"].shape for b in batches} == {(32, 3)}
    assert not set(seen[:, 0]) & set(a[list(shares.held), 0])
