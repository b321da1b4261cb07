"""freeze and thaw in scopes, with shared weights, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.spec import QTYPES, Encoding, PerAxis, TensorSpec
from onnxq.passes.freeze import Freeze
from onnxq.passes.thaw import Thaw

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2,4] x, bool c) => (float[2,4] y, float[2,4] z, float[a,b] f)
  <float xs = {0.1}, uint8 xz = {8}, float s = {0.5}, float t = {0.25}, float[4] bs = {1, 2, 1, 2}, int8 n = {0},
   int8[4,4] w = {1,2,3,4,5,6,7,8,-9,-10,-11,-12,-13,-14,-15,127}, int32[4] b = {1,2,3,4}, int32 bz = {0}> {
  xq = QuantizeLinear(x, xs, xz)
  xd = DequantizeLinear(xq, xs, xz)
  wd = DequantizeLinear(w, s, n)
  bd = DequantizeLinear<axis=0>(b, bs)
  y = Gemm(xd, wd, bd)
  g = MatMul(xd, wd)
  v = DequantizeLinear(w, t, n)
  h = MatMul(g, v)
  z = If(c) <
    then_branch = yes () => (float[2,4] p) { k = DequantizeLinear(w, s, n) p = MatMul(h, k) },
    else_branch = no () => (float[2,4] r) {
      m = DequantizeLinear(w, s, n) o = DequantizeLinear(w, s, n) q = Gemm(h, m) r = Gemm(q, o) }>
  f = Identity(wd)
}"""


def test_shared_weights_bodies_and_biases(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    before = onnx.parser.parse_model(TEXT)
    out = run_passes(before, Thaw())
    onnx.checker.check_model(out.proto, full_check=True)
    # One float weight for each scale; a Q for each scale and graph; activation and bias pairs as they were.
    floats = [t.name for t in out.proto.graph.initializer if t.name.startswith("w")]
    assert floats == ["w_float", "w_float_1"]
    assert out.ops().count("QuantizeLinear") == 3 and out.ops().count("DequantizeLinear") == 4
    bodies = {a.name: a.g for n in out.proto.graph.node for a in n.attribute}
    assert [n.op_type for n in bodies["else_branch"].node].count("QuantizeLinear") == 1
    assert out.initializers()["b"].dtype == np.int32
    frozen = run_passes(out.proto, Freeze())
    for c in (True, False):
        feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32), "c": np.array(c)}
        for after in (out.proto, frozen.proto):
            for a, b in zip(run_model(before, feeds, true=True), run_model(after, feeds, true=True), strict=True):
                np.testing.assert_array_equal(a, b)
    assert frozen.ops().count("QuantizeLinear") == 1


FAKE = """<ir_version: 13, opset_import: ["" : 25]> g (float[2,4] x) => ({y})
  <float s = {{0.5}}, int8 z = {{0}}, float[4,4] w = {{1,2,3,4,5,6,7,8,-9,-10,-11,-12,-13,-14,-15,127}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "y", "why"),
    [
        ("q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z)", "float[2,4] y, int8[4,4] q", "output"),
        ("q = QuantizeLinear<precision=10>(w, s, z) d = DequantizeLinear(q, s, z)", "float[2,4] y", "float16"),
        (
            "t = ReduceMax<keepdims=0>(x) q = QuantizeLinear(w, t, z) d = DequantizeLinear(q, t, z)",
            "float[2,4] y",
            "time",
        ),
        ("q = QuantizeLinear<output_dtype=23>(w, s) d = DequantizeLinear(q, s)", "float[2,4] y", "float4"),
    ],
)
def test_not_frozen(body: str, y: str, why: str, run_passes: Callable[..., Any]) -> None:
    out = run_passes(FAKE.format(body=f"{body} y = MatMul(x, d)", y=y), Freeze())
    (note,) = out.ctx.report.of("not-frozen")
    assert why in note.message
    assert not out.changed


def test_float_weight_with_another_reader(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    body = (
        "q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) t = Transpose(w) v = MatMul(x, d) y = MatMul(v, t)"
    )
    text = FAKE.format(body=body, y="float[2,4] y").replace('"" : 25', '"" : 21').replace("13", "10", 1)
    out = run_passes(text, Freeze())
    assert out.initializers()["w"].dtype == np.float32 and out.initializers()["q"].dtype == np.int8
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    before = onnx.parser.parse_model(text)
    np.testing.assert_array_equal(run_model(before, feeds, true=True)[0], run_model(out.proto, feeds, true=True)[0])


def test_weight_behind_transpose(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    body = "t = Transpose(w) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d)"
    text = FAKE.format(body=body, y="float[2,4] y").replace('"" : 25', '"" : 21').replace("13", "10", 1)
    out = run_passes(text, Freeze())
    assert out.ops() == ["Transpose", "DequantizeLinear", "MatMul"]
    np.testing.assert_array_equal(out.initializers()["w_quantized"][0], [2, 4, 6, 8])
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    before = onnx.parser.parse_model(text)
    np.testing.assert_array_equal(run_model(before, feeds, true=True)[0], run_model(out.proto, feeds, true=True)[0])


PAIRS = """<ir_version: 12, opset_import: ["" : {opset}, "com.microsoft" : 1]> g (float[2,4] x) => ({kind}[a,b] y)
  <float s = {{0.5}}, float[3] s3 = {{1, 2, 3}}, float[4] s4 = {{1, 2, 3, 4}}, bfloat16 sb = {{1}},
   int8[2] z2 = {{0, 0}},
   int8[4,4] w = {{1,2,3,4,5,6,7,8,-9,-10,-11,-12,-13,-14,-15,127}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        ("y = DequantizeLinear<axis=2>(w, s4)", "float", "axis 2 is outside a tensor of rank 2"),
        (
            "y = DequantizeLinear<axis=0>(w, s3)",
            "float",
            "scale has shape [3], per-channel(axis=0) data of shape [4, 4]",
        ),
        ("y = DequantizeLinear<axis=1>(w, s4, z2)", "float", "zero point has shape [2], its scale [4]"),
        ("y = DequantizeLinear(w, sb)", "bfloat16", "scale is bfloat16"),
        ("y = DequantizeLinear<output_dtype=16>(w, s)", "bfloat16", "becomes bfloat16"),
        ("t = ReduceMax<keepdims=0>(x) y = DequantizeLinear(w, t)", "float", "computed at run time"),
    ],
)
def test_not_thawed(body: str, kind: str, why: str, run_passes: Callable[..., Any]) -> None:
    out = run_passes(PAIRS.format(opset=23, kind=kind, body=body), Thaw())
    (note,) = out.ctx.report.of("not-thawed")
    assert why in note.message
    assert not out.changed


