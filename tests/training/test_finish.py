"""What a trained model becomes where a bias and its scales do not go together."""

import numpy as np
import pytest

from onnxq.context import Context
from onnxq.training.engine import trainable
from tests.training.quantized import model_of, notes, run

LINEAR = """(float[n, 2] x) => (float[n, 2] y) {
    qx = QuantizeLinear(x, sx, zx)  dx = DequantizeLinear(qx, sx, zx)
    qw = QuantizeLinear<axis = 0>(w, sw, zw)  dw = DequantizeLinear<axis = 0>(qw, sw, zw)
    db = DequantizeLinear<axis = 0>(b, sb)  y = Gemm<transB = 1>(dx, dw, db)
}"""
X = np.array([[0.5, -0.25], [1.0, 0.75]], np.float32)
SX, SW = np.float32(2**-7), np.array([2**-6, 2**-20], np.float32)


def linear(**others):
    arrays = {"sx": SX, "zx": np.int8(0), "sw": SW, "zw": np.zeros(2, np.int8), "sb": SX * SW}
    weight = np.array([[10, -20], [30, 40]]) * SW[:, None]
    return model_of(LINEAR, **arrays | {"w": weight.astype(np.float32), "b": np.array([100, -200], np.int32)} | others)


def test_a_bias_that_grows_out_of_int32_raises_its_weight_scale():
    """Channel 1: 1000 / (2^-7 * 2^-20) is 1.3e11; float32 products with a coarser weight come near to it."""
    ctx = Context()
    trainee = trainable(linear(), "mse", batch={"x": X}, threads=1, ctx=ctx)
    trainee.parameters["b.float"][...] = [0.01, 1000.0]
    model = trainee.finish()
    stored = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    assert stored["sw"][0] == SW[0]
    assert stored["sw"][1] > SW[1]
    np.testing.assert_array_equal(stored["sb"], SX * stored["sw"])
    assert np.abs(stored["b"].astype(np.int64)).max() < 2**31 - 1
    np.testing.assert_allclose(run(model, {"x": X})[0], trainee.evaluate({"x": X})[0], rtol=1e-3)
    assert notes(ctx, "raised-weight-scale") == [
        "the bias has grown out of int32 in 1 channel: there the weight scale is raised"
    ]


def test_a_bias_of_products_wider_than_8_bits_gets_a_scale_of_its_own():
    ctx = Context()
    trainee = trainable(linear(zx=np.int16(0)), "mse", batch={"x": X}, threads=1, ctx=ctx)
    trainee.parameters["b.float"][...] = [0.01, 1000.0]
    model = trainee.finish()
    stored = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    np.testing.assert_array_equal(stored["sw"], SW)
    assert stored["sb"][0] == SX * SW[0]
    assert stored["sb"][1] == pytest.approx(1000 / 2**31, rel=1e-6)
    np.testing.assert_allclose(run(model, {"x": X})[0], trainee.evaluate({"x": X})[0], atol=2**-13)
    assert len(notes(ctx, "own-bias-scale")) == 1


def test_a_bias_scale_that_was_no_product_stays():
    scale = np.array([0.001, 0.002], np.float32)
    trainee = trainable(linear(sb=scale), "mse", batch={"x": X}, scales=True, threads=1)
    trainee.parameters["x.scale" if "x.scale" in trainee.parameters else "w.scale"] *= 1.25
    trainee.parameters["b.float"][...] = [0.0123, -0.5]
    stored = trainee.finish().graph.initializers
    np.testing.assert_array_equal(stored["sb"].const_value.numpy(), scale)
    np.testing.assert_array_equal(stored["b"].const_value.numpy(), [12, -250])


def test_layers_that_share_a_bias_get_copies_when_their_scales_part():
    text = """(float[n, 2] x) => (float[n, 2] y, float[n, 2] v) {
        qx = QuantizeLinear(x, sx, zx)  dx = DequantizeLinear(qx, sx, zx)
        qw = QuantizeLinear(w, s0, z0)  dw = DequantizeLinear(qw, s0, z0)
        qu = QuantizeLinear(u, s1, z0)  du = DequantizeLinear(qu, s1, z0)
        db = DequantizeLinear(b, sb)  y = Gemm(dx, dw, db)  v = Gemm(dx, du, db)
    }"""
    scale = np.float32(2**-6)
    arrays = {"sx": SX, "zx": np.int8(0), "s0": scale, "s1": scale, "z0": np.int8(0), "sb": SX * scale}
    eye = np.eye(2, dtype=np.float32)
    model = model_of(text, **arrays, w=eye, u=eye * 0.5, b=np.array([100, -200], np.int32))
    trainee = trainable(model, "mse", batch={"x": X}, scales=True, threads=1)
    trainee.parameters["u.scale"] *= 1.25
    done = trainee.finish()
    products = [n for n in done.graph if n.op_type == "Gemm"]
    biases = [n.inputs[2].producer() for n in products]
    scales = [float(dq.inputs[1].const_value.numpy()) for dq in biases]
    assert scales == [float(SX * scale), float(SX * scale * np.float32(1.25))]
    for found, expected in zip(run(done, {"x": X}), trainee.evaluate({"x": X}), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_finished_model_does_not_follow_later_steps():
    trainee = trainable(linear(), "mse", batch={"x": X}, threads=1)
    done = trainee.finish()
    before = run(done, {"x": X})[0]
    for array in trainee.parameters.values():
        array += 1
    np.testing.assert_array_equal(run(done, {"x": X})[0], before)
