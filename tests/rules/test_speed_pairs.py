"""Pairs of activations that keep layers in float, or serve none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.rules.graphs import found, places
from tests.rules.test_speed import FILTER, IMAGE, INT8, OUT, PAIR, WEIGHT, integer, net

pytestmark = pytest.mark.skipif(not ort.__version__.startswith("1.32."), reason="measured with onnxruntime 1.32")
OUT8 = OUT.replace("z)", "z8)")
TWO = {"inputs": "float[1, 4, 4, 4] x", "outputs": "float[A, B, C, D] y, float[A, B, C, D] k"}
FLAT = {"outputs": "float[A, B] y, float[A, B] k"}


@pytest.mark.parametrize(
    ("body", "more", "where", "layers"),
    [
        (INT8 + FILTER + "m = Conv(d, w) k = Tanh(d)" + OUT8, TWO, "d", 0),
        (INT8 + FILTER + "m = Conv(d, w)" + OUT8 + " k = Tanh(y)", TWO, "y", 0),
        (INT8 + "e = DequantizeLinear(q, s, z8) " + FILTER + "m = Conv(d, w) k = Tanh(e)" + OUT8, TWO, "d", 0),
        (INT8 + WEIGHT + "m = MatMul(d, w) k = Tanh(d)" + OUT8, FLAT, "d", 0),
        (INT8 + WEIGHT + "m = Gemm(d, w) k = Tanh(d)" + OUT8, FLAT, "d", 0),
        (INT8 + WEIGHT + "m = MatMul(d, w)" + OUT8 + " k = Tanh(y)", FLAT, "y", 0),
        (INT8 + WEIGHT + "y = Gemm(d, w) k = Tanh(d)", FLAT, "", 1),
        (INT8 + FILTER + "m = Conv(d, w)" + OUT8, IMAGE, "", 1),
        (PAIR + FILTER + "m = Conv(d, w) k = Tanh(d)" + OUT, TWO, "", 1),
        (INT8 + "m = Add(d, d)" + OUT8 + " k = Tanh(y)", FLAT, "", 0),
    ],
)
def test_int8_with_several_readers(body: str, more: dict[str, Any], where: str, layers: int) -> None:
    proto = net(body, **more)
    assert places(proto, "OQ707") == ([where] if where else [])
    assert integer(proto) == layers
    assert all(d.fix == "split-pairs" for d in found(proto, "OQ707"))


@pytest.mark.parametrize(
    ("body", "more", "where"),
    [
        ("t = Tanh(x) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z) y = Erf(d)", {}, "q"),
        (PAIR + "y = Erf(d)", {}, "q"),
        ("t = Tanh(x) q = QuantizeLinear(t, s, z) y = DequantizeLinear(q, s, z)", {}, "q"),
        (PAIR.replace("d =", "y ="), {}, ""),
        (PAIR + FILTER + "m = Conv(d, w)" + OUT, IMAGE, ""),
        (PAIR + "t = Transpose(d) " + WEIGHT + "y = MatMul(t, w)", {"inputs": "float[32, 4] x"}, ""),
        (PAIR + "m = Add(d, d)" + OUT, {}, ""),
        ("t = Tanh(x) q = QuantizeLinear(t, s, z16) d = DequantizeLinear(q, s, z16) y = Erf(d)", {}, ""),
    ],
)
def test_pairs_that_serve_nobody(body: str, more: dict[str, Any], where: str) -> None:
    assert places(net(body, **more), "OQ708") == ([where] if where else [])


def test_float16_scales() -> None:
    half: dict[str, Any] = {"inputs": "float16[4, 32] x", "outputs": "float16[A, B] y"}
    half |= {"s": np.float16(0.01), "s2": np.float16(0.05), "ws": np.full(32, 0.01, np.float16)}
    proto = net(PAIR + WEIGHT + "m = MatMul(d, w)" + OUT, **half)
    assert places(proto, "OQ711") == ["q"] and integer(proto) == 0
    assert not found(net(PAIR + WEIGHT + "m = MatMul(d, w)" + OUT), "OQ711")
    assert not found(net(PAIR + "m = Tanh(d)" + OUT, **half), "OQ711")
