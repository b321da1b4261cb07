"""Rounding layer by layer: later layers make up for earlier ones, biases for means, and the model stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.facts import Axes, Edge, Encodings, Feeds, Plan, Wishes
from onnxq.numerics.affine import dequantize
from onnxq.numerics.spec import QTYPES, PerAxis, TensorSpec
from onnxq.ops import channel_axis
from onnxq.passbase import Context, run_step
from onnxq.passes.encode import Encode
from onnxq.passes.gptq import Gptq
from onnxq.rounding.gptq import SharedWeight
from onnxq.rounding.products import Product, read_product
from onnxq.rounding.sequential import stages

Array = np.ndarray[Any, Any]
I4 = TensorSpec(QTYPES["int4"], True, PerAxis())

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,10,10] x) => (float[a,b,c,d] y) {
  p = Conv<pads=[1,1,1,1]>(x, w1, b1) q = Relu(p) r = Conv<group=16, pads=[1,1,1,1]>(q, w2, b2) s = Relu(r)
  t = Conv(s, w3, b3) u = Relu(t) y = Conv(u, w4, b4) }"""
RNG = np.random.default_rng(0)
SHAPES = {"w1": (16, 8, 3, 3), "w2": (16, 1, 3, 3), "w3": (12, 16, 1, 1), "w4": (8, 12, 1, 1)}
CONSTANTS = {k: RNG.standard_normal(v) * (2 / np.prod(v[1:])) ** 0.5 for k, v in SHAPES.items()}
CONSTANTS |= {f"b{i}": 0.1 * RNG.standard_normal(n) for i, n in ((1, 16), (2, 16), (3, 12), (4, 8))}


def images(count: int, seed: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).standard_normal((8, 3))
    x = np.cumsum(np.cumsum(rng.standard_normal((count, 3, 10, 10)), axis=2), axis=3) / 8
    noise = 0.3 * rng.standard_normal((count, 8, 10, 10))
    return [{"x": v[None].astype(np.float32)} for v in np.einsum("oc,nchw->nohw", mix, x) + noise]


def rounded(text: str, constants: dict[str, Array], feeds: list[dict[str, Array]], **options: Any) -> Any:
    """The float message, the message with weights as rounded and biases as corrected, the encodings, the context."""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), k) for k, a in constants.items())
    model, ctx = ir.from_proto(proto), Context()
    ctx.put(Feeds(open_source(feeds, model=model)))
    plan, axes = Plan(Wishes(I4, I4)), Axes()
    for node in model.graph:
        if node.op_type in ("Conv", "MatMul", "LSTM"):
            for index in (1, 2) if node.op_type == "LSTM" else (1,):
                edge = Edge(node, index)
                plan.weights[edge] = I4
                axes.of[edge] = PerAxis(channel_axis(node, index, len(edge.value.shape or ())))
    ctx.put(plan, axes)
    run_step(Encode(), model, ctx)
    run_step(Gptq(samples=64, **options), model, ctx)
    assert ctx.has(Plan) and ctx.has(Axes), "facts stay, though biases may change"
    encodings = ctx.get(Encodings)
    after = ir.to_proto(model)
    for name in (k for k in constants if not k.startswith("b")):
        (kept,) = (t for t in after.graph.initializer if t.name == name)
        np.testing.assert_array_equal(numpy_helper.to_array(kept), constants[name].astype(np.float32))
        (encoding,) = {id(e): e for edge, e in encodings.weights.items() if edge.value.name == name}.values()
        assert encoding.integers is not None
        kept.CopyFrom(numpy_helper.from_array(dequantize(encoding.integers, encoding), name))
    return proto, after, encodings, ctx


def noise(run_model: Callable[..., Any], exact: onnx.ModelProto, found: onnx.ModelProto, seed: int) -> float:
    ys = [(run_model(exact, f)[0], run_model(found, f)[0]) for f in images(6, seed)]
    return float(sum(((a - b) ** 2).sum() for a, b in ys) / sum((a**2).sum() for a, _ in ys))


