"""The loop on a trainee of a few lines of NumPy: linear regression, whose solution is known."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from onnxq.context import Context
from onnxq.errors import OptionError, TrainingError
from onnxq.training import trainer as module
from onnxq.training.checkpoints import FILE
from onnxq.training.data import Examples
from onnxq.training.optimizers import OPTIMIZERS
from onnxq.training.samples import Example
from onnxq.training.schedules import Schedule
from onnxq.training.scores import Judge, Score
from onnxq.training.shares import divide
from onnxq.training.teacher import given
from onnxq.training.trainer import Trainer

WEIGHT, BIAS = np.array([[1.0, -2.0, 0.5]], np.float32), np.array([0.25], np.float32)


class Stop(Exception):
    pass


@dataclass
class Line:
    """y = x · w + b, mean squared error."""

    parameters: dict = field(default_factory=lambda: {"w": np.zeros((1, 3), np.float32), "b": np.zeros(1, np.float32)})
    kinds: dict = field(default_factory=lambda: {"w": "weight", "b": "bias"})
    trouble: dict = field(default_factory=dict)
    steps: int = 0

    def step(self, feeds, targets):
        off = feeds["x"] @ self.parameters["w"].T + self.parameters["b"] - targets["y"]
        gradients = {"w": 2 * (off.T @ feeds["x"]) / len(off), "b": 2 * off.mean(0)}
        with np.errstate(over="ignore"):
            loss = float((off**2).mean())
        self.steps += 1
        return self.trouble.get(self.steps, lambda *both: both)(loss, gradients)

    def evaluate(self, feeds):
        return [feeds["x"] @ self.parameters["w"].T + self.parameters["b"]]


@pytest.fixture(scope="module")
def examples():
    x = np.random.default_rng(0).normal(size=(44, 3)).astype(np.float32)
    out = Examples(True, digest="d")
    for i in range(44):
        out.append(Example({"x": x[i : i + 1]}, {"y": x[i : i + 1] @ WEIGHT.T + BIAS}))
    return out


def training(examples, line=None, judge=None, optimizer="adam", epochs=5, rate=0.05, seed=0, **options):
    line = line or Line()
    shares = divide(examples, 4, 0.1, Context())
    judge = judge or Judge(line, ["y"], examples, shares, given)
    made = OPTIMIZERS[optimizer](line.parameters, line.kinds)
    ctx = options.pop("ctx", Context())
    schedule = Schedule("cosine", epochs * shares.steps, 3)
    return Trainer(line, examples, shares, given, judge, made, rate, schedule, ctx, identity={"lr": rate}, **options)


def test_finds_the_solution(examples):
    made = training(examples, epochs=40)
    outcome = made.run()
    np.testing.assert_allclose(made.trainee.parameters["w"], WEIGHT, atol=2e-3)
    np.testing.assert_allclose(made.trainee.parameters["b"], BIAS, atol=2e-3)
    assert outcome.steps == 400 and len(outcome.epochs) == 40 and outcome.resumed == 0
    assert outcome.end.loss < 1e-5 < 1 < outcome.start.loss
    assert outcome.epochs[0].loss > outcome.epochs[-1].loss
    table = outcome.to_json()
    assert table["before"]["loss"] == outcome.start.loss and table["steps_per_second"] > 0


@pytest.mark.parametrize(("scores", "best"), [((3, 2, 1, 4), 2), ((3, 4, 5, 3), 0), ((3, np.nan, 2, 2.5), 2)])
def test_the_best_on_held_out_samples_is_kept(examples, scores, best):
    line, seen, left = Line(), [], list(scores)

    def judge():
        seen.append({k: v.copy() for k, v in line.parameters.items()})
        return Score(float(left.pop(0)))

    outcome = training(examples, line, judge, epochs=3).run()
    assert outcome.best == best and outcome.end.loss == scores[best]
    if best:
        for name, array in line.parameters.items():
            np.testing.assert_array_equal(array, seen[best][name])


def test_arrays_stay_the_same_objects(examples):
    made = training(examples)
    before = {k: v.ctypes.data for k, v in made.trainee.parameters.items()}
    made.run()
    assert before == {k: v.ctypes.data for k, v in made.trainee.parameters.items()}


def test_a_seed_is_a_result(examples):
    one, two = training(examples), training(examples)
    for made in (one, two):
        made.run()
    for name in one.trainee.parameters:
        assert one.trainee.parameters[name].tobytes() == two.trainee.parameters[name].tobytes()


def stop(*_):
    raise Stop


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("after", [1, 9, 10, 11, 37, 49])
def test_resumed_is_the_same_bit_by_bit(examples, tmp_path, monkeypatch, optimizer, after):
    whole = training(examples, optimizer=optimizer, rate=0.02)
    outcome = whole.run()
    monkeypatch.setattr(module, "SECONDS", -1.0)  # a checkpoint after each step
    line = Line()
    judge = Judge(line, ["y"], examples, whole.shares, given)
    scores = []
    broken = training(
        examples, line, lambda: scores.append(judge()) or scores[-1], optimizer, rate=0.02, folder=tmp_path
    )
    kept, line.step = (
        line.step,
        lambda *both: stop() if broken.optimizer.steps == after and len(scores) else kept(*both),
    )
    judge.model = Judged(kept)
    with pytest.raises(Stop):
        broken.run()
    again = training(examples, optimizer=optimizer, rate=0.02, folder=tmp_path)
    second = again.run()
    assert (second.resumed, second.steps) == (after, 50 - after)
    assert (second.start, second.epochs, second.best) == (outcome.start, outcome.epochs, outcome.best)
    for name, array in whole.trainee.parameters.items():
        assert again.trainee.parameters[name].tobytes() == array.tobytes()


@dataclass
class Judged:
    step: object


def test_a_finished_training_is_not_run_again(examples, tmp_path):
    first = training(examples, folder=tmp_path)
    first.run()
    again = training(examples, folder=tmp_path)
    outcome = again.run()
    assert (outcome.steps, outcome.resumed, len(outcome.epochs)) == (0, 50, 5) and again.trainee.steps == 0
    assert again.trainee.parameters["w"].tobytes() == first.trainee.parameters["w"].tobytes()
    assert training(examples, folder=tmp_path, resume=False).run().steps == 50


def test_other_options_are_refused(examples, tmp_path):
    training(examples, folder=tmp_path, epochs=1).run()
    with pytest.raises(OptionError, match=r"lr 0\.05 there, 0\.1 now"):
        training(examples, folder=tmp_path, epochs=1, rate=0.1).run()


@pytest.mark.parametrize(
    ("at", "trouble", "text"),
    [
        (14, lambda loss, g: (np.nan, g), r"step 12 of 50 \(epoch 2\): the loss is nan: a lower learning rate .*0\.05"),
        (14, lambda loss, g: (np.inf, g), "the loss is inf"),
        (
            14,
            lambda loss, g: (0.5, {**g, "b": g["b"] * np.nan}),
            "the loss is 0.5, and the gradient of 'b' is not finite",
        ),
        (2, lambda loss, g: (np.nan, g), r"step 1 of 50 \(epoch 1\): the loss is nan: check the data"),
        (1, lambda loss, g: (np.nan, g), "before the first step the loss on held-out samples is nan: check the data"),
    ],
)
def test_what_is_not_finite_stops(examples, tmp_path, at, trouble, text):
    line = Line(trouble={at: trouble})  # the first call judges the start, the twelfth the first epoch
    with pytest.raises(TrainingError, match=text):
        training(examples, line, folder=tmp_path).run()
    assert {p.name for p in tmp_path.iterdir()} == ({FILE} if at > 10 else set())
    if at > 10:
        assert training(examples, folder=tmp_path).run().resumed == 10


def test_divergence_is_found_without_warnings(examples):
    with pytest.raises(TrainingError, match="lower learning rate"):
        training(examples, optimizer="sgd", rate=1e30).run()


def test_progress_says_loss_and_score(examples):
    calls = []
    ctx = Context(progress=lambda *call: calls.append(call))
    shares = divide(examples, 4, 0.1, Context())
    line = Line()
    judge = Judge(line, ["y"], examples, shares, given, lambda feeds: {"y": feeds["x"] @ WEIGHT.T + BIAS})
    training(examples, line, judge, epochs=2, ctx=ctx).run()
    labels, done, totals = zip(*calls, strict=True)
    assert list(done) == list(range(1, 21)) and set(totals) == {20}
    assert all(label.startswith("train: loss ") and " dB" in label for label in labels)


def test_score_is_of_the_held_out_samples(examples):
    line = Line()
    shares = divide(examples, 4, 0.2, Context())
    x = np.concatenate([examples[i].feeds["x"] for i in shares.held])
    y = np.concatenate([examples[i].targets["y"] for i in shares.held])
    assert len(x) == 8
    line.parameters["w"][:] = WEIGHT
    score = Judge(line, ["y"], examples, shares, given, lambda feeds: {"y": feeds["x"] @ WEIGHT.T + BIAS})()
    assert score.loss == pytest.approx(float(BIAS[0]) ** 2)
    assert score.sqnr_db == pytest.approx(
        10 * np.log10((y.astype(float) ** 2).sum() / (8 * float(BIAS[0]) ** 2)), rel=1e-4
    )
    assert score.accuracy is None


def test_accuracy_counts_labels(examples):
    labels = Examples(True)
    for i in range(8):
        labels.append(Example({"x": np.full((1, 3), i, np.float32)}, {"y": np.array([i % 4])}))

    class Guess:
        def step(self, feeds, targets):
            return 1.0, {}

        def evaluate(self, feeds):
            return [np.eye(4, dtype=np.float32)[(feeds["x"][:, 0].astype(int) % 4) // 2 * 2]]  # right for 0 and 2

    shares = divide(labels, 2, 0.5, Context())
    score = Judge(Guess(), ["y"], labels, shares, given, labels=True)()
    assert score.accuracy == np.mean([i % 4 in (0, 2) for i in shares.held])
    assert str(score).endswith(f"accuracy {score.accuracy:.1%}")
