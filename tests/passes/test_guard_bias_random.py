"""guard-bias: whatever the numbers, a stored bias decodes to what it was, or the report says why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from onnxq.facts import Edge, Encodings, Goal, Plan, Wishes
from onnxq.numerics.affine import quantize
from onnxq.numerics.encodings import from_range, from_values
from onnxq.numerics.spec import PerAxis, PerTensor, QType, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.guard_bias import GuardBias
from onnxq.targets import load_target

Array = np.ndarray[Any, Any]

LARGEST = 2**31 - 1
KINDS = [
    ("uint8", "int8", True), ("uint8", "uint8", False), ("uint8", "int4", True), ("int8", "uint4", False),
    ("uint8", "int16", True), ("uint16", "int8", True), ("uint16", "uint8", False), ("int16", "int4", True),
    ("uint16", "int16", True), ("int16", "uint16", False),
]  # fmt: skip
GROUPS, CHANNELS, INPUTS = 2, 4, 6


@dataclass(frozen=True)
class Op:
    """How an op is written down, with the shape of its weight, its channel axis, and how often scales are tiled."""

    text: str
    shape: tuple[int, ...]
    axis: int
    tiles: int = 1
    factor: float = 1.0
    terms: int = INPUTS


OPS = {
    "Conv": Op("y = Conv(x, w, b)", (CHANNELS, INPUTS, 2, 1), 0, terms=2 * INPUTS),
    "grouped Conv": Op(f"y = Conv<group={GROUPS}>(x, w, b)", (CHANNELS, INPUTS // GROUPS, 2, 1), 0, terms=INPUTS),
    "ConvTranspose": Op(
        f"y = ConvTranspose<group={GROUPS}>(x, w, b)", (INPUTS, CHANNELS // GROUPS, 2, 1), 1, GROUPS, terms=INPUTS
    ),
    "Gemm": Op("y = Gemm(x, w, b)", (INPUTS, CHANNELS), 1),
    "Gemm with factors": Op("y = Gemm<alpha=-0.25, beta=8.0, transB=1>(x, w, b)", (CHANNELS, INPUTS), 0, 1, 0.03125),
    "MatMul": Op("m = MatMul(x, w) y = Add(b, m)", (INPUTS, CHANNELS), 1),
}
SHAPES = {"Conv": [(CHANNELS,)], "Gemm": [(CHANNELS,), (1, CHANNELS), (3, CHANNELS), (3, 1), (1,), ()]}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(OPS)))
    shapes = SHAPES["Conv" if "Conv" in name else "Gemm"]
    half = draw(st.booleans())
    exponents = st.floats(-6, 2) if half else st.floats(-20, 0)
    size = draw(st.sampled_from([1e-3, 1.0, 1e3])) if half else 10.0 ** draw(st.floats(-6, 6))
    return {
        "op": OPS[name],
        "kinds": draw(st.sampled_from(KINDS)),
        "per_channel": draw(st.booleans()),
        "exponents": draw(st.lists(exponents, min_size=CHANNELS, max_size=CHANNELS)),
        "empty": draw(st.sets(st.integers(0, CHANNELS - 1), max_size=2)),
        "x": draw(st.floats(-4, 4)),
        "size": size,
        "shape": draw(st.sampled_from(shapes)),
        "half": half,
        "target": draw(st.sampled_from(["ort-cpu", "ascend", "onnx"])),
        "integer_output": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def prepare(case: dict[str, Any]) -> tuple[ir.Model, Context, Edge, Edge, Array, Array]:
    """One layer with a plan and encodings made by hand."""
    op, dtype, rng = case["op"], np.float16 if case["half"] else np.float32, np.random.default_rng(case["seed"])
    sizes = 10.0 ** np.array(case["exponents"])
    sizes[list(case["empty"])] = 0
    n = op.shape[op.axis]
    with np.errstate(over="ignore"):
        w = rng.standard_normal(op.shape) * sizes[:n].reshape([-1 if i == op.axis else 1 for i in range(len(op.shape))])
    w, b = w.astype(dtype), np.asarray(rng.standard_normal(case["shape"]) * case["size"], dtype)
    kind = "float16" if case["half"] else "float"
    model = ir.from_proto(parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({kind}[N] x) => ({kind}[M] y) '
        f'<{kind} w = {{0}}, {kind} b = {{0}}> {{ {op.text} }}'
    ))  # fmt: skip
    for name, array in (("w", w), ("b", b)):
        model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
        model.graph.initializers[name].shape = ir.Shape(array.shape)
    node, last = model.graph[0], model.graph[-1]
    weight, bias = Edge(node, 1), Edge(last, 0 if last is not node else 2)
    activations, weight_type, symmetric = case["kinds"]
    a = TensorSpec(QType.named(activations))
    spec = TensorSpec(QType.named(weight_type), symmetric, PerAxis(op.axis) if case["per_channel"] else PerTensor())
    x, y = model.graph.inputs[0], model.graph.outputs[0]
    plan = Plan(Wishes(a, spec), {x: a}, {Edge(node, 0): x}, weights={weight: spec})
    plan.biases[bias] = TensorSpec(QType.named("int32"), True)
    if case["integer_output"]:
        plan.activations[y] = a
    ranges = from_range(-(10 ** case["x"]), 10 ** case["x"], a, dtype=dtype)
    encodings = Encodings({x: ranges}, {weight: from_values(w, spec, dtype=dtype)})
    ctx = Context().put(plan, encodings, Goal(load_target(case["target"])))
    return model, ctx, weight, bias, w, b


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=cases())
def test_decodes_or_is_reported(case: dict[str, Any]) -> None:
    """Twenty decades of weights, ten pairs of types, six ops, six shapes of bias, three targets, two float types."""
    op = case["op"]
    model, ctx, weight, bias, w, b = prepare(case)
    before = ctx.get(Encodings).weights[weight]
    run_step(GuardBias(), model, ctx)
    out = ctx.get(Encodings)
    s_x, s_w = float(out.activations[model.graph.inputs[0]].scale), out.weights[weight].scale
    assert s_w.dtype == w.dtype and np.isfinite(s_w).all() and (s_w >= np.finfo(s_w.dtype).smallest_normal).all()
    codes = [note.code for note in ctx.report.notes]
    if bias not in out.biases:
        assert case["half"] and codes.count("float-bias") == 1, "only a float16 scale may be impossible"
        return
    encoding = out.biases[bias]
    s_b = encoding.scale
    assert s_b.dtype == w.dtype and np.isfinite(s_b).all() and (s_b >= np.finfo(s_b.dtype).smallest_normal).all()
    assert not encoding.zero_point.any() and encoding.spec.qtype.name == "int32"

    # What is stored decodes to within half a step, and nothing wraps.
    wide = np.broadcast_to(b.astype(np.float64), (*b.shape[:-1], CHANNELS))
    exact = wide / s_b.astype(np.float64)
    assert np.abs(exact).max() < LARGEST
    assert (np.abs(np.rint(exact) * s_b.astype(np.float64) - wide) <= s_b.astype(np.float64) / 2 * (1 + 1e-6)).all()

    # The scale is the product, or that channel is in the report; never both an own scale and a raised weight.
    product = (np.tile(s_w.astype(np.float64), op.tiles if s_w.ndim else 1) * s_x * op.factor).astype(s_b.dtype)
    own = {row["channel"] for note in ctx.report.of("own-bias-scale") for row in note.numbers["channels"]}
    assert set(np.flatnonzero(np.atleast_1d(s_b != product)).tolist()) == own
    changed = {
        row["channel"]
        for code in ("raised-weight-scale", "empty-weight-scale")
        for note in ctx.report.of(code)
        for row in note.numbers["channels"]
    }
    assert set(np.flatnonzero(np.atleast_1d(s_w != before.scale)).tolist()) == changed
    eight = max(QType.named(name).bits for name in case["kinds"][:2]) <= 8
    assert not own or (case["target"] != "ascend" and not eight)
    assert not changed or case["target"] == "ascend" or eight

    # Eight bits: the sum of bias and products, at its worst, stays in int32.
    if eight:
        x_type, encoded = QType.named(case["kinds"][0]), out.weights[weight]
        zero = encoded.zero_point.astype(int)
        others = tuple(i for i in range(w.ndim) if i != op.axis)
        off = quantize(w, encoded).astype(int) - (np.expand_dims(zero, others) if zero.ndim else zero)
        sums = np.tile(np.abs(off).sum(axis=others), op.tiles) * (x_type.qmax - x_type.qmin)
        assert (np.abs(np.rint(exact)).reshape(-1, CHANNELS).max(axis=0) + sums < 2**31).all()
        assert "wide-accumulator" not in codes
