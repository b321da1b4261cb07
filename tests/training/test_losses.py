"""Losses against NumPy, and where a Softmax hides the logits."""

import numpy as np
import pytest

from onnxq.errors import OptionError
from onnxq.training.engine import trainable
from onnxq.training.losses import compared
from tests.training.quantized import model_of, run

rng = np.random.default_rng(0)
WEIGHT = rng.normal(size=(3, 4)).astype(np.float32)
X = rng.normal(size=(5, 3)).astype(np.float32)
PAIR = "q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  "
ARRAYS = {"w": WEIGHT, "s": np.float32(0.05), "z": np.int8(0)}
LOGITS = X @ (np.rint(WEIGHT / np.float32(0.05)) * 0.05)
LINEAR = f"(float[n, 3] x) => (float[n, 4] y) {{ {PAIR} y = MatMul(x, d) }}"
SOFTMAX = f"(float[n, 3] x) => (float[n, 4] y) {{ {PAIR} l = MatMul(x, d)  y = Softmax(l) }}"
SOFTMAX_PAIR = f"""(float[n, 3] x) => (float[n, 4] y) {{
    {PAIR} l = MatMul(x, d)  p = Softmax(l)  i = QuantizeLinear(p, r, zr)  y = DequantizeLinear(i, r, zr)
}}"""
PAIR_ARRAYS = {"r": np.float32(1 / 256), "zr": np.uint8(0)}


def loss_of(text, loss, target, **arrays):
    trainee = trainable(model_of(text, **ARRAYS, **arrays), loss, batch={"x": X}, threads=1)
    return trainee.step({"x": X}, {"y": target})


def entropy(logits, labels, axis=-1):
    logs = logits - np.log(np.exp(logits).sum(axis, keepdims=True))
    return -np.take_along_axis(logs, np.expand_dims(labels, axis), axis).mean()


def test_mse():
    target = rng.normal(size=LOGITS.shape).astype(np.float32)
    loss, gradients = loss_of(LINEAR, "mse", target)
    assert loss == pytest.approx(np.mean((LOGITS - target) ** 2), rel=1e-5)
    np.testing.assert_allclose(gradients["w"], X.T @ (2 * (LOGITS - target) / target.size), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", [LINEAR, SOFTMAX, SOFTMAX_PAIR])
def test_distill_compares_logits(text):
    target = rng.normal(3, 2, LOGITS.shape).astype(np.float32)
    loss, gradients = loss_of(text, "distill", target, **PAIR_ARRAYS)
    assert loss == pytest.approx(np.mean((LOGITS - target) ** 2) / target.var(), rel=1e-4)
    expected = X.T @ (2 * (LOGITS - target) / target.size) / target.var()
    np.testing.assert_allclose(gradients["w"], expected, rtol=1e-3, atol=1e-6)


def test_distill_takes_a_constant_target():
    assert np.isfinite(loss_of(LINEAR, "distill", np.full_like(LOGITS, 2, np.float32))[0])


@pytest.mark.parametrize("text", [LINEAR, SOFTMAX, SOFTMAX_PAIR])
def test_cross_entropy(text):
    labels = np.array([0, 3, 1, 1, 2])
    loss, gradients = loss_of(text, "cross-entropy", labels, **PAIR_ARRAYS)
    assert loss == pytest.approx(entropy(LOGITS, labels), rel=1e-4)
    share = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    np.testing.assert_allclose(gradients["w"], X.T @ (share - np.eye(4)[labels]) / 5, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("softmax", "axis"), [("y = Identity(l)", 1), ("y = Softmax<axis = -1>(l)", -1)])
def test_cross_entropy_of_positions_has_the_classes_where_the_softmax_has_them(softmax, axis):
    text = f"(float[n, 2, 3] x) => (float[n, 2, 4] y) {{ {PAIR} l = MatMul(x, d)  {softmax} }}"
    x = rng.normal(size=(3, 2, 3)).astype(np.float32)
    labels = np.ones((3, 4) if axis == 1 else (3, 2), np.int64)
    logits = x @ (np.rint(WEIGHT / np.float32(0.05)) * 0.05)
    trainee = trainable(model_of(text, **ARRAYS), "cross-entropy", batch={"x": x}, threads=1)
    assert trainee.step({"x": x}, {"y": labels})[0] == pytest.approx(entropy(logits, labels, axis), rel=1e-4)


def test_losses_of_several_outputs_add_up_and_integer_outputs_do_not_count():
    text = f"""(float[n, 3] x) => (float[n, 4] y, float[n, 4] r, int64[n] k) {{
        {PAIR} y = MatMul(x, d)  r = Relu(y)  k = ArgMax<axis = 1, keepdims = 0>(y)
    }}"""
    model = model_of(text, **ARRAYS)
    trainee = trainable(model, "mse", batch={"x": X}, threads=1)
    loss, _ = trainee.step({"x": X}, {"y": np.zeros_like(LOGITS, np.float32), "r": np.ones_like(LOGITS, np.float32)})
    assert loss == pytest.approx(np.mean(LOGITS**2) + np.mean((np.maximum(LOGITS, 0) - 1) ** 2), rel=1e-5)
    for found, expected in zip(trainee.evaluate({"x": X}), run(model, {"x": X}), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(OptionError, match="cross-entropy needs a model with one float output, not 'y', 'r'"):
        trainable(model, "cross-entropy", batch={"x": X})


def test_targets_are_made_of_what_is_compared():
    model = model_of(SOFTMAX_PAIR, **ARRAYS, **PAIR_ARRAYS)
    (output,) = model.graph.outputs
    assert compared(output, "distill").name == "l"
    assert compared(output, "mse") is output


def test_an_unknown_loss_and_outputs_without_floats_are_refused():
    with pytest.raises(OptionError, match=r"unknown loss 'crossentropy'; did you mean cross-entropy\?"):
        trainable(model_of(LINEAR, **ARRAYS), "crossentropy", batch={"x": X})
    text = f"(float[n, 3] x) => (int64[n, 1] k) {{ {PAIR} y = MatMul(x, d)  k = ArgMax<axis = 1>(y) }}"
    with pytest.raises(OptionError, match="no output is float32"):
        trainable(model_of(text, **ARRAYS), "mse", batch={"x": X})
