"""qdq-to-qoperator on whole models: bodies, functions, fake-quantized weights, there and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.passes.dequantize import Dequantize
from onnxq.passes.qdq_to_qoperator import QdqToQoperator
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

LENET = Path(__file__).parent.parent.parent / "models" / "lenet"

BODY = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2,4] x, bool c) => (float[2,4] b)
  <float s = {0.05}, uint8 z = {120}, float t = {0.02}, int8 n = {0}, float[4,4] w = {
   0.1,0.2,0.3,0.4,-0.1,-0.2,-0.3,-0.4,0.5,0.6,0.7,0.8,-0.5,-0.6,-0.7,-0.8}> {
  q = QuantizeLinear(x, s, z)
  b = If(c) <
    then_branch = yes () => (float[2,4] p) {
      d = DequantizeLinear(q, s, z) wq = QuantizeLinear(w, t, n) wd = DequantizeLinear(wq, t, n) h = MatMul(d, wd)
      r = Relu(h) k = Constant<value = float {0.01}>() kz = Constant<value = uint8 {0}>()
      hq = QuantizeLinear(r, k, kz) p = DequantizeLinear(hq, k, kz) },
    else_branch = no () => (float[2,4] u) { e = DequantizeLinear(q, s, z) u = Tanh(e) }>
}"""


@pytest.mark.parametrize("branch", [True, False])
def test_bodies_and_float_weights(
    branch: bool, run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]
) -> None:
    """A weight in front of a Q counts as its integers; parameters of a Q may be Constants behind the operator."""
    made = run_passes(BODY, QdqToQoperator())
    onnx.checker.check_model(made.proto, full_check=True)
    then = made.proto.graph.node[-1].attribute[0].g
    assert [n.op_type for n in then.node if n.op_type != "Constant"] == ["QLinearMatMul", "DequantizeLinear"]
    assert made.codes() == ["frozen", "not-lowered", "lowered"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32), "c": np.array(branch)}
    for proto in (made.proto, run_passes(made.proto, QoperatorToQdq()).proto):
        (a,), (b,) = (run_model(p, feeds, true=True) for p in (onnx.parser.parse_model(BODY), proto))
        assert np.abs(a - b).max() <= 0.0101


def test_functions(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]> g (float[2,4] x) => (float[2,4] y) { y = l.F(x) }
    <domain: "l", opset_import: ["" : 21]> F (x) => (y) {
      s = Constant<value = float {0.5}>() z = Constant<value = uint8 {8}>()
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) f = LeakyRelu<alpha=0.5>(d)
      o = QuantizeLinear(f, s, z) y = DequantizeLinear(o, s, z) }"""
    made = run_passes(text, QdqToQoperator())
    (function,) = made.proto.functions
    kinds = [n.op_type for n in function.node if n.op_type != "Constant"]
    assert kinds == ["QuantizeLinear", "QLinearLeakyRelu", "DequantizeLinear"]
    assert {i.domain for i in function.opset_import} == {"", "com.microsoft"}
    feeds = {"x": np.arange(-4, 4, dtype=np.float32).reshape(2, 4)}
    (a,), (b,) = run_model(onnx.parser.parse_model(text), feeds, true=True), run_model(made.proto, feeds)
    np.testing.assert_array_equal(a, b)


def test_a_model_of_an_older_opset(run_passes: Callable[..., Any]) -> None:
    """QLinearSoftmax says what its Softmax means."""
    text = """<ir_version: 7, opset_import: ["" : 12]> g (float[2,3,4] x) => (float[2,3,4] y)
      <float s = {0.1}, uint8 z = {128}, float t = {0.00390625}, uint8 n = {0}> {
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) f = Softmax(d)
      o = QuantizeLinear(f, t, n) y = DequantizeLinear(o, t, n) }"""
    node = run_passes(text, QdqToQoperator()).node("QLinearSoftmax")
    assert {a.name: a.i for a in node.attribute} == {"axis": 1, "opset": 12}


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lenet") / "int8.onnx"
    onnxq.quantize(LENET / "lenet.onnx", LENET / "calibration.npz", output=path, method="minmax", search=False)
    return path


def test_lenet(lenet: Path, run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """Wholly on integers, just as onnxruntime itself would fuse it; back it is the same model, node by node."""
    proto = onnx.load(lenet)
    image = np.load(LENET / "calibration.npz")["image"]
    made = run_passes(proto, QdqToQoperator())
    moved = ["QuantizeLinear", "QLinearConv", "MaxPool", "QLinearConv", "MaxPool", "Flatten", "QGemm", "QGemm"]
    assert made.ops() == moved and made.codes() == ["lowered"]
    wanted = run_model(proto, {"image": image})[0]
    np.testing.assert_allclose(run_model(made.proto, {"image": image})[0], wanted, rtol=1e-6, atol=1e-5)
    back = run_passes(made.proto, QoperatorToQdq())
    true = run_model(proto, {"image": image}, true=True)[0]
    np.testing.assert_allclose(run_model(back.proto, {"image": image}, true=True)[0], true, rtol=1e-5, atol=1e-5)
    assert sorted(op for op in back.ops() if op != "Relu") == sorted(
        n.op_type for n in proto.graph.node if n.op_type != "Relu"
    )
    again = run_passes(back.proto, QdqToQoperator())
    assert again.ops() == moved
    floats = run_passes(again.proto, Dequantize())
    assert floats.ops() == ["Conv", "Clip", "MaxPool", "Conv", "Clip", "MaxPool", "Flatten", "Gemm", "Clip", "Gemm"]


def test_lenet_with_operators_of_onnx(lenet: Path, run_passes: Callable[..., Any]) -> None:
    made = run_passes(onnx.load(lenet), QdqToQoperator(domain="onnx"))
    assert made.ops().count("QLinearConv") == 2 and made.ops().count("Gemm") == 2
    assert [n.domain for n in made.proto.opset_import] == [""]
    assert made.codes() == ["not-lowered", "not-lowered", "lowered"]
