"""freeze and thaw in scopes, with shared weights, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

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
        ("q = QuantizeLinear<output_dtype=17>(w, s) d = DequantizeLinear(q, s)", "float[2,4] y", "float8"),
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
