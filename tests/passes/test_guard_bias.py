"""guard-bias: int32 biases that never overflow, in the file and in the kernels' accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.errors import DataError
from onnxq.facts import Edge, Encodings, Plan, Wishes
from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.encodings import from_range, from_values
from onnxq.numerics.spec import PerAxis, PerTensor, QType, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.guard_bias import GuardBias

Array = np.ndarray[Any, Any]

TINY_CHANNELS = 10.0 ** -np.arange(3, 13)
OPS = {
    "Conv": "(float[2,6,8,8] x) => (float[a,b,c,d] y) { c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c) }",
    "Gemm": "(float[16,6] x) => (float[a,b] y) { c = Gemm<transB=1>(x, w, b) y = Relu(c) }",
    "MatMul": "(float[2,16,6] x) => (float[a,b,c] y) { m = MatMul(x, w) c = Add(m, b) y = Relu(c) }",
}


def source(op: str, opset: int = 17) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g {OPS[op]}'


def weights(op: str, sizes: Array, seed: int = 0) -> Array:
    """Normal weights of len(sizes) output channels, each channel times its size."""
    rng = np.random.default_rng(seed)
    shape = {"Conv": (len(sizes), 6, 3, 3), "Gemm": (len(sizes), 6), "MatMul": (len(sizes), 6)}[op]
    w = rng.standard_normal(shape) * sizes.reshape(-1, *[1] * (len(shape) - 1))
    return (w.T if op == "MatMul" else w).astype(np.float32)


def cosine(a: Array, b: Array) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300))


def bias_of(made: Any, name: str = "b") -> tuple[Array, Array]:
    """Stored integers and scale."""
    params = made.initializers()
    return params[f"{name}_quantized"], params[f"{name}_scale"]


def channels(note: Any) -> list[int]:
    """Adjusted channels of a note."""
    return [row["channel"] for row in note.numbers["channels"]]


# -- the seed report ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_tiny_channels_keep_their_bias(quantized: Callable[..., Any], run_model: Callable[..., Any], op: str) -> None:
    """Channels scaled down to 1e-12 beside biases of order 1; the whole output and each channel stay as they were."""
    sizes = np.concatenate([[1.0, 0.3], TINY_CHANNELS])
    bias = np.random.default_rng(1).uniform(0.5, 2.0, len(sizes)).astype(np.float32)
    made = quantized(source(op), {"w": weights(op, sizes), "b": bias}, activations="uint8", dynamic="never")
    stored, s_b = bias_of(made)
    params = made.initializers()
    s_x, s_w = params["x_scale"].astype(np.float64), params["w_scale"].astype(np.float64)
    np.testing.assert_array_equal(s_b, (s_x * s_w).astype(np.float32))
    assert stored.dtype == np.int32 and np.abs(stored.astype(np.int64)).max() < 2**31 - 1
    (note,) = made.ctx.report.of("raised-weight-scale")
    rows = note.numbers["channels"]
    assert note.numbers["count"] == len(rows) >= 4 and note.numbers["ratio"] == max(r["ratio"] for r in rows)
    assert {r["channel"] for r in rows} <= set(range(2, 12))
    # Within half a step, plus what the correction of raised channels may take at most.
    slack = np.zeros(len(sizes))
    for row in rows:
        assert row["scale"] == s_w[row["channel"]] and row["ratio"] > 1
        k = 54 if op == "Conv" else 6
        assert row["error"] == pytest.approx(k * abs(bias[row["channel"]]) * 255 / 2**32, rel=1e-3)
        slack[row["channel"]] = row["error"]
    step = s_b.astype(np.float64)
    assert (np.abs(stored * step - bias) <= step / 2 * (1 + 1e-6) + slack).all()
    axis = 1 if op == "Conv" else -1
    for feeds in made.feeds:
        (exact,) = run_model(made.float_proto, feeds, optimised=False)
        for true in (False, True):
            (got,) = run_model(made.proto, feeds, true=true)
            assert cosine(exact, got) >= 0.9999, f"true={true}"
            # Channel 0 and 1 have noise of their own; the rest is bias.
            for c in range(2, len(sizes)):
                a, b = np.take(exact, c, axis), np.take(got, c, axis)
                assert cosine(a, b) >= 0.9999, f"channel {c}, true={true}"


def test_unguarded_this_model_collapses() -> None:
    """The oracle of the test above: int32 cannot hold these biases at the scale of min-max weights."""
    s_w = np.abs(weights("Gemm", TINY_CHANNELS)).max(axis=1) / 127
    assert (1 / (s_w * 8 / 65535) > 2**31).sum() >= 6


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(("op", "activations"), [("Conv", "uint8"), ("Gemm", "uint16"), ("MatMul", "uint8")])
def test_per_tensor_weights(per_channel: bool, op: str, activations: str) -> None:
    w = weights(op, np.full(4, 1e-11))
    bias = np.array([1, 5, -4.5, 0], np.float32)
    axis = 1 if op == "MatMul" else 0
    ctx, edge, encodings = guard(w, bias, op=op, axis=axis if per_channel else None, activations=activations)
    encoding = encodings.biases[Edge(edge.node, 2)] if op != "MatMul" else next(iter(encodings.biases.values()))
    q = quantize(bias.astype(np.float64), encoding)
    assert encoding.scale.ndim == int(per_channel)
    assert np.abs(dequantize(q, encoding, np.float64) - bias).max() <= encoding.scale.max() / 2
    assert np.abs(q.astype(np.int64)).max() <= 2**31 - 257
    (note,) = ctx.report.of("raised-weight-scale")
    assert channels(note) == ([0, 1, 2] if per_channel else [0])


# -- a kernel adds products to the bias in int32 -----------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
@pytest.mark.parametrize("channels", [64, 1024])
def test_bias_plus_products_fit_the_accumulator(
    op: str, channels: int, quantized: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """A bias that barely fits int32 on its own: the products would push the sum over, and the output would be 0."""
    w = np.full((1, channels, 1, 1) if op == "Conv" else (1, channels), 1e-7, np.float32)
    s_b = np.float64(np.float32(1e-7 / 127)) * np.float64(np.float32(1 / 255))
    bias = np.array([s_b * (2**31 - 600)], np.float32)
    dims = f"1,{channels},1,1" if op == "Conv" else f"1,{channels}"
    call = "Conv(x, w, b)" if op == "Conv" else "Gemm<transB=1>(x, w, b)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{dims}] x) => (float y) {{ c = {call} y = Relu(c) }}'
    feeds = [{"x": np.ones([int(d) for d in dims.split(",")], np.float32)}]
    made = quantized(text, {"w": w, "b": bias}, feeds=feeds, dynamic="never")
    (exact,) = run_model(made.float_proto, feeds[0])
    for true in (False, True):
        (got,) = run_model(made.proto, feeds[0], true=true)
        assert float(got.item()) == pytest.approx(exact.item(), rel=0.005), f"true={true}"
    params = made.initializers()
    assert int(bias_of(made)[0][0]) + 255 * int(np.abs(params["w_quantized"].astype(int)).sum()) < 2**31


# -- shapes and sharing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1,), ()])
def test_bias_shapes(shape: tuple[int, ...], quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    rng = np.random.default_rng(2)
    w, b = rng.standard_normal((8, 6)).astype(np.float32), np.asarray(rng.uniform(1, 2, shape), np.float32)
    w[3] *= 1e-10
    made = quantized(source("Gemm"), {"w": w, "b": b}, dynamic="never")
    close(made)
    stored, s_b = bias_of(made)
    assert stored.shape == s_b.shape == (8,)
    assert np.abs(stored * s_b.astype(np.float64) - np.broadcast_to(b.reshape(-1), 8)).max() <= s_b.max() / 2
    assert channels(made.ctx.report.of("raised-weight-scale")[0]) == [3]


def test_shared_weight_and_bias_of_inputs_of_unlike_scale(
    quantized: Callable[..., Any], close: Callable[..., None]
) -> None:
    """One weight, one bias, inputs a thousandfold apart: one copy of the weight, a bias copy for each."""
    rng = np.random.default_rng(3)
    w, b = rng.standard_normal((8, 6)).astype(np.float32), rng.uniform(0.5, 1, 8).astype(np.float32)
    w[5] *= 1e-8
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[16,6] x, float[16,6] z) => (float[a,b] y, float[c,d] v) {
        y = Gemm<transB=1>(x, w, b) v = Gemm<transB=1>(z, w, b) }"""
    feeds = [{"x": rng.standard_normal((16, 6)).astype(np.float32)} for _ in range(3)]
    feeds = [{**f, "z": 1e-3 * f["x"]} for f in feeds]
    made = quantized(text, {"w": w, "b": b}, feeds=feeds, dynamic="never")
    close(made)
    params = made.initializers()
    assert [k for k in params if k.startswith("w_quantized")] == ["w_quantized"]
    copies = sorted(k for k in params if k.startswith("b_quantized"))
    assert len(copies) == 2
    # The finer input scale decides; both notes are of the same weight.
    s_w = params["w_scale"].astype(np.float64)
    for scale in (params["x_scale"], params["z_scale"]):
        assert (b / (s_w * float(scale)) < 2**31 - 1).all()
    assert b[5] / (s_w[5] * float(params["z_scale"])) > 2**30, "raised no more than needed"


