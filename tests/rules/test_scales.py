"""OQ201–OQ203: scales as numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules.lab import build, find, in_branch, numbers, places

PAIR = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)"
F = np.float32


@pytest.mark.parametrize(
    ("scale", "code"),
    [
        (F(0.1), ""), (F(0), "OQ201"), (F(-0.1), "OQ201"), (F(np.nan), "OQ202"), (F(np.inf), "OQ202"),
        (F(1e-40), "OQ203"), (F(1.1754944e-38), ""), (np.float16(1e-6), "OQ203"), (np.float16(1e-4), ""),
        (np.array(1e-39, ml_dtypes.bfloat16), "OQ203"), (np.array(1e-6, ml_dtypes.bfloat16), ""),
        (np.array(np.inf, ml_dtypes.bfloat16), "OQ202"), (np.float64(1e-40), ""), (np.int32(0), ""),
    ],
)  # fmt: skip
def test_one_scale(scale: Any, code: str) -> None:
    """A subnormal number is one of its own type; -inf is both, not positive and not finite."""
    model = build(PAIR, {"s": scale}, opset=23)
    for other in ("OQ201", "OQ202", "OQ203"):
        assert places(model, other) == (["q", "y"] if other == code else [])
    if code in ("OQ201", "OQ203"):
        assert find(model, code)[0].numbers == {"scale": float(scale)}


def test_one_channel_of_many() -> None:
    scale = np.array([1, 2, 0, -1], "f")
    model = build("y = DequantizeLinear<axis=0>(w, s)", {"w": np.ones((4, 2), np.int8), "s": scale})
    assert numbers(model, "OQ201") == {"scale": 0.0, "channel": 2, "channels": 2}
    assert not find(build(PAIR, {"s": scale}), "OQ202")


def test_integer_operators_have_scales_too() -> None:
    data = {"s": F(1), "z": np.uint8(0), "w": np.ones((4, 4, 1, 1), np.int8), "ws": F(0), "wz": np.int8(0)}
    conv = "q = QuantizeLinear(x, s, z) c = QLinearConv(q, s, z, w, ws, wz, s, z) y = DequantizeLinear(c, s, z)"
    assert places(build(conv, data), "OQ201") == ["c"]
    blocks = "y = com.microsoft.MatMulNBits<K=6, N=2, bits=4, block_size=16>(x, b, k)"
    packed = {"b": np.zeros((2, 1, 8), np.uint8), "k": np.array([1, np.nan], "f")}
    model = build(blocks, packed, imports=', "com.microsoft" : 1')
    assert places(model, "OQ202") == ["y"] and numbers(model, "OQ202")["channel"] == 1


def test_negative_scales_of_blocks() -> None:
    """Some 4-bit quantizers write them, so that -8 stands for the largest value; 0 is wrong there, too."""
    block = "y = DequantizeLinear<axis=0, block_size=2>(w, s)"
    data = {"w": np.ones((4, 2), np.int8), "s": np.array([[1, -1], [-2, 2]], "f")}
    assert not find(build(block, data), "OQ201")
    model = build(block, {**data, "s": np.array([[1, -1], [-2, 0]], "f")})
    assert numbers(model, "OQ201") == {"scale": 0.0, "channel": 3, "channels": 1}


def test_bodies_and_functions() -> None:
    (found,) = find(build(in_branch("q = QuantizeLinear(x, s) p = DequantizeLinear(q, k)", "p"),
                          {"s": F(0), "k": F(1)}), "OQ201")  # fmt: skip
    assert (found.place.graph, found.place.node) == ("y/then_branch", "q")
    function = f"""<domain: "local", opset_import: ["" : 21]> pair (x) => (y)
      {{ s = Constant<value_float=0.0>() {PAIR} }}"""
    model = build("y = local.pair(x)", imports=', "local" : 1', functions=function)
    assert [str(d.place) for d in find(model, "OQ201")] == [
        "local::pair/q (QuantizeLinear)",
        "local::pair/y (DequantizeLinear)",
    ]


def test_the_harm() -> None:
    """A scale of zero makes zeros of everything, and onnxruntime loads and runs it."""
    model = build(PAIR, {"s": F(0)}, y="float[1,4,6,6] y")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert not session.run(None, {"x": np.ones((1, 4, 6, 6), "f")})[0].any()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32), min_size=2, max_size=6))
def test_every_float_is_good_or_has_one_reason(row: list[float]) -> None:
    scale = np.array(row, "f")
    model = build("y = DequantizeLinear<axis=0>(w, s)", {"w": np.ones((len(row), 2), np.int8), "s": scale})
    tiny = np.finfo("f").smallest_normal
    for code, bad in (
        ("OQ201", scale <= 0), ("OQ202", ~np.isfinite(scale)), ("OQ203", (scale > 0) & (scale < tiny)),
    ):  # fmt: skip
        found = find(model, code)
        assert len(found) == int(bad.any())
        if found:
            assert found[0].numbers["channels"] == bad.sum() and found[0].numbers["channel"] == int(np.argmax(bad))
