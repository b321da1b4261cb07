"""OQ505, OQ506: sums in int32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.rules.lab import build, find, numbers, places

F, U8, S8, S32 = np.float32, np.uint8, np.int8, np.int32
MOST = 2**31 - 1
HEAD = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear<axis=0>(w, ws) "
STORED = HEAD + "b = DequantizeLinear<axis=0>(i, bs) y = Conv(d, v, b)"
FLOAT = HEAD + "c = Conv(d, v, b) {} o = QuantizeLinear({}, s, z) y = DequantizeLinear(o, s, z)"


def data(**changes: Any) -> dict[str, Any]:
    w = np.array([[2, 1, 0, 0], [-3, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], S8).reshape(4, 4, 1, 1)
    ws = np.full(4, 1e-6, "f")
    return {"s": F(1e-3), "z": U8(100), "w": w, "ws": ws, "bs": F(1e-3) * ws, **changes}


def test_float_biases() -> None:
    fits = np.array([0, 0, 2.1, -2.1], "f")
    for between, last in (("", "c"), ("r = Relu(c)", "r")):
        body = FLOAT.format(between, last)
        assert not find(build(body, data(b=fits)), "OQ505", target="ort-cpu")
        model = build(body, data(b=np.array([0, 0, 2.1, -2.2], "f")))
        assert places(model, "OQ505", target="ort-cpu") == ["c"]
        found = numbers(model, "OQ505", target="ort-cpu")
        assert found["channel"] == 3 and found["int32"] == pytest.approx(2.2e9) and found["bias"] == pytest.approx(-2.2)
        assert not find(model, "OQ5"), "without the target nobody makes integers of it"
    no_q = build(HEAD + "y = Conv(d, v, b)", data(b=np.full(4, 9, "f")))
    assert not find(no_q, "OQ505", target="ort-cpu")
    assert not find(build(FLOAT.format("t = Tanh(c)", "t"), data(b=np.full(4, 9, "f"))), "OQ505", target="ort-cpu")


def test_the_harm_of_a_float_bias() -> None:
    """The channel comes out with the opposite sign: the int32 wraps around."""
    changes = {"b": np.array([0, 0, 3, 0], "f"), "s": F(0.03), "ws": np.full(4, 3e-8, "f"), "z": U8(128)}
    model = build(FLOAT.format("", "c"), data(**changes), y="float[1,4,6,6] y")
    assert numbers(model, "OQ505", target="ort-cpu")["channel"] == 2
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.zeros((1, 4, 6, 6), "f")})
    assert y[0, 2].max() < 0 < 3


@pytest.mark.parametrize(
    ("channel", "products"),
    [
        (0, 3 * 155), (1, 155 + 300), (2, 0), (3, 4 * 155),
    ],
)  # fmt: skip
def test_headroom_to_the_last_integer(channel: int, products: int) -> None:
    """x - zero point reaches from -100 to 155; a sum of exactly the largest int32 is no overflow."""
    bias = np.zeros(4, S32)
    bias[channel] = MOST - products
    assert not find(build(STORED, data(i=bias)), "OQ506")
    if products:
        bias[channel] += 1
        model = build(STORED, data(i=bias))
        assert places(model, "OQ506") == ["b"]
        assert numbers(model, "OQ506") == {
            "channel": channel, "bias": MOST - products + 1, "products": products, "int32": MOST,
        }  # fmt: skip


def test_headroom_below() -> None:
    bias = np.zeros(4, S32)
    bias[1] = -(2**31) + 3 * 155 + 100
    assert not find(build(STORED, data(i=bias)), "OQ506")
    bias[1] -= 1
    found = numbers(build(STORED, data(i=bias)), "OQ506")
    assert found["channel"] == 1 and found["products"] == -3 * 155 - 100


def test_terms_alone() -> None:
    """70 000 products of uint8 and int8; 16 bits are summed in float."""
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, ws) y = MatMul(d, v)"
    wide = {"s": F(1), "z": U8(0), "w": np.full((70_000, 1), 127, S8), "ws": F(1)}
    model = build(body, wide, x="float[1,70000] x")
    assert places(model, "OQ506") == ["y"] and numbers(model, "OQ506")["products"] == 70_000 * 255 * 127
    assert not find(build(body, {**wide, "w": np.ones((70_000, 1), S8)}, x="float[1,70000] x"), "OQ506")
    assert not find(build(body, {**wide, "z": np.uint16(0)}, x="float[1,70000] x"), "OQ506")


def test_groups_of_a_transposed_conv() -> None:
    """Output channel 2 * g + j sums over the input channels of group g."""
    w = np.zeros((4, 2, 1, 1), S8)
    w[2:, 1] = 100  # group 1, second channel: output channel 3
    body = HEAD.replace("<axis=0>", "") + "b = DequantizeLinear<axis=0>(i, bs) y = ConvTranspose<group=2>(d, v, b)"
    bias = np.full(4, MOST - 2 * 100 * 155 + 1, S32)
    changes = {"w": w, "ws": F(1e-6), "bs": F(1e-9), "i": bias}
    assert numbers(build(body, data(**changes)), "OQ506")["channel"] == 3
    assert not find(build(body, data(**{**changes, "i": bias - 1})), "OQ506")
