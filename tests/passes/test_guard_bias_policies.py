"""guard-bias: what becomes of a bias that does not fit, by target, type and option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.diagnostics import Severity
from onnxq.errors import DataError, OptionError
from onnxq.facts import Axes, Decision, Edge, Encodings, Feeds, Goal, Plan, Ranges, Wishes
from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.encodings import from_range, from_values
from onnxq.numerics.spec import PerAxis, PerTensor, QType, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.gptq import Gptq
from onnxq.passes.guard_bias import GuardBias
from onnxq.passes.insert_qdq import InsertQdq
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.report.run import to_json, to_text
from onnxq.targets import Target, load_target
from onnxq.targets.target import BiasRules

Array = np.ndarray[Any, Any]
INT32 = QType.named("int32")
GEMM = "y = Gemm<transB=1>(x, w, b)"


def layer(text: str, constants: dict[str, Array], *, kind: str = "float", dims: str = "4,6", rank: int = 2) -> ir.Model:
    out = ",".join("abcd"[:rank])
    source = f'<ir_version: 10, opset_import: ["": 21]> g ({kind}[{dims}] x) => ({kind}[{out}] y) {{ {text} }}'
    proto = parser.parse_model(source)
    proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    model = ir.from_proto(proto)
    for node in model.graph:
        node.name = node.op_type
    return model


def guarded(
    model: ir.Model, *, types: tuple[str, str] = ("uint8", "int8"), target: Target | str = "ort-cpu", s_x: float = 4.0,
    axis: int | None = 0, integer_output: bool = True, feeds: list[dict[str, Array]] | None = None,
    means: Array | None = None, bias: str = "auto",
) -> tuple[Context, Edge, Edge]:  # fmt: skip
    """Plan, encode and guard a layer by hand; its weight is input 1."""
    last = model.graph[-1]
    node = next(n for n in model.graph if n.op_type in ("Gemm", "Conv", "MatMul", "ConvTranspose"))
    weight = Edge(node, 1)
    edge = Edge(node, 2) if len(node.inputs) > 2 else Edge(last, 1)
    a, w = (QType.named(name) for name in types)
    spec, x = TensorSpec(a), model.graph.inputs[0]
    half = np.float16 if x.dtype == ir.DataType.FLOAT16 else np.float32
    w_spec = TensorSpec(w, True, PerTensor() if axis is None else PerAxis(axis))
    plan = Plan(Wishes(spec, w_spec), {x: spec}, {Edge(node, 0): x})
    encodings = Encodings({x: from_range(-s_x, s_x, spec, dtype=half)})
    plan.decisions = {n: Decision("integer", "layer", "by hand") for n in model.graph}
    if weight.value.const_value is not None:
        plan.weights[weight] = w_spec
        values = weight.value.const_value.numpy()
        encodings.weights[weight] = from_values(values, w_spec, dtype=values.dtype)
    plan.biases[edge] = TensorSpec(INT32, True)
    if integer_output:
        y = model.graph.outputs[0]
        plan.activations[y], encodings.activations[y] = spec, from_range(-50, 50, spec, dtype=half)
        plan.outputs.add(y)
    ctx = Context().put(plan, encodings, Goal(load_target(target)), Axes())
    if feeds is not None:
        ctx.put(Feeds(open_source(feeds, model=model)))
    if means is not None:
        ctx.put(Ranges(means={x: {1: means}}))
    run_step(GuardBias(bias=bias), model, ctx)  # type: ignore[arg-type]
    return ctx, weight, edge


def channels(ctx: Context, code: str) -> list[int]:
    return [row["channel"] for note in ctx.report.of(code) for row in note.numbers["channels"]]


def weights(rows: int = 4, tiny: int = 2, size: float = 1e-10, inputs: int = 6, seed: int = 0) -> Array:
    w = np.random.default_rng(seed).standard_normal((rows, inputs))
    w[tiny] *= size
    return w.astype(np.float32)


# -- by target ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [("uint16", "int16"), ("uint16", "int8"), ("uint8", "int16")])
@pytest.mark.parametrize(("target", "own"), [("ort-cpu", True), ("onnx", True), ("ascend", False)])
def test_wide_layers_by_target(types: tuple[str, str], target: str, own: bool) -> None:
    """16 bits: onnxruntime reads the bias's own scale; a target that does not say so gets coarser weights."""
    w, b = weights(), np.array([1, -1, 3, 0], np.float32)
    ctx, weight, edge = guarded(layer(GEMM, {"w": w, "b": b}), types=types, target=target)
    out = ctx.get(Encodings)
    (x,) = {out.activations[v] for v in weight.node.inputs if v in out.activations}
    s_x, s_w, s_b = (e.scale.astype(np.float64) for e in (x, out.weights[weight], out.biases[edge]))
    plain = from_values(w, out.weights[weight].spec).scale
    if own:
        assert channels(ctx, "own-bias-scale") == [2] or types == ("uint16", "int16")
        np.testing.assert_array_equal(s_w, plain)
        assert not ctx.report.of("raised-weight-scale")
        assert s_b[2] == pytest.approx(3 / (2**31 - 257), rel=1e-6) and s_b[3] == np.float32(s_x * s_w[3])
        row = ctx.report.of("own-bias-scale")[0].numbers["channels"][-1]
        assert row["scale"] == s_b[2] and row["error"] == s_b[2] / 2
        assert row["ratio"] == pytest.approx(s_b[2] / (s_x * s_w[2]), rel=1e-5)
    else:
        assert 2 in channels(ctx, "raised-weight-scale") and not ctx.report.of("own-bias-scale")
        np.testing.assert_array_equal(s_b, (s_x * s_w).astype(np.float32))
    q = quantize(b.astype(np.float64), out.biases[edge])
    assert np.abs(dequantize(q, out.biases[edge], np.float64) - b).max() <= s_b.max() / 2
    (note,) = ctx.report.of("wide-accumulator")
    assert note.numbers["bits"] > 32 and "int32 accumulator" in note.message


