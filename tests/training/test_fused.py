"""Pairs on kernels of their own: the same numbers, and only where they are the same."""

import numpy as np
import pytest

from onnxq.training import engine
from onnxq.training.engine import trainable
from tests.training.quantized import integers, model_of, run

TEXT = """(float[n, 8] x) => (float[n, 4] y) {
    h = MatMul(x, v)  r = Relu(h)  q = QuantizeLinear(r, s, z)  d = DequantizeLinear(q, s, z)
    p = QuantizeLinear(w, sw, zw)  u = DequantizeLinear(p, sw, zw)  y = MatMul(d, u)
}"""


def model(dtype="uint8", zero=3, scale=0.01, opset=21):
    rng = np.random.default_rng(0)
    arrays = {"v": rng.normal(size=(8, 8)).astype(np.float32), "w": rng.normal(size=(8, 4)).astype(np.float32)}
    arrays |= {"s": np.float32(scale), "z": integers(zero, dtype), "sw": np.float32(0.01), "zw": np.int8(0)}
    return model_of(TEXT, opset, **arrays)


X = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
TARGET = {"y": np.ones((16, 4), np.float32)}


def ops(trainee):
    return [node.op_type for node in trainee.proto.graph.node]


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 3), ("int8", -100), ("uint16", 0), ("int16", 5)])
def test_loss_and_gradients_are_the_same(monkeypatch, dtype, zero):
    made = model(dtype, zero, 0.01 if dtype.endswith("8") else 4e-5)  # part of the values is clipped
    quick = trainable(made, "mse", batch={"x": X}, threads=1)
    monkeypatch.setattr(engine, "fused", lambda proto: proto)
    plain = trainable(made, "mse", batch={"x": X}, threads=1)
    assert ops(quick).count("QuantizeLinear") == ops(quick).count("DequantizeLinear") == 2
    assert "Round" not in ops(quick)
    assert "QuantizeLinear" not in ops(plain)
    (loss, found), (expected, reference) = (t.step({"x": X}, TARGET) for t in (quick, plain))
    assert loss == pytest.approx(expected, rel=1e-6)
    for name, gradient in reference.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(quick.evaluate({"x": X})[0], run(made, {"x": X})[0], rtol=1e-5, atol=1e-6)


def test_learned_scales_and_four_bits_keep_the_arithmetic():
    assert "QuantizeLinear" not in ops(trainable(model(), "mse", batch={"x": X}, scales=True, threads=1))
    found = ops(trainable(model("uint4", 3, 0.2), "mse", batch={"x": X}, threads=1))
    assert (found.count("QuantizeLinear"), found.count("Round")) == (1, 1)
