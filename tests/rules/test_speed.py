"""What keeps layers from integer kernels: the graph that onnxruntime makes says the same as the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.rules.graphs import array, found, kernels, model, places

pytestmark = pytest.mark.skipif(not ort.__version__.startswith("1.32."), reason="measured with onnxruntime 1.32")

PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
INT8 = PAIR.replace("z)", "z8)")
WEIGHT = "w = DequantizeLinear<axis = 1>(wq, ws, wz) "
FILTER = "w = DequantizeLinear<axis = 0>(cq, cs, cz) "
BIAS = "b = DequantizeLinear<axis = 0>(bq, bs, bz) "
OUT = " p = QuantizeLinear(m, s2, z) y = DequantizeLinear(p, s2, z)"
TENSORS: dict[str, Any] = {
    "wq": array(32, 32),
    "ws": np.full(32, 0.01, np.float32),
    "wz": np.zeros(32, np.int8),
    "cq": array(4, 4, 1, 1),
    "cs": np.full(4, 0.01, np.float32),
    "cz": np.zeros(4, np.int8),
    "f": np.ones(32, np.float32),
    "bq": np.ones(32, np.int32),
    "bs": np.full(32, 0.0001, np.float32),
    "bz": np.zeros(32, np.int32),
    "lo": np.float32(0),
    "hi": np.float32(6),
}
IMAGE = {"inputs": "float[1, 4, 4, 4] x", "outputs": "float[A, B, C, D] y"}
CUBE = {"outputs": "float[A, B, C] y"}
INTEGER = ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "MatMulNBits")


def net(body: str, inputs: str = "float[4, 32] x", outputs: str = "float[A, B] y", **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => ({outputs}) {{ {body} }}", **{**TENSORS, **more})


def integer(proto: onnx.ModelProto) -> int:
    """Layers that run on integers."""
    made = kernels(proto)
    return sum(made[name] for name in INTEGER)


@pytest.mark.parametrize(
    ("body", "more", "where"),
    [
        (PAIR + FILTER + "y = Conv(d, w)", IMAGE, "y"),
        (PAIR + FILTER + "m = Conv(d, w) t = Sigmoid(m)" + OUT.replace("(m,", "(t,"), IMAGE, "m"),
        (PAIR + FILTER + "m = Conv(d, w)" + OUT, IMAGE, ""),
        (PAIR + FILTER + "c = Conv(d, w) m = Transpose(c)" + OUT, IMAGE, ""),
        (PAIR + WEIGHT + "y = Gemm(d, w, f)", {}, "y"),
        (PAIR + WEIGHT + BIAS + "y = Gemm(d, w, b)", {}, ""),
        (PAIR + WEIGHT + "y = Gemm(d, w)", {}, ""),
        (PAIR + WEIGHT + "m = Gemm(d, w, f)" + OUT, {}, ""),
        (PAIR + WEIGHT + BIAS + "m = Gemm(d, w, b) r = Relu(m) y = Tanh(r)", {}, "m"),
        (PAIR + WEIGHT + BIAS + "m = Gemm(d, w, b) y = Relu(m)", {}, ""),
        (PAIR + WEIGHT + "m = MatMul(d, w) y = Add(m, f)", {}, "m"),
        (PAIR + WEIGHT + BIAS + "m = MatMul(d, w) y = Add(m, b)", {}, ""),
        (PAIR + WEIGHT + "m = MatMul(d, w) y = Tanh(m)", {}, ""),
        (PAIR + WEIGHT + "m = MatMul(d, w) r = Relu(m) y = Tanh(r)", {}, "m"),
        (PAIR + WEIGHT + "m = MatMul(d, w) y = Add(m, f)", {"inputs": "float[2, 4, 32] x", **CUBE}, "m"),
        (PAIR + WEIGHT + "m = MatMul(d, w) y = Add(m, f)", {"inputs": "float[N, 4, 32] x", **CUBE}, ""),
    ],
)  # fmt: skip
def test_no_pair_behind(body: str, more: dict[str, Any], where: str) -> None:
    proto = net(body, **more)
    assert places(proto, "OQ701") == ([where] if where else [])
    assert integer(proto) == (0 if where else 1)


QUANTIZED = " p = QuantizeLinear(r, s, {z}) y = DequantizeLinear(p, s, {z})"


@pytest.mark.parametrize(
    ("body", "zero", "more", "fires"),
    [
        (PAIR + FILTER + "m = Conv(d, w) r = Relu(m)", "z", IMAGE, True),
        (PAIR + FILTER + "m = Conv(d, w) r = Relu(m)", "z0", IMAGE, False),
        (INT8 + FILTER + "m = Conv(d, w) r = Relu(m)", "zs", IMAGE, True),
        (INT8 + FILTER + "m = Conv(d, w) r = Relu(m)", "low", IMAGE, False),
        (PAIR + FILTER + "m = Conv(d, w) r = Clip(m, lo, hi)", "z0", {**IMAGE, "s": np.float32(8 / 255)}, True),
        (PAIR + FILTER + "m = Conv(d, w) r = Clip(m, lo, hi)", "z0", {**IMAGE, "s": np.float32(6 / 255)}, False),
        (PAIR + FILTER + "m = Conv(d, w) r = Clip(m, lo, hi)", "z0", {**IMAGE, "s": np.float32(6.01 / 255)}, False),
        (PAIR + WEIGHT + "m = Gemm(d, w, f) r = Relu(m)", "z", {}, True),
        (PAIR + WEIGHT + "m = Gemm(d, w, f) r = Relu(m)", "z0", {}, False),
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(n, f) r = Relu(m)", "z", {}, True),
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(n, f) r = Relu(m)", "z0", {}, False),
        (PAIR + WEIGHT + "m = MatMul(d, w) r = Relu(m)", "z", {}, True),
    ],
)
def test_a_pair_that_a_relu_does_not_fit_into(body: str, zero: str, more: dict[str, Any], fires: bool) -> None:
    tensors = {"zs": np.int8(0), "low": np.int8(-128), **more}
    proto = net(body + QUANTIZED.format(z=zero), **tensors)
    assert places(proto, "OQ702") == (["r"] if fires else [])
    assert integer(proto) == (0 if fires else 1)


def test_a_relu_behind_float_operators_is_nobodys() -> None:
    assert not found(net("r = Relu(x) p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)"), "OQ702")


@pytest.mark.parametrize(
    ("body", "more", "fires"),
    [
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(n, d)" + OUT, {}, True),
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(x, n)" + OUT, {}, True),
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(n, d)" + OUT, {"inputs": "float[N, 32] x"}, True),
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(n, d)" + OUT,
         {"inputs": "float[2, 4, 32] x", "outputs": "float[A, B, C] y"}, False),
        (PAIR + WEIGHT + "n = MatMul(d, w) i = QuantizeLinear(n, s2, z) o = DequantizeLinear(i, s2, z) m = Add(o, d)"
         + OUT, {}, False),
        (PAIR + WEIGHT + "n = MatMul(d, w) m = Add(n, f)" + OUT, {}, False),
    ],
)  # fmt: skip
def test_residual_products(body: str, more: dict[str, Any], fires: bool) -> None:
    proto = net(body, **more)
    assert places(proto, "OQ706") == (["n"] if fires else [])
    assert integer(proto) == (0 if fires else 1)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (PAIR + "w = DequantizeLinear<axis = 1>(wq, ws) m = Gemm(d, w, f)" + OUT, "w"),
        (PAIR + "w = DequantizeLinear<axis = 1>(wq, ws) n = MatMul(d, w) m = Add(n, f)" + OUT, "w"),
        (PAIR + WEIGHT + "m = Gemm(d, w, f)" + OUT, ""),
        (PAIR + "w = DequantizeLinear<axis = 1>(wq, ws) m = MatMul(d, w)" + OUT, ""),
    ],
)
def test_zero_points_of_a_gemm(body: str, where: str) -> None:
    proto = net(body)
    assert places(proto, "OQ712") == ([where] if where else [])
    assert integer(proto) == (0 if where else 1)


def test_in_a_branch_and_in_a_function() -> None:
    branch = net(
        f"y = If(c) <then_branch = t () => (float[4, 32] o) {{ {PAIR}{WEIGHT} o = Gemm(d, w, f) }}, "
        "else_branch = e () => (float[4, 32] k) { k = Relu(x) }>",
        "float[4, 32] x, bool c",
    )
    assert places(branch, "OQ701") == ["y/then_branch/o"]
    constants = (
        "s = Constant<value = float {0.1}>() z = Constant<value = uint8 {1}>() "
        "k = Constant<value = int8[2, 2] {1, 2, 3, 4}>() v = Constant<value = int8 {0}>() "
        "b = Constant<value = float[2] {1, 2}>() "
    )
    body = constants + PAIR + "w = DequantizeLinear(k, s, v) y = Gemm(d, w, b)"
    function = model(
        "(float[4, 2] x) => (float[4, 2] y) { y = l.f(x) }",
        functions=f'<domain: "l", opset_import: ["": 21]> f (x) => (y) {{ {body} }}',
    )
    assert places(function, "OQ701") == ["l::f/y"]


def test_only_for_onnxruntime() -> None:
    assert not found(net(PAIR + FILTER + "y = Conv(d, w)", **IMAGE), "OQ701", None)