def with_rules(**rules: Any) -> Target:
    return replace(load_target("onnx"), bias=BiasRules(INT32, **rules))


@pytest.mark.parametrize("integer_output", [True, False])
def test_float_policy(integer_output: bool) -> None:
    """Float where nothing rounds it behind the caller's back, else raised."""
    w, b = weights(), np.array([1, -1, 3, 0], np.float32)
    target = with_rules(policy="float")
    ctx, _, edge = guarded(layer(GEMM, {"w": w, "b": b}), target=target, integer_output=integer_output)
    assert (edge in ctx.get(Encodings).biases) == integer_output
    assert channels(ctx, "raised-weight-scale" if integer_output else "float-bias") == [2]
    ctx, _, edge = guarded(layer(GEMM, {"w": weights(size=1), "b": b}), target=target, integer_output=integer_output)
    assert edge in ctx.get(Encodings).biases, "what fits becomes int32"


@pytest.mark.parametrize(
    ("where", "integer_output", "stays"),
    [("anywhere", True, True), ("float-output", True, False), ("float-output", False, True), ("nowhere", False, False)],
)
def test_float_as_asked(where: str, integer_output: bool, stays: bool) -> None:
    model = layer(GEMM, {"w": weights(), "b": np.ones(4, np.float32)})
    target = with_rules(policy="raise-weight-scale", float_bias=where)
    ctx, _, edge = guarded(model, target=target, integer_output=integer_output, bias="float")
    out = ctx.get(Encodings)
    assert (edge not in out.biases) == stays
    (note,) = ctx.report.of("float-bias-kept" if stays else "bias-not-float")
    assert note.numbers["nodes"] == ["Gemm"]


