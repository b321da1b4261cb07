"""Weights alone in few bits, tables, and joined ranges."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

from onnxq.diagnostics import Severity
from tests.rules.graphs import array, found, gap, kernels, model, places
from tests.rules.test_speed import OUT, PAIR, WEIGHT, net

pytestmark = pytest.mark.skipif(not ort.__version__.startswith("1.32."), reason="measured with onnxruntime 1.32")
PRODUCT = WEIGHT + "y = MatMul(x, w)"
FOUR = {"wq": array(32, 32, low=-8, high=8).astype(ml_dtypes.int4), "wz": np.zeros(32, ml_dtypes.int4)}
BLOCKS = {**FOUR, "ws": np.full((2, 32), 0.01, np.float32), "wz": np.zeros((2, 32), ml_dtypes.int4)}
BLOCKED = PRODUCT.replace("axis = 1", "axis = 0, block_size = 16")
WIDE = PAIR.replace("z)", "z16)")
WIDE_OUT = OUT.replace("z)", "z16)")
BOTH = {"outputs": "float[A, B] y, float[A, B] k"}
OF_WEIGHTS = ("OQ703", "OQ704", "OQ713")


@pytest.mark.parametrize(
    ("body", "more", "code", "where"),
    [
        (PRODUCT, {}, "", ""),
        (PRODUCT, FOUR, "", ""),
        (BLOCKED, BLOCKS, "", ""),
        (WEIGHT + "m = Gemm(x, w, f) y = Tanh(m)", {}, "", ""),
        (PRODUCT.replace("= 1", "= -1"), {}, "OQ704", "w"),
        (PRODUCT.replace("= 1", "= -1"), FOUR, "OQ704", "w"),
        (WEIGHT + "y = Gemm<transB = 1>(x, w)", {}, "OQ704", "w"),
        (PRODUCT + " k = MatMul(x, w)", BOTH, "OQ703", "w"),
        (PRODUCT + " v = DequantizeLinear<axis = 1>(wq, ws, wz) k = MatMul(x, v)", BOTH, "OQ703", "w"),
        (WEIGHT + "m = MatMul(x, w) r = Relu(m) y = Tanh(r)", {}, "OQ713", "w"),
        (WEIGHT + "m = Gemm(x, w, f) r = Relu(m) y = Tanh(r)", {}, "OQ713", "w"),
        (WEIGHT + "n = MatMul(x, w) m = Add(n, f) r = Clip(m, lo, hi) y = Tanh(r)", FOUR, "OQ713", "w"),
        (WEIGHT + "m = MatMul(x, w) y = Relu(m)", {}, "", ""),
        (WEIGHT + "m = MatMul(x, w) r = Relu(m) y = Tanh(r) k = Erf(r)", BOTH, "", ""),
        (WEIGHT + "m = MatMul(x, w) r = LeakyRelu(m) y = Tanh(r)", {}, "", ""),
    ],
)
def test_products_that_get_no_kernel(body: str, more: dict[str, Any], code: str, where: str) -> None:
    proto = net(body, **more)
    got = {one: places(proto, one) for one in OF_WEIGHTS if places(proto, one)}
    if code == "OQ703":
        assert where in got.pop(code)
    assert got == ({code: [where]} if code and code != "OQ703" else {})
    assert bool(kernels(proto)["MatMulNBits"]) is not bool(code)


def test_an_axis_from_the_end_is_meant_with_sixteen_bits() -> None:
    body = WIDE + WEIGHT.replace("= 1", "= -1") + "m = MatMul(d, w)" + WIDE_OUT
    assert not found(net(body), "OQ704") and not found(net(body), "OQ710")
    assert not kernels(net(body))["MatMulNBits"]


@pytest.mark.parametrize(
    ("body", "more", "severity"),
    [
        (WIDE + WEIGHT + "m = MatMul(d, w)" + WIDE_OUT, {}, Severity.WARNING),
        (WIDE + WEIGHT + "m = Gemm(d, w)" + WIDE_OUT, FOUR, Severity.WARNING),
        (PRODUCT, {}, Severity.INFO),
        (BLOCKED, BLOCKS, Severity.INFO),
        (PAIR + WEIGHT + "m = MatMul(d, w)" + OUT, {}, None),
        (PAIR + WEIGHT + "m = MatMul(d, w)" + OUT, FOUR, None),
        (PRODUCT.replace("y =", "m =") + OUT, {}, None),
        (PRODUCT.replace("y =", "c =") + " m = Transpose(c)" + OUT, {}, None),
        (WEIGHT + "y = Gemm<alpha = 2.0>(x, w)", {}, None),
        (BLOCKED.replace("= 0", "= -2"), BLOCKS, None),
        (BLOCKED.replace("= 16", "= 8"), {**BLOCKS, "ws": np.full((4, 32), 0.01, np.float32),
                                         "wz": np.zeros((4, 32), ml_dtypes.int4)}, None),
    ],
)  # fmt: skip
def test_activations_that_are_rounded(body: str, more: dict[str, Any], severity: Severity | None) -> None:
    proto = net(body, **{"s2": np.float32(1e-4), **more})
    assert [d.severity for d in found(proto, "OQ710")] == ([severity] if severity else [])
    assert kernels(proto)["MatMulNBits"] == (severity is not None)
    if severity is Severity.WARNING:
        assert gap(proto) > 1e-3


@pytest.mark.parametrize(("rows", "severity"), [(10, Severity.INFO), (600, Severity.WARNING)])
def test_a_table_that_is_dequantized_whole(rows: int, severity: Severity) -> None:
    head = "(int64[4] i) => (float[4, 32] y)"
    proto = model(f"{head} {{ t = DequantizeLinear(tq, s, z8) y = Gather(t, i) }}", tq=array(rows, 32))
    (one,) = found(proto, "OQ705")
    assert (one.severity, one.numbers["entries"], one.place.value) == (severity, rows * 32, "y")
    assert kernels(proto)["DequantizeLinear"] == 1
    late = model(f"{head} {{ t = Gather(tq, i) y = DequantizeLinear(t, s, z8) }}", tq=array(rows, 32))
    assert not found(late, "OQ705")


@pytest.mark.parametrize(
    ("small", "zero", "fires"), [(0.009, "z", True), (0.012, "z", False), (0.009, "z16", False), (3e-5, "z16", True)]
)
def test_ranges_under_one_scale(small: float, zero: str, fires: bool) -> None:
    more = {"zz": np.uint8(128), "small": np.float32(small), "big": np.float32(0.5)}
    text = (
        f"q = QuantizeLinear(x, small, zz) d = DequantizeLinear(q, small, zz) e = QuantizeLinear(v, big, zz) "
        f"g = DequantizeLinear(e, big, zz) c = Concat<axis = 0>(d, g) p = QuantizeLinear(c, big, {zero}) "
        f"y = DequantizeLinear(p, big, {zero})"
    )
    if zero == "z16":
        more["big"] = np.float32(0.5 / 257)
    proto = net(text, "float[4, 32] x, float[4, 32] v", **more)
    assert places(proto, "OQ709", None) == (["c"] if fires else [])
