"""The twin computes what onnxruntime makes of the pairs, bit for bit, and its gradient is the clipped identity."""

from contextlib import suppress

import numpy as np
import pytest

from onnxq.context import Context
from onnxq.errors import UnsupportedError
from onnxq.numerics.spec import QTYPES
from onnxq.training.engine import trainable
from tests.training.quantized import integers, model_of, notes, run

TYPES = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16")
DIMS = (6, 10)
PLACES = {"tensor": "", "axis 0": "<axis = 0>", "axis 1": "<axis = -1>"}
PLACES |= {
    "blocks": "<axis = 1, block_size = 5>",
    "short block": "<axis = 1, block_size = 4>",
    "rows": "<axis = 0, block_size = 2>",
}
SHAPES = {"tensor": (), "axis 0": (6,), "axis 1": (10,), "blocks": (6, 2), "short block": (6, 3), "rows": (3, 10)}


def pair_of_weight(attributes, scale, zero, weight, opset=25):
    text = f"""(float[6, 10] x) => (float[6, 10] y) {{
        q = QuantizeLinear{attributes}(w, s, z)  d = DequantizeLinear{attributes}(q, s, z)  y = Add(d, x)
    }}"""
    return model_of(text, opset, w=weight, s=scale, z=zero)


def drawn(rng, dtype, shape):
    """Scales, zero points and data, some of it beyond the range, some of it half way between two steps."""
    qtype = QTYPES[dtype]
    scale = rng.uniform(0.05, 0.2, shape).astype(np.float32)
    zero = rng.integers(qtype.qmin, qtype.qmax, shape, endpoint=True) if dtype != "int8" else np.zeros(shape)
    steps = rng.uniform(1.3 * qtype.qmin - 2, 1.3 * qtype.qmax + 2, DIMS)
    steps = np.where(rng.uniform(size=DIMS) < 0.3, np.floor(steps) + 0.5, steps)
    return scale, integers(zero, dtype), (steps * scale.mean()).astype(np.float32)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_rounded_as_onnxruntime_rounds_them(dtype, place):
    rng = np.random.default_rng(0)
    model = pair_of_weight(PLACES[place], *drawn(rng, dtype, SHAPES[place]))
    feeds = {"x": np.zeros(DIMS, np.float32)}
    for scales in (False, True):
        trainee = trainable(model, "mse", batch=feeds, scales=scales, threads=1)
        np.testing.assert_array_equal(trainee.evaluate(feeds)[0], run(model, feeds)[0])
        assert trainee.parameters.keys() == ({"w", "w.scale"} if scales else {"w"})


@pytest.mark.parametrize("dtype", TYPES)
def test_activations_are_rounded_as_onnxruntime_rounds_them(dtype):
    scale, zero, x = drawn(np.random.default_rng(1), dtype, ())
    text = """(float[n, 10] x) => (float[n, 10] y) {
        t = MatMul(x, w)  q = QuantizeLinear(t, s, z)  y = DequantizeLinear(q, s, z)
    }"""
    model = model_of(text, 25, w=np.eye(10, dtype=np.float32), s=scale, z=zero)
    trainee = trainable(model, "mse", batch={"x": x}, scales=True, threads=1)
    np.testing.assert_array_equal(trainee.evaluate({"x": x})[0], run(model, {"x": x})[0])
    np.testing.assert_array_equal(trainee.evaluate({"x": x[:2]})[0], run(model, {"x": x[:2]})[0])