def test_a_float_bias_with_an_integer_output_is_what_onnxruntime_destroys(run_model: Callable[..., Any]) -> None:
    """Why float is not granted there: the float bias wraps around in int32 when the model is loaded."""
    w, b = weights(size=1e-6), np.full(4, 2, np.float32)
    feeds = {"x": np.random.default_rng(1).uniform(-4, 4, (4, 6)).astype(np.float32)}
    errors = []
    for target in (with_rules(policy="own-scale", float_bias="anywhere"), load_target("ort-cpu")):
        model = layer(GEMM, {"w": w, "b": b})
        ctx, *_ = guarded(model, types=("uint16", "int16"), target=target, bias="float")
        run_step(InsertQdq(), model, ctx)
        (got,) = run_model(ir.to_proto(model), feeds)
        errors.append(np.abs(got - (feeds["x"] @ w.T + b)).max())
    assert errors[0] > 1 and errors[1] < 0.002


# -- float16 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "s_x", "fits"), [(100.0, 100.0, True), (0.01, 1.0, False)])
def test_float16(size: float, s_x: float, fits: bool, run_model: Callable[..., Any]) -> None:
    """A float16 scale either holds the product, or the bias stays float: it never is 0 or subnormal."""
    w, b = (weights(size=1) * size).astype(np.float16), np.array([3, -2, 0.5, 0], np.float16)
    model = layer(GEMM, {"w": w, "b": b}, kind="float16")
    ctx, _, edge = guarded(model, target="onnx", s_x=s_x, integer_output=False)
    out = ctx.get(Encodings)
    assert (edge in out.biases) == fits
    if fits:
        assert out.biases[edge].scale.dtype == np.float16
    else:
        (note,) = ctx.report.of("float-bias")
        assert note.severity is Severity.INFO and "float16 holds no scale" in note.message and note.numbers["count"]
    run_step(InsertQdq(), model, ctx)
    run_step(ValidateQdq(), model, ctx)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(2).uniform(-s_x, s_x, (4, 6)).astype(np.float16)
    exact = x.astype(np.float64) @ w.astype(np.float64).T + b
    (got,) = run_model(proto, {"x": x}, true=True)
    assert np.abs(got - exact).max() <= 0.03 * np.abs(exact).max()


def test_float16_is_an_error_for_int32() -> None:
    w, b = (weights(size=1) * 0.01).astype(np.float16), np.ones(4, np.float16)
    with pytest.raises(DataError, match=r"Gemm \(Gemm\), bias 'b': float16 holds no scale .* channel 0; bias: auto"):
        guarded(layer(GEMM, {"w": w, "b": b}, kind="float16"), target="onnx", s_x=1.0, bias="int32")


def test_a_warning_where_a_runtime_may_round_it() -> None:
    w, b = (weights(size=1) * 0.01).astype(np.float16), np.ones(4, np.float16)
    ctx, *_ = guarded(layer(GEMM, {"w": w, "b": b}, kind="float16"), target="onnx", s_x=1.0)
    assert ctx.report.of("float-bias")[0].severity is Severity.WARNING


# -- weights that are integers already ---------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [("uint8", "int8"), ("uint16", "int8")])
@pytest.mark.parametrize("per_channel", [True, False])
def test_stored_integer_weights(types: tuple[str, str], per_channel: bool, run_model: Callable[..., Any]) -> None:
    """The scale is read from their DequantizeLinear; where it must grow they are stored anew."""
    w = weights() if per_channel else weights(size=1) * np.float32(1e-10)
    spec = TensorSpec(QType.named("int8"), True, PerAxis(0) if per_channel else PerTensor())
    stored = from_values(w, spec)
    constants = {"q": quantize(w, stored), "s": stored.scale, "b": np.array([1, -1, 3, 0], np.float32)}
    text = f"w = DequantizeLinear<axis=0>(q, s) {GEMM}"
    model = layer(text, constants)
    ctx, weight, _ = guarded(model, types=types)
    out = ctx.get(Encodings)
    if types[0] == "uint8":
        after = out.weights[weight]
        assert channels(ctx, "raised-weight-scale") == ([2] if per_channel else [0])
        assert after.integers is not None
        half = np.broadcast_to(np.reshape(after.scale, (-1, 1)) / 2, w.shape)
        assert (np.abs(dequantize(after.integers, after) - dequantize(constants["q"], stored)) <= half * 1.001).all()
    else:
        assert weight not in out.weights
        assert 2 in channels(ctx, "own-bias-scale") or not per_channel
    run_step(InsertQdq(), model, ctx)
    run_step(ValidateQdq(), model, ctx)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert sum(t.data_type == onnx.TensorProto.INT8 for t in proto.graph.initializer) == 1 + (types[0] == "uint8")
    x = np.random.default_rng(2).uniform(-4, 4, (4, 6)).astype(np.float32)
    exact = x @ w.T + constants["b"]
    step = 100 / (255 if types[0] == "uint8" else 65535)
    for true in (False, True):
        (got,) = run_model(proto, {"x": x}, true=true)
        assert np.abs(got - exact).max() <= step + 0.03 * np.abs(w).max(), f"true={true}"