def test_shared_bias_of_two_layers(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    rng = np.random.default_rng(4)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[a,b,c,d] y) {
      c = Conv<pads=[1,1,1,1]>(x, w1, b) r = Relu(c) y = Conv(r, w2, b) }"""
    given = {"w1": rng.standard_normal((8, 3, 3, 3)), "w2": rng.standard_normal((8, 8, 1, 1)), "b": np.ones(8)}
    made = quantized(text, {k: v.astype(np.float32) for k, v in given.items()})
    close(made)
    assert sum(k.startswith("b_quantized") for k in made.initializers()) == 2


@pytest.mark.parametrize("group", [2, 4])
def test_groups_that_share_a_scale(group: int, quantized: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Groups of a ConvTranspose share the scales of axis 1: the largest of their biases decides, each keeps its own."""
    rng = np.random.default_rng(6)
    w = rng.standard_normal((8, 3, 2, 2)).astype(np.float32)
    w[:, 1] *= 1e-9
    bias = rng.uniform(0.5, 1, 3 * group).astype(np.float32)
    bias[1] = 40.0  # channel 1 of group 0
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,8,5,5] x) => (float[a,b,c,d] y) {{
      y = ConvTranspose<group={group}, strides=[2,2]>(x, w, b) }}"""
    made = quantized(text, {"w": w, "b": bias}, force=["op:ConvTranspose"])
    stored, s_b = bias_of(made)
    s_w = made.initializers()["w_scale"]
    assert s_w.shape == (3,) and s_b.shape == stored.shape == (3 * group,)
    np.testing.assert_array_equal(s_b, (float(made.initializers()["x_scale"]) * np.tile(s_w, group)).astype(np.float32))
    assert np.abs(stored.astype(np.int64)).max() < 2**31 - 1
    assert (np.abs(stored * s_b.astype(np.float64) - bias) <= s_b / 2 * (1 + 1e-6)).all()
    (note,) = made.ctx.report.of("raised-weight-scale")
    assert channels(note) == [1]
    (shared,) = made.ctx.report.of("group-shared-scale")
    assert shared.numbers == {"scales": 3, "groups": group}
    for true in (False, True):
        (exact,), (got,) = (run_model(m, made.feeds[0], true=true) for m in (made.float_proto, made.proto))
        for c in range(3 * group):
            step = float(made.initializers()["y_scale"]) if "y_scale" in made.initializers() else 0.0
            assert np.abs(exact[:, c] - got[:, c]).max() <= step / 2 + 0.02 * np.abs(exact[:, c]).max()


# -- channels without weights ------------------------------------------------------------------------------------------


def test_an_empty_channel_is_its_bias(quantized: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Scale 1 for zeros would leave the bias one input step coarse; the free scale is chosen for it."""
    w = weights("Conv", np.array([1.0, 0.0, 1e-42, 0.0]))
    bias = np.array([0.1, 0.0123, 0.02, 0.0], np.float32)
    feeds = [{"x": 10 * np.random.default_rng(5).standard_normal((2, 6, 8, 8)).astype(np.float32)}]
    made = quantized(source("Conv"), {"w": w, "b": bias}, feeds=feeds)
    stored, s_b = bias_of(made)
    np.testing.assert_allclose((stored * s_b.astype(np.float64))[1:], bias[1:], rtol=1e-6)
    params = made.initializers()
    assert (params["w_quantized"][[1, 3]] == 0).all() and params["w_scale"][3] == 1
    (note,) = made.ctx.report.of("empty-weight-scale")
    assert channels(note) == [1]
    (dead,) = made.ctx.report.of("dead-channels")
    assert dead.numbers["channels"] == [1, 2, 3] and dead.numbers["count"] == 3
    exact, got = run_model(made.float_proto, feeds[0])[0], run_model(made.proto, feeds[0], true=True)[0]
    step = float(params["y_scale"])
    assert np.abs(exact[:, 1:] - got[:, 1:]).max() <= step / 2 * 1.001