@pytest.mark.parametrize(
    ("opset", "body", "kind"),
    [
        (13, "y = com.microsoft.DequantizeLinear<axis=0>(w, s4)", "float"),
        (23, "y = DequantizeLinear<axis=0, output_dtype=10>(w, s4)", "float16"),
    ],
)
def test_other_pairs(
    opset: int, body: str, kind: str, run_passes: Callable[..., Any], run_model: Callable[..., Any],
    runs_opset: Callable[[int], bool],
) -> None:  # fmt: skip
    """Onnxruntime's own pairs have no output_dtype; from 23 on a pair may have another float type than its scale."""
    if not runs_opset(opset):
        pytest.skip(f"onnxruntime does not know opset {opset}")
    before = onnx.parser.parse_model(PAIRS.format(opset=opset, kind=kind, body=body))
    thawed = run_passes(before, Thaw())
    q = thawed.node("QuantizeLinear")
    assert len(q.input) == (3 if opset == 13 else 2) and q.domain == ("com.microsoft" if opset == 13 else "")
    frozen = run_passes(thawed.proto, Freeze())
    feeds = {"x": np.zeros((2, 4), np.float32)}
    for after in (thawed.proto, frozen.proto):
        np.testing.assert_array_equal(run_model(before, feeds, true=True)[0], run_model(after, feeds, true=True)[0])
    assert frozen.ops() == ["DequantizeLinear"]
    np.testing.assert_array_equal(frozen.initializers()["w"].reshape(-1), [*range(1, 9), *range(-9, -16, -1), 127])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(["int2", "uint4", "int8", "uint8", "int16", "uint16"]),
    st.floats(-126, 110),
    st.integers(0, 2**32 - 1),
)
def test_every_integer_comes_back(name: str, power: float, seed: int) -> None:
    """k·s is rounded, then divided by s: half a step is never reached, whatever the scale and the zero point."""
    q, rng = QTYPES[name], np.random.default_rng(seed)
    everything = np.arange(q.qmin, q.qmax + 1).astype(q.carrier)
    scales = np.exp2([power, rng.uniform(-126, 110)]).astype(np.float32)
    zeros = rng.integers(q.qmin, q.qmax + 1, 2).astype(q.carrier)
    encoding = Encoding(TensorSpec(q, False, PerAxis(0)), scales, zeros)
    both = np.stack([everything, everything])
    np.testing.assert_array_equal(quantize(dequantize(both, encoding), encoding), both)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(["uint4", "int8", "uint8"]), st.floats(-14, 7.9), st.integers(0, 255))
def test_every_integer_comes_back_in_float16(name: str, power: float, zero: int) -> None:
    q = QTYPES[name]
    everything = np.arange(q.qmin, q.qmax + 1).astype(q.carrier)
    middle = np.array(min(zero + q.qmin, q.qmax), q.carrier)
    encoding = Encoding(TensorSpec(q), np.array(2**power, np.float16), middle)
    np.testing.assert_array_equal(quantize(dequantize(everything, encoding, np.float16), encoding), everything)