def test_stored_weights_in_blocks_leave_the_bias_float() -> None:
    constants: dict[str, Array] = {"q": np.ones((4, 6), np.int8), "s": np.ones((4, 3), np.float32)}
    constants["b"] = np.ones(4, np.float32)
    model = layer(f"w = DequantizeLinear<axis=1, block_size=2>(q, s) {GEMM}", constants)
    ctx, _, edge = guarded(model)
    assert edge not in ctx.get(Encodings).biases
    assert "has no weight with one scale, or one for each output channel" in ctx.report.of("float-bias")[0].message


# -- factors, shapes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(0.25, 1.0), (1.0, 4.0), (-2.0, 0.5), (2.0, 0.0)])
def test_gemm_factors(alpha: float, beta: float, run_model: Callable[..., Any]) -> None:
    """The pass alone, without normalize-gemm: alpha s_x s_w is the scale of the product."""
    w, b = weights(), np.array([1, -1, 3, 0], np.float32)
    model = layer(f"y = Gemm<transB=1, alpha={alpha}, beta={beta}>(x, w, b)", {"w": w, "b": b})
    ctx, weight, edge = guarded(model)
    out = ctx.get(Encodings)
    factor = abs(alpha / (beta or 1))
    s_x = float(out.activations[model.graph.inputs[0]].scale)
    product = s_x * factor * out.weights[weight].scale.astype(np.float64)
    np.testing.assert_allclose(out.biases[edge].scale, product, rtol=1e-7)
    run_step(InsertQdq(), model, ctx)
    x = np.random.default_rng(2).uniform(-4, 4, (4, 6)).astype(np.float32)
    for true in (False, True):
        (got,) = run_model(ir.to_proto(model), {"x": x}, true=true)
        assert np.abs(got - (alpha * x @ w.T + beta * b)).max() <= 100 / 255 + 0.05


@pytest.mark.parametrize("shape", [(4, 4), (4, 1), (1, 4), (4,), (1,), ()])
@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize("axis", [None, 0])
def test_any_shape_that_broadcasts(
    shape: tuple[int, ...], op: str, axis: int | None, run_model: Callable[..., Any]
) -> None:
    w, b = weights(), np.asarray(np.random.default_rng(3).uniform(1, 3, shape), np.float32)
    text = GEMM if op == "Gemm" else "m = MatMul(x, w) y = Add(m, b)"
    model = layer(text, {"w": w if op == "Gemm" else np.ascontiguousarray(w.T), "b": b})
    ctx, _, edge = guarded(model, axis=axis if axis is None or op == "Gemm" else 1)
    encoding = ctx.get(Encodings).biases[edge]
    assert np.abs(b / encoding.scale.astype(np.float64).max()).max() < 2**31
    run_step(InsertQdq(), model, ctx)
    run_step(ValidateQdq(), model, ctx)
    x = np.random.default_rng(2).uniform(-4, 4, (4, 6)).astype(np.float32)
    for true in (False, True):
        (got,) = run_model(ir.to_proto(model), {"x": x}, true=true)
        assert np.abs(got - (x @ w.T + b)).max() <= 100 / 255 + 0.1