# -- without a graph around it -----------------------------------------------------------------------------------------


def guard(
    w: Array, b: Array, *, op: str = "Gemm", axis: int | None = 0, activations: str = "uint8", s_x: float = 4.0,
    weight_type: str = "int8", symmetric: bool = True, dtype: type = np.float32,
) -> tuple[Context, Edge, Encodings]:  # fmt: skip
    """Run the pass alone on one layer with an input range of [-s_x, s_x]."""
    proto = onnx.parser.parse_model(source(op))
    for name, array in (("w", w), ("b", b)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto)
    (node, last) = (model.graph[0], model.graph[1] if op == "MatMul" else model.graph[0])
    edge, bias = Edge(node, 1), Edge(last, 1 if op == "MatMul" else 2)
    a = TensorSpec(QType.named(activations))
    spec = TensorSpec(QType.named(weight_type), symmetric, PerTensor() if axis is None else PerAxis(axis))
    x = model.graph.inputs[0]
    plan = Plan(Wishes(a, spec), {x: a}, {Edge(node, 0): x}, weights={edge: spec})
    plan.biases[bias] = TensorSpec(QType.named("int32"), True)
    ctx = Context().put(plan, Encodings({x: from_range(-s_x, s_x, a)}, {edge: from_values(w, spec, dtype=dtype)}))
    run_step(GuardBias(), model, ctx)
    return ctx, edge, ctx.get(Encodings)


def test_what_fits_is_left_alone() -> None:
    w, b = weights("Gemm", np.ones(4)), np.ones(4, np.float32)
    ctx, edge, out = guard(w, b)
    np.testing.assert_array_equal(out.weights[edge].scale, from_values(w, out.weights[edge].spec).scale)
    assert not ctx.report.notes


def test_a_float16_scale_is_rounded_up() -> None:
    w, b = (weights("Gemm", np.full(4, 1e-4))).astype(np.float16), np.full(4, 60000, np.float32)
    _, edge, out = guard(w, b, activations="uint16", s_x=0.5, dtype=np.float16)
    scale, (x,) = out.weights[edge].scale, out.activations.values()
    assert scale.dtype == np.float16 and (scale > from_values(w, out.weights[edge].spec, dtype=np.float16).scale).all()
    assert (b / (scale.astype(np.float64) * float(x.scale)) <= 2**31 - 257).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bias_that_is_not_finite_stops(bad: float) -> None:
    b = np.array([0, 1, bad, 0], np.float32)
    with pytest.raises(DataError, match=r"\(Gemm\), bias 'b': channel 2 is not finite"):
        guard(weights("Gemm", np.ones(4)), b)
