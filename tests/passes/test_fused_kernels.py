"""What onnxruntime's default session really runs for each op between pairs, and what numbers come out.

The optimized model is saved and looked at: integer kernels, and no float kernel left that has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng(0)
KERNELS = {"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"}
FLOAT_KERNELS = {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "Add", "Mul", "Sigmoid", "Softmax", "Relu", "Clip"}


def w(*shape: int, scale: float = 0.3) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def model(signature: str, body: str, opset: int = 17) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {{ {body} }}'


def island(body: str, dims: str = "2,4,8,8", out: str = "a,b,c,d", opset: int = 17) -> str:
    """``a`` is made by a Conv, ``o`` is read by one."""
    return model(f"(float[{dims}] x) => (float[{out}] y)", f"a = Conv(x, w1, b1) {body} y = Conv(o, w2)", opset)


CONV = {"w1": w(8, 4, 3, 3), "b1": w(8), "w2": w(4, 8, 1, 1)}
SECOND = {"w3": w(8, 4, 3, 3)}

# op between two Convs -> kernel in onnxruntime's default session
BETWEEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "maxpool": ("o = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(a)", {}, "NhwcMaxPool"),
    "averagepool": ("o = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)", {}, "QLinearAveragePool"),
    "global-pool": ("o = GlobalAveragePool(a)", {}, "QLinearGlobalAveragePool"),
    "sigmoid": ("o = Sigmoid(a)", {}, "QLinearSigmoid"),
    "leaky-relu": ("o = LeakyRelu<alpha=0.2>(a)", {}, "QLinearLeakyRelu"),
    "softmax": ("o = Softmax<axis=1>(a)", {}, "QLinearSoftmax"),
    "silu": ("s = Sigmoid(a) o = Mul(a, s)", {}, "QLinearMul"),
    "add": ("c = Conv(x, w3) o = Add(a, c)", SECOND, "QLinearAdd"),
    "add-relu": ("c = Conv(x, w3) q = Add(a, c) o = Relu(q)", SECOND, "QLinearAdd"),
    "add-itself": ("o = Add(a, a)", {}, "QLinearAdd"),
    "mul": ("c = Conv(x, w3) o = Mul(a, c)", SECOND, "QLinearMul"),
    "mul-broadcast": ("g = GlobalAveragePool(a) o = Mul(g, a)", {}, "QLinearMul"),
    "concat": ("c = Conv(x, w3) o = Concat<axis=2>(a, c)", SECOND, "QLinearConcat"),
    "where": ("c = Conv(x, w3) o = Where(m, a, c)", {**SECOND, "m": np.eye(6, dtype=bool)}, "QLinearWhere"),
    "transpose": ("o = Transpose<perm=[0,1,3,2]>(a)", {}, "Transpose"),
    "reshape": ("o = Reshape(a, s)", {"s": ints(2, 8, 4, 9)}, "Reshape"),
    "flatten": ("f = Flatten<axis=2>(a) o = Reshape(f, s)", {"s": ints(2, 8, 6, 6)}, "Flatten"),
    "squeeze": ("g = GlobalAveragePool(a) q = Squeeze(g, s) o = Unsqueeze(q, s)", {"s": ints(2, 3)}, "Squeeze"),
    "slice": ("o = Slice(a, s, e, t)", {"s": ints(0), "e": ints(4), "t": ints(3)}, "Slice"),
    "split": ("p, q = Split<axis=2>(a, s) o = Add(p, q)", {"s": ints(3, 3)}, "Split"),
    "gather": ("o = Gather<axis=2>(a, s)", {"s": ints(2, 4)}, "Gather"),
    "expand": ("g = GlobalAveragePool(a) o = Expand(g, s)", {"s": ints(2, 8, 4, 4)}, "Expand"),
    "tile": ("o = Tile(a, s)", {"s": ints(1, 1, 2, 1)}, "Tile"),
    "depth-to-space": ("d = DepthToSpace<blocksize=2>(a) o = Concat<axis=1>(d, d, d, d)", {}, "DepthToSpace"),
    "resize": ('o = Resize<mode="nearest">(a, , s)', {"s": np.array([1, 1, 2, 2], np.float32)}, "Resize"),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_ops_between_convs(case: str, quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    body, extra, kernel = BETWEEN[case]
    made = quantized(island(body), {**CONV, **extra})
    ran = fused(made.proto)
    assert kernel in ran and not FLOAT_KERNELS & set(ran), ran
    assert ran.count("QuantizeLinear") == ran.count("DequantizeLinear") == 1, "one pair in, one out"
    close(made)


# layers -> (signature, body, weights, kernels in order)
X2, X3 = "(float[6,16] x) => (float[a,b] y)", "(float[2,6,16] x) => (float[a,b,c] y)"
SYMBOLIC = "(float[n,m,16] x) => (float[a,b,c] y)"
LINEAR = "c = MatMul(x, w) d = Add(c, b) r = Relu(d) e = MatMul(r, w2) y = Add(b2, e)"
LAYERS: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "conv-1d": (
        "(float[2,4,16] x) => (float[a,b,c] y)", "c = Conv(x, w, b) r = Relu(c) y = Conv(r, w2)",
        {"w": w(8, 4, 3), "b": w(8), "w2": w(8, 8, 3)}, ["QLinearConv"] * 2,
    ),
    "conv-3d": (
        "(float[1,4,6,6,6] x) => (float[a,b,c,d,e] y)", "c = Conv(x, w, b) r = Relu(c) y = Conv(r, w2)",
        {"w": w(8, 4, 3, 3, 3), "b": w(8), "w2": w(8, 8, 1, 1, 1)}, ["QLinearConv"] * 2,
    ),
    "conv-grouped": (
        "(float[1,8,6,6] x) => (float[a,b,c,d] y)", "c = Conv<group=2>(x, w, b) r = Relu(c) y = Conv(r, w2)",
        {"w": w(8, 4, 3, 3), "b": w(8), "w2": w(8, 8, 1, 1)}, ["QLinearConv"] * 2,
    ),
    "conv-depthwise": (
        "(float[1,4,6,6] x) => (float[a,b,c,d] y)",
        "a = Conv(x, w, b) r = Relu(a) c = Conv<group=8>(r, w2) s = Clip(c, low, six) y = Conv(s, w3)",
        {"w": w(8, 4, 3, 3), "b": w(8), "w2": w(8, 1, 3, 3, scale=2), "w3": w(8, 8, 1, 1),
         "low": np.float32(0), "six": np.float32(6)}, ["QLinearConv"] * 3,
    ),
    "conv-same-dilated": (
        "(float[1,4,9,9] x) => (float[a,b,c,d] y)",
        'c = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w) y = Conv<dilations=[2,2], pads=[2,2,2,2]>(c, w2, b)',
        {"w": w(8, 4, 3, 3), "b": w(8), "w2": w(8, 8, 3, 3)}, ["QLinearConv"] * 2,
    ),
    "gemm": (
        X2, "c = Gemm(x, w, b) r = Relu(c) y = Gemm(r, w2, b2)",
        {"w": w(16, 8), "b": w(8), "w2": w(8, 5), "b2": w(1, 5)}, ["QGemm"] * 2,
    ),
    "gemm-transposed": (
        X2, "c = Gemm<transB=1>(x, w, b) r = Relu(c) y = Gemm<transB=1>(r, w2)",
        {"w": w(8, 16), "b": np.float32(0.3), "w2": w(5, 8)}, ["QGemm"] * 2,
    ),
    "gemm-factors": (
        X2, "c = Gemm<alpha=0.5, beta=2.0>(x, w, b) r = Relu(c) y = Gemm<alpha=3.0, transB=1>(r, w2)",
        {"w": w(16, 8), "b": w(8), "w2": w(5, 8)}, ["QGemm"] * 2,
    ),
    "gemm-trans-a": (
        "(float[16,6] x) => (float[a,b] y)", "c = Gemm<transA=1>(x, w, b) r = Relu(c) y = Gemm(r, w2)",
        {"w": w(16, 8), "b": w(8), "w2": w(8, 5)}, ["QGemm"] * 2,
    ),
    "matmul": (X2, "c = MatMul(x, w) y = MatMul(c, w2)", {"w": w(16, 8), "w2": w(8, 5)},
               ["QLinearMatMul", "MatMulIntegerToFloat"]),
    "matmul-relu": (X2, "c = MatMul(x, w) r = Relu(c) y = MatMul(r, w2)", {"w": w(16, 8), "w2": w(8, 5)},
                    ["QLinearMatMul", "MatMulIntegerToFloat"]),
    "matmul-rank-3": (X3, "c = MatMul(x, w) y = MatMul(c, w2)", {"w": w(2, 16, 8), "w2": w(2, 8, 5)},
                      ["QLinearMatMul", "MatMulIntegerToFloat"]),
    "matmul-rank-4": (
        "(float[2,3,6,16] x) => (float[a,b,c,d] y)", "c = MatMul(x, w) d = Add(c, b) y = MatMul(d, w2)",
        {"w": w(1, 3, 16, 8), "b": w(8), "w2": w(8, 5)}, ["MatMulIntegerToFloat"] * 2,
    ),
    "matmul-two-activations": (
        "(float[6,16] x, float[8,16] z) => (float[a,b] y)",
        "p = MatMul(x, w) q = MatMul(z, w2) t = Transpose(q) y = MatMul(p, t)", {"w": w(16, 8), "w2": w(16, 8)},
        ["QLinearMatMul", "QLinearMatMul", "MatMulIntegerToFloat"],
    ),
    "bias": (X2, LINEAR, {"w": w(16, 8), "b": w(8), "w2": w(8, 5), "b2": w(1, 5)}, ["QGemm"] * 2),
    "bias-scalar": (X2, LINEAR, {"w": w(16, 8), "b": np.float32(0.4), "w2": w(8, 5), "b2": w(5)}, ["QGemm"] * 2),
    "bias-rank-3": (X3, LINEAR, {"w": w(16, 8), "b": w(1, 1, 8), "w2": w(8, 5), "b2": w(5)}, ["QGemm"] * 2),
    "bias-symbolic": (SYMBOLIC, LINEAR, {"w": w(16, 8), "b": w(8), "w2": w(8, 5), "b2": w(5)},
                      ["MatMulIntegerToFloat"] * 2),
    "residual-rank-2": (X2, "c = MatMul(x, w) d = Add(c, x) y = MatMul(d, w2)", {"w": w(16, 16), "w2": w(16, 5)},
                        ["QLinearMatMul", "MatMulIntegerToFloat"]),
    "residual-rank-3": (X3, "c = MatMul(x, w) d = Add(c, x) y = MatMul(d, w2)", {"w": w(16, 16), "w2": w(16, 5)},
                        ["MatMulIntegerToFloat"] * 2),
    "bias-a-row": (X2, "c = MatMul(x, w) d = Add(c, b) y = MatMul(d, w2)", {"w": w(16, 8), "b": w(6, 8), "w2": w(8, 5)},
                   ["QLinearMatMul", "MatMulIntegerToFloat"]),
    "gemm-bias-a-row": (X2, "c = Gemm(x, w, b) y = MatMul(c, w2)", {"w": w(16, 8), "b": w(6, 8), "w2": w(8, 5)},
                        ["QGemm", "MatMulIntegerToFloat"]),
    "relu-before-float": (X2, "c = Gemm(x, w, b) r = Relu(c) y = Exp(r)", {"w": w(16, 8), "b": w(8)}, ["QGemm"]),
    "bias-relu-before-float": (
        X2, "c = MatMul(x, w) d = Add(c, b) r = Relu(d) y = Exp(r)", {"w": w(16, 8), "b": w(8)}, ["QGemm"]
    ),
    "clip-before-float": (
        X2, "c = MatMul(x, w) r = Clip(c, low, six) y = Exp(r)",
        {"w": w(16, 8), "low": np.float32(0), "six": np.float32(2)}, ["QLinearMatMul"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case: str, quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    signature, body, weights, kernels = LAYERS[case]
    made = quantized(model(signature, body), weights, dynamic="never")
    ran = fused(made.proto)
    assert [op for op in ran if op in KERNELS] == kernels, ran
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul"} & set(ran), ran
    close(made, 0.08)


def test_without_a_rank(quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """Not even a rank is known: the bias belongs to the layer all the same, and a residual Add gets its Q."""
    body = "z = Reshape(x, s) " + LINEAR.replace("(x", "(z").replace("y =", "f =") + " g = MatMul(f, w3) y = Add(g, f)"
    weights = {"w": w(16, 8), "b": w(8), "w2": w(8, 5), "b2": w(5), "w3": w(5, 5)}
    feeds = [{"x": w(96, scale=1), "s": ints(6, 16)} for _ in range(3)]
    made = quantized(model("(float[n] x, int64[m] s) => (float[a,b] y)", body), weights, feeds=feeds, dynamic="never")
    assert made.status("Add_d") == "integer/part-of-layer" and made.status("MatMul_g") == "integer/layer"
    assert made.readers("g") == ["QuantizeLinear"]
    assert not {"Gemm", "FusedGemm", "MatMul"} & set(fused(made.proto))
    close(made)