def test_a_shape_that_does_not_fit() -> None:
    model = layer("m = MatMul(x, w) y = Add(m, b)", {"w": weights().T, "b": np.ones((4, 3), np.float32)})
    ctx, _, edge = guarded(model, axis=1)
    assert edge not in ctx.get(Encodings).biases
    assert "its shape [4, 3] does not go with 4 channels" in ctx.report.of("float-bias")[0].message


# -- bias correction ---------------------------------------------------------------------------------------------------

SHIFTED = {
    "Gemm": ("y = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b)", (4, 40), "64,40", 0, 2),
    "MatMul": ("m = MatMul(x, w) y = Add(m, b)", (40, 4), "64,40", 1, 2),
    "Conv": ("y = Conv<group=2>(x, w, b)", (4, 20, 1, 1), "1,40,8,8", 0, 4),
    "ConvTranspose": ("y = ConvTranspose<group=2, strides=[2,2]>(x, w, b)", (40, 2, 2, 2), "1,40,8,8", 1, 4),
}


@pytest.mark.parametrize("op", SHIFTED)
@pytest.mark.parametrize("given", ["samples", "means", "nothing"])
def test_the_mean_error_of_raised_channels_goes_into_the_bias(
    op: str, given: str, run_model: Callable[..., Any]
) -> None:
    """Inputs around 3: without correction the mean output of a raised channel is off, with it by far less."""
    text, shape, dims, axis, rank = SHIFTED[op]
    rng = np.random.default_rng(4)
    w = (rng.standard_normal(shape) * 1e-5).astype(np.float32)
    b = np.array([2, -1, 3, 1], np.float32)
    x = rng.normal(3, 0.3, [int(d) for d in dims.split(",")]).astype(np.float32)
    model = layer(text, {"w": w, "b": b}, dims=dims, rank=rank)
    float_proto = ir.to_proto(model)
    means = x.mean(axis=(0, 2, 3) if rank == 4 else 0).astype(np.float64)
    ctx, _, edge = guarded(
        model, types=("uint16", "int16"), target="ascend", axis=axis, integer_output=False,
        feeds=[{"x": x}] if given == "samples" else None, means=means if given == "means" else None,
    )  # fmt: skip
    out = ctx.get(Encodings)
    assert (edge in out.corrected) == (given != "nothing")
    assert len(channels(ctx, "raised-weight-scale")) == (2 if op == "ConvTranspose" else 4)
    run_step(InsertQdq(), model, ctx)
    (exact,), (got,) = run_model(float_proto, {"x": x}), run_model(ir.to_proto(model), {"x": x}, true=True)
    others = tuple(i for i in range(rank) if i != 1)
    shift = np.abs((got.astype(np.float64) - exact).mean(axis=others)).max()
    assert shift < 2e-6 if given != "nothing" else shift > 1e-5


def test_gptq_behind_a_correction_is_refused() -> None:
    model = layer(GEMM, {"w": weights(), "b": np.ones(4, np.float32)})
    feeds = [{"x": np.ones((4, 6), np.float32)}]
    ctx, *_ = guarded(model, feeds=feeds)
    with pytest.raises(OptionError, match="put guard-bias behind it"):
        run_step(Gptq(), model, ctx)


# -- report ------------------------------------------------------------------------------------------------------------


def test_each_channel_is_in_the_report() -> None:
    """All of them in the JSON form; in the text the most changed, a line each."""
    w = weights(rows=300, inputs=3) * np.float32(1e-10)
    ctx, *_ = guarded(layer(GEMM, {"w": w, "b": np.ones(300, np.float32)}, dims="4,3"))
    notes = {group["code"]: group["notes"] for group in to_json(ctx.report)["notes"]}
    rows = notes["raised-weight-scale"][0]["numbers"]["channels"]
    assert [row["channel"] for row in rows] == list(range(300))
    assert all(set(row) == {"channel", "ratio", "scale", "error"} for row in rows)
    text = to_text(ctx.report)
    assert "Biases that int32 does not hold, the 10 most changed of 300" in text
    assert text.count("weight scale raised") == 10
    worst = max(rows, key=lambda row: row["ratio"])
    assert f"{worst['channel']}  weight scale raised" in text and f"{worst['ratio']:.3g}" in text