def test_later_layers_make_up_for_earlier_ones(run_model: Callable[..., Any]) -> None:
    """On images that were not used, in onnxruntime."""
    feeds, found = images(24, 1), {}
    for inputs in ("float", "rounded"):
        exact, after, _, _ = rounded(MODEL, CONSTANTS, feeds, inputs=inputs, scales="search")
        found[inputs] = noise(run_model, exact, after, 2)
    assert found["rounded"] < 0.7 * found["float"]


def test_means_of_channels_are_those_of_float(run_model: Callable[..., Any]) -> None:
    feeds = images(8, 3)
    exact, after, _, _ = rounded(MODEL, CONSTANTS, feeds, inputs="rounded")
    means = [np.mean([run_model(p, f)[0] for f in feeds], axis=(0, 1, 3, 4), dtype=np.float64) for p in (exact, after)]
    np.testing.assert_allclose(means[0], means[1], atol=1e-4)
    biases = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer if t.name.startswith("b")}
    assert biases.keys() == {"b1", "b2", "b3", "b4"}
    assert all((b != CONSTANTS[k].astype(np.float32)).any() for k, b in biases.items())


def test_without_drift_it_is_gptq_on_float_inputs() -> None:
    """The first layer, and every layer of a model that has only one."""
    feeds = images(4, 4)
    text = MODEL[: MODEL.index("p = ")] + "y = Conv<pads=[1,1,1,1]>(x, w1, b1) }"
    constants = {k: CONSTANTS[k] for k in ("w1", "b1")}
    one, two = (rounded(text, constants, feeds, inputs=i)[2] for i in ("float", "rounded"))
    (a,), (b,) = one.weights.values(), two.weights.values()
    np.testing.assert_array_equal(a.integers, b.integers)


def test_a_shared_bias_stays() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,10,10] x) => (float[a,b,c,d] y, float[e,f,g,h] z) {
      y = Conv(x, w, b) z = Conv(x, v, b) }"""
    constants = {k: RNG.standard_normal((8, 8, 1, 1)) for k in "wv"} | {"b": np.ones(8)}
    _, after, _, _ = rounded(text, constants, images(2, 5), inputs="rounded")
    (bias,) = (numpy_helper.to_array(t) for t in after.graph.initializer if t.name == "b")
    np.testing.assert_array_equal(bias, np.ones(8, np.float32))


def test_recurrent_layers(run_model: Callable[..., Any]) -> None:
    """The recurrence weight sees the states that the rounded input weight gives."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[20,2,12] x) => (float[a,b,c,d] y) {
      y = LSTM<hidden_size=8>(x, w, r) }"""
    constants = {"w": RNG.standard_normal((1, 32, 12)), "r": 0.3 * RNG.standard_normal((1, 32, 8))}
    feeds = [{"x": RNG.standard_normal((20, 2, 12)).astype(np.float32)} for _ in range(4)]
    _, _, encodings, ctx = rounded(text, constants, feeds, inputs="rounded")
    assert len(encodings.weights) == 2 and ctx.report.of("gptq")[0].numbers["layers"] == 2


def test_stages_are_neighbours_with_one_input() -> None:
    """Query, key and value together; what reads their results comes after."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4,6] x) => (float[4,6] y) {
      q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) a = Add(q, k) b = Add(a, v) y = MatMul(b, wo) }"""
    model = ir.from_proto(parser.parse_model(text))
    weights = []
    for node in model.graph:
        if node.op_type == "MatMul":
            product = read_product(Edge(node, 1), (6, 6))
            assert isinstance(product, Product)
            weights.append(SharedWeight((product,), None))  # type: ignore[arg-type]
    found = [(done, [w.edge.value.name for w in stage]) for done, stage in stages(weights[::-1], model)]
    assert found == [(0, ["wq", "wk", "wv"]), (3, ["wo"])]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_twice(seed: int) -> None:
    one, two = (rounded(MODEL, CONSTANTS, images(4, seed), inputs="rounded")[1] for _ in range(2))
    assert one.SerializeToString(deterministic=True) == two.SerializeToString(deterministic=True)