@pytest.mark.parametrize("place", PLACES)
def test_gradients_are_clipped_identity_and_lsq(place):
    """Esser et al., Learned Step Size Quantization, 2020, equations 3 and 5."""
    rng = np.random.default_rng(2)
    scale = rng.uniform(0.05, 0.2, SHAPES[place]).astype(np.float32)
    zero = integers(rng.integers(-3, 3, SHAPES[place]), "int4")
    weight = rng.uniform(-1.2, 1.2, DIMS).astype(np.float32)
    model = pair_of_weight(PLACES[place], scale, zero, weight)
    feeds, target = {"x": np.zeros(DIMS, np.float32)}, rng.normal(size=DIMS).astype(np.float32)
    loss, found = trainable(model, "mse", batch=feeds, scales=True, threads=1).step(feeds, {"y": target})

    index = np.indices(DIMS)
    at = {"tensor": (), "axis 0": (index[0],), "axis 1": (index[1],), "blocks": (index[0], index[1] // 5)}
    at |= {"short block": (index[0], index[1] // 4), "rows": (index[0] // 2, index[1])}
    s, z = scale.astype(np.float64)[at[place]], zero.astype(np.float64)[at[place]]
    u = weight / s
    inside = (u >= -8 - z) & (u <= 7 - z)
    d = np.rint(np.clip(u, -8 - z, 7 - z))
    up = 2 * (d * s - target) / d.size
    step = up * (d - inside * u)
    of_scale = np.zeros(scale.shape) if scale.shape else step.sum()
    if scale.shape:
        np.add.at(of_scale, at[place], step)
    assert loss == pytest.approx(np.mean((d * s - target) ** 2), rel=1e-5)
    np.testing.assert_allclose(found["w"], up * inside, atol=1e-7)
    np.testing.assert_allclose(found["w.scale"], of_scale, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_the_largest_weights_are_not_clipped_when_training_begins(dtype):
    """In float32, qmax * s divided by s is more than qmax for a seventh of all s."""
    scale = np.random.default_rng(5).uniform(0.001, 0.1, 200).astype(np.float32)
    bounds = np.array([QTYPES[dtype].qmin, QTYPES[dtype].qmax], np.float32)
    weight = bounds[:, None] * scale
    assert (weight / scale > bounds[1]).any()
    text = """(float[2, 200] x) => (float[2, 200] y) {
        q = QuantizeLinear<axis = 1>(w, s, z)  d = DequantizeLinear<axis = 1>(q, s, z)  y = Add(d, x)
    }"""
    model = model_of(text, w=weight, s=scale, z=integers(np.zeros(200), dtype))
    feeds = {"x": np.zeros((2, 200), np.float32)}
    trainee = trainable(model, "mse", batch=feeds, threads=1)
    np.testing.assert_array_equal(trainee.evaluate(feeds)[0], run(model, feeds)[0])
    assert trainee.step(feeds, {"y": feeds["x"]})[1]["w"].all()


def test_a_weight_behind_several_pairs_is_one_parameter_with_the_sum_of_gradients():
    text = """(float[2, 4] x) => (float[2, 4] y) {
        qa = QuantizeLinear(w, s, z)  a = DequantizeLinear(qa, s, z)
        t = Transpose(w)  qb = QuantizeLinear<axis = 1>(t, r, zr)  b = DequantizeLinear<axis = 1>(qb, r, zr)
        h = MatMul(x, a)  y = MatMul(h, b)
    }"""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(4, 4)).astype(np.float32)
    arrays = {"s": np.float32(0.05), "z": np.int8(0), "r": np.full(4, 0.1, np.float32), "zr": np.zeros(4, np.int8)}
    model = model_of(text, w=weight, **arrays)
    x, target = rng.normal(size=(2, 2, 4)).astype(np.float32)
    trainee = trainable(model, "mse", batch={"x": x}, threads=1)
    (found,) = trainee.step({"x": x}, {"y": target})[1].values()
    a, b = np.rint(weight / 0.05) * 0.05, np.rint(weight.T / 0.1) * 0.1
    up = 2 * (x @ a @ b - target) / target.size
    np.testing.assert_allclose(found, x.T @ (up @ b.T) + ((x @ a).T @ up).T, rtol=1e-4)
    assert list(trainee.parameters) == ["w"]


MOVED = """(float[1, 2, 4, 4] x) => (float[1, 8] y) {
    a = Conv(x, w)  q = QuantizeLinear(a, s, z)  m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(q)
    f = Flatten(m)  y = DequantizeLinear(f, s, z)
}"""


def test_data_may_move_between_the_halves_of_a_pair():
    rng = np.random.default_rng(4)
    w = rng.normal(size=(2, 2, 1, 1)).astype(np.float32)
    model = model_of(MOVED, w=w, s=np.float32(0.1), z=np.int8(-5))
    x = rng.normal(size=(1, 2, 4, 4)).astype(np.float32)
    trainee = trainable(model, "mse", batch={"x": x}, scales=True, threads=1)
    np.testing.assert_array_equal(trainee.evaluate({"x": x})[0], run(model, {"x": x})[0])
    assert trainee.kinds == {"a.scale": "scale", "w": "weight"}
    assert trainee.step({"x": x}, {"y": np.zeros((1, 8), np.float32)})[1]["w"].any()


def test_pairs_that_data_movement_ties_together_keep_one_scale():
    text = """(float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y, float[1, 32] z) {
        a = Conv(x, w)  q = QuantizeLinear(a, s0, zp)  d = DequantizeLinear(q, s0, zp)
        m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d)
        p = QuantizeLinear(m, s1, zp)  y = DequantizeLinear(p, s2, zp)
        f = Flatten(d)  o = QuantizeLinear(f, s3, zp)  z = DequantizeLinear(o, s3, zp)
    }"""
    scale, other = np.float32(0.1), np.float32(0.2)
    arrays = {"s0": scale, "s1": scale, "s2": scale, "s3": other, "zp": np.int8(0)}
    model = model_of(text, w=np.ones((2, 2, 1, 1), np.float32), **arrays)
    trainee = trainable(model, "mse", batch={"x": np.ones((1, 2, 4, 4), np.float32)}, scales=True, threads=1)
    assert set(trainee.parameters) == {"a.scale", "f.scale", "w"}
    trainee.parameters["a.scale"][...] = 0.125
    stored = trainee.finish().graph.initializers
    assert [float(stored[f"s{i}"].const_value.numpy()) for i in range(4)] == [0.125, 0.125, 0.125, other]


def test_scales_that_others_read_are_not_learned():
    text = """(float[2] x) => (float[2] y) {
        q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  t = Mul(d, s)  y = Add(t, x)
    }"""
    model = model_of(text, w=np.ones(2, np.float32), s=np.float32(0.1), z=np.int8(0))
    ctx = Context()
    trainee = trainable(model, "mse", batch={"x": np.ones(2, np.float32)}, scales=True, threads=1, ctx=ctx)
    assert list(trainee.parameters) == ["w"]
    assert notes(ctx, "scale-kept") == ["the scale 's' is not learned: other nodes read it, too"]


BODIES = """(float[2, 2] x, bool c) => (float[2, 2] y) {{
    q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  h = MatMul(x, d)
    b = If(c) <
        then_branch = t () => (float[2, 2] u) {{ {} }},
        else_branch = f () => (float[2, 2] v) {{ v = Identity(x) }}
    >
    y = Add(h, b)
}}"""
SMALL = {"w": np.array([[0.11, 0.2], [0.3, 0.4]], np.float32), "s": np.float32(0.1), "z": np.int8(0)}


def test_a_body_may_read_the_integers_of_a_pair_outside():
    model = model_of(BODIES.format("e = DequantizeLinear(q, s, z)  u = MatMul(x, e)"), **SMALL)
    feeds = {"x": np.eye(2, dtype=np.float32), "c": np.array(True)}
    trainee = trainable(model, "mse", batch=feeds, scales=True, threads=1)
    np.testing.assert_array_equal(trainee.evaluate(feeds)[0], run(model, feeds)[0])
    gradients = trainee.step(feeds, {"y": np.zeros((2, 2), np.float32)})[1]
    np.testing.assert_allclose(gradients["w"], trainee.evaluate(feeds)[0], rtol=1e-6)  # y / 2 by each of two paths
    trainee.parameters["w"] += 0.1
    np.testing.assert_allclose(trainee.evaluate(feeds)[0], [[0.4, 0.6], [0.8, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(run(trainee.finish(), feeds)[0], [[0.4, 0.6], [0.8, 1.0]], rtol=1e-6)


def test_pairs_in_bodies_are_computed_and_not_trained():
    model = model_of(BODIES.format("p = QuantizeLinear(x, s, z)  u = DequantizeLinear(p, s, z)"), **SMALL)
    ctx, feeds = Context(), {"x": np.array([[0.11, 0.22], [0.33, 0.44]], np.float32), "c": np.array(True)}
    trainee = trainable(model, "mse", batch=feeds, scales=True, threads=1, ctx=ctx)
    np.testing.assert_array_equal(trainee.evaluate(feeds)[0], run(model, feeds)[0])
    assert notes(ctx, "not-trained") == 2 * ["it is in a body: computed, but without a gradient"]
    assert notes(ctx, "scale-kept") == ["the scale 's' is not learned: other nodes read it, too"]
    assert list(trainee.step(feeds, {"y": np.zeros((2, 2), np.float32)})[1]) == ["w"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "q = QuantizeLinear(h, s, z)  p = Identity(q)  d = DequantizeLinear(p, r, z)  y = Add(d, h)",
            "no gradient goes through it: DequantizeLinear '' has another scale or zero point",
        ),
        (
            "q = QuantizeLinear(h, s, z)  a = Abs(q)  d = DequantizeLinear(a, s, z)  y = Add(d, h)",
            "no gradient goes through it: Abs '' reads its integers",
        ),
    ],
)
def test_what_is_no_pair_stays_with_the_reason(text, why):
    arrays = {"s": np.float32(0.1), "r": np.float32(0.2), "z": np.int8(0), "w": np.eye(2, dtype=np.float32)}
    model = model_of(f"(float[2, 2] x) => (float[2, 2] y) {{ h = MatMul(x, w)  {text} }}", **arrays)
    ctx, x = Context(), np.ones((2, 2), np.float32)
    with suppress(UnsupportedError):
        trainable(model, "mse", batch={"x": x}, threads=1, ctx=ctx)
    assert why in notes(ctx, "not-trained")
