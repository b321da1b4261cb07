"""A model with what training has to deal with: convolutions, a shortcut, Gemm, int32 biases, uint8 activations."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxq
from onnxq.border import to_proto
from onnxq.context import Context
from onnxq.errors import DataError, InputError, OptionError, UnsupportedError
from onnxq.training.engine import trainable
from tests.training.quantized import model_of, run

TEXT = """<ir_version: 10, opset_import: ["": 21]> net (float[n, 3, 8, 8] x) => (float[n, 5] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)  r = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 4>(r, w1, b1)  t = Add(c, r)  u = Relu(t)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(u)  f = Flatten(p)  y = Gemm<transB = 1>(f, w2, b2)
}"""
SHAPES = {"w0": (4, 3, 3, 3), "b0": (4,), "w1": (4, 1, 3, 3), "b1": (4,), "w2": (5, 64), "b2": (5,)}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3, 8, 8)).astype(np.float32)
TARGET = RNG.normal(size=(6, 5)).astype(np.float32)
RECIPES = {
    "int8": {},
    "int4 weights": {"weights": "int4"},
    "uint4 blocks": {"weights": "uint4", "symmetric": "no", "activations": "uint16"},
    "w8a16": {"activations": "int16"},
}


@pytest.fixture(scope="module")
def quantized():
    """A quantized model by the name of its recipe; each is made once."""
    proto = parser.parse_model(TEXT)
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=shape) * (np.prod(shape[1:]) or 1) ** -0.5 for name, shape in SHAPES.items()}
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    made = {}

    def make(recipe):
        if recipe not in made:
            options = {"search": False, "rounding": "nearest", **RECIPES[recipe]}
            made[recipe] = onnxq.quantize(proto, [{"x": X}], recipe="int8", **options).model
        return ir.from_proto(made[recipe])

    return make


def descend(trainee, steps=20, rate=0.05):
    """Losses of some steps of gradient descent."""
    losses = []
    for _ in range(steps):
        loss, gradients = trainee.step({"x": X}, {"y": TARGET})
        losses.append(loss)
        for name, gradient in gradients.items():
            if trainee.kinds[name] == "scale":
                trainee.parameters[name] *= np.exp(-0.1 * rate * gradient * trainee.parameters[name])
            else:
                trainee.parameters[name] -= rate * gradient
    return losses


def contents(model):
    """Nodes in order and initializers by name."""
    graph = to_proto(model).graph
    return [str(n) for n in graph.node], {i.name: i.SerializeToString(deterministic=True) for i in graph.initializer}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_start_is_the_model_and_an_untrained_model_is_the_same_file(quantized, recipe):
    model = quantized(recipe)
    before = to_proto(model).SerializeToString(deterministic=True)
    trainee = trainable(model, "mse", batch={"x": X}, scales=True, threads=1)
    np.testing.assert_allclose(trainee.evaluate({"x": X})[0], run(model, {"x": X})[0], atol=1e-6)
    assert contents(trainee.finish()) == contents(model)
    assert to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_training_lowers_the_loss_and_the_file_computes_what_was_trained(quantized, recipe, scales):
    trainee = trainable(quantized(recipe), "mse", batch={"x": X}, scales=scales, threads=1)
    losses = descend(trainee)
    assert losses[-1] < 0.7 * losses[0]
    # Biases are rounded to s_x * s_w, which may push single activations over the border between two steps.
    (found,), (expected,) = run(trainee.finish(), {"x": X}), trainee.evaluate({"x": X})
    assert np.abs(found - expected).max() < 0.05
    loss, _ = trainee.step({"x": X}, {"y": TARGET})
    assert np.mean((found - TARGET) ** 2) == pytest.approx(loss, rel=0.01)


def test_weights_are_exactly_those_of_the_twin(quantized):
    """Without new biases there is no rounding but that of weights and activations, which the file repeats."""
    model = quantized("int8")
    trainee = trainable(model, "mse", batch={"x": X}, threads=1, train=lambda v: not v.name.startswith("b"))
    descend(trainee, 5)
    assert all(kind != "bias" for kind in trainee.kinds.values())
    np.testing.assert_allclose(run(trainee.finish(), {"x": X})[0], trainee.evaluate({"x": X})[0], atol=1e-6)


def test_biases_are_re_encoded_at_the_product_of_the_learned_scales(quantized):
    trainee = trainable(quantized("int8"), "mse", batch={"x": X}, scales=True, threads=1)
    descend(trainee, 5)
    model = trainee.finish()
    nodes = [n for n in model.graph if n.op_type in ("Conv", "Gemm")]
    assert len(nodes) == 3
    for node in nodes:
        x, w, b = (value.producer() for value in node.inputs)
        s_x, s_w, s_b = (dq.inputs[1].const_value.numpy() for dq in (x, w, b))
        np.testing.assert_array_equal(s_b, (np.float64(s_x) * s_w.astype(np.float64)).astype(np.float32))
        source = next(p for p in trainee.parameters if p.startswith(b.inputs[0].name.removesuffix("_quantized")))
        expected = trainee.parameters[source].astype(np.float64) / s_b
        np.testing.assert_array_equal(b.inputs[0].const_value.numpy(), np.rint(expected))


def test_parameters_are_read_where_they_lie_and_sessions_are_made_once(quantized):
    trainee = trainable(quantized("int8"), "mse", batch={"x": X}, threads=1)
    first = trainee.evaluate({"x": X[:1]})[0]
    made = trainee._evaluator
    trainee.parameters["w2"] *= 0.5
    assert not np.array_equal(trainee.evaluate({"x": X[:1]})[0], first)
    assert trainee._evaluator is made


def test_frozen_constants_are_no_parameters_and_their_pairs_stay(quantized):
    trainee = trainable(
        quantized("int8"), "mse", batch={"x": X}, scales=True, threads=1, train=lambda v: v.name == "w2"
    )
    assert set(trainee.parameters) == {"w2", "w2.scale"}
    descend(trainee, 3)
    before, after = (m.graph.initializers for m in (quantized("int8"), trainee.finish()))
    changed = {n for n in before if not np.array_equal(before[n].const_value.numpy(), after[n].const_value.numpy())}
    assert changed == {"w2_quantized", "w2_scale", "b2_scale", "b2_quantized"}


def test_float_weights_in_front_of_pairs_stay_float(quantized):
    from onnxq.passes.thaw import Thaw

    model = quantized("int8")
    Thaw(form="fake-quant").run(model, Context())
    trainee = trainable(model, "mse", batch={"x": X}, threads=1)
    trainee.parameters["w2"] += 0.001
    np.testing.assert_array_equal(
        trainee.finish().graph.initializers["w2"].const_value.numpy(), trainee.parameters["w2"]
    )


def test_lsq_factors(quantized):
    """1 / sqrt(values * qmax) / s²: 64 weights behind each scale of w2, 4 x 8 x 8 values of a sample behind r."""
    trainee = trainable(quantized("int8"), "mse", batch={"x": X}, scales=True, threads=1)
    w2, r = trainee.parameters["w2.scale"].astype(np.float64), float(trainee.parameters["r.scale"])
    assert trainee.gradient_scale["w2.scale"] == pytest.approx((64 * 127) ** -0.5 / np.mean(w2**2))
    assert trainee.gradient_scale["r.scale"] == pytest.approx((256 * 255) ** -0.5 / r**2)
    assert set(trainee.gradient_scale) == {name for name, kind in trainee.kinds.items() if kind == "scale"}


def test_bad_calls_say_what_is_wrong(quantized):
    model = quantized("int8")
    with pytest.raises(DataError, match="the batch has no x"):
        trainable(model, "mse", batch={"image": X})
    with pytest.raises(OptionError, match="nothing to train"):
        trainable(model, "mse", batch={"x": X}, train=lambda value: False)
    trainee = trainable(model, "mse", batch={"x": X}, threads=1)
    with pytest.raises(DataError, match="targets are needed for y; got logits"):
        trainee.step({"x": X}, {"logits": TARGET})
    with pytest.raises(InputError, match="x"):
        trainee.step({"x": X[:2]}, {"y": TARGET[:2]})


def test_ops_without_a_gradient_are_named_before_anything_runs():
    text = """(float[2, 2] x) => (float[2, 2] y) {
        q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  h = MatMul(x, d)  k, i = TopK(h, n)  y = Hardmax(k)
    }"""
    model = model_of(text, w=np.eye(2, dtype=np.float32), s=np.float32(0.1), z=np.int8(0), n=np.array([2]))
    with pytest.raises(UnsupportedError, match="Hardmax"):
        trainable(model, "mse", batch={"x": np.eye(2, dtype=np.float32)})


def test_older_opsets_and_constant_nodes_are_taken():
    text = """(float[n, 2] x) => (float[n, 2] y) {
        s = Constant<value = float {0.1}>()  z = Constant<value = int8 {0}>()
        q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  h = MatMul(x, d)  y = Softmax(h)
    }"""
    w = np.array([[0.5, 1.0], [0.2, -0.3]], np.float32)
    model = model_of(text, 11, w=w)
    trainee = trainable(model, "distill", batch={"x": w}, scales=True, threads=1)
    np.testing.assert_allclose(trainee.evaluate({"x": w})[0], run(model, {"x": w})[0], rtol=1e-6)
    assert set(trainee.parameters) == {"w", "w.scale"}
    assert trainee.finish().opset_imports[""] == 11
