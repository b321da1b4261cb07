"""OQ501–OQ504, OQ507: int32 biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.rules.lab import build, find, in_branch, numbers, places

F, U8, S8, S32 = np.float32, np.uint8, np.int8, np.int32
HEAD = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear<axis={}>(w, ws) "
BIAS = "b = DequantizeLinear<axis=0>(i, bs, bz) "
CONV = HEAD.format(0) + BIAS + "y = Conv(d, v, b)"
GEMM = HEAD.format(1) + BIAS + "y = Gemm<alpha={}, beta={}>(d, v, b)"
FLAT = {"x": "float[2,4] x"}


def data(*dims: int, channels: int = 4, **changes: Any) -> dict[str, Any]:
    ws = np.linspace(0.01, 0.02, channels, dtype="f")
    return {
        "s": F(0.1), "z": U8(128), "w": np.ones(dims or (channels, 4, 1, 1), S8), "ws": ws,
        "i": np.arange(channels, dtype=S32), "bs": F(0.1) * ws, "bz": np.zeros(channels, S32), **changes,
    }  # fmt: skip


def test_the_product() -> None:
    assert not find(build(CONV, data()), "OQ501")
    off = data()
    off["bs"] = off["bs"] * np.array([1, 1, 1.5, 1], "f")
    model = build(CONV, off)
    assert places(model, "OQ501") == ["b"]
    found = numbers(model, "OQ501")
    assert found["channel"] == 2 and found["off"] == pytest.approx(0.5, rel=1e-6)
    assert found["scale"] == pytest.approx(1.5 * found["product"]) and found["product"] == pytest.approx(
        0.1 * off["ws"][2]
    )
    near = data()
    near["bs"] = near["bs"] * F(1 + 1e-5)
    assert not find(build(CONV, near), "OQ501"), "a few roundings"


def test_gemm_has_factors() -> None:
    two = data(4, 4)
    assert not find(build(GEMM.format("1.0", "1.0"), two, **FLAT), "OQ501")
    assert numbers(build(GEMM.format("0.5", "1.0"), two, **FLAT), "OQ501")["off"] == pytest.approx(1)
    assert numbers(build(GEMM.format("1.0", "2.0"), two, **FLAT), "OQ501")["off"] == pytest.approx(1)
    assert not find(build(GEMM.format("0.5", "1.0"), {**two, "bs": two["bs"] / 2}, **FLAT), "OQ501")


def test_an_add_behind_a_product_and_groups() -> None:
    add = HEAD.format(1) + BIAS + "m = MatMul(d, v) y = Add(m, b)"
    assert not find(build(add, data(4, 4), **FLAT), "OQ501")
    assert places(build(add, data(4, 4, bs=np.ones(4, "f")), **FLAT), "OQ501") == ["b"]
    groups = HEAD.format(1) + BIAS + "y = ConvTranspose<group=2>(d, v, b)"
    ws = np.array([0.01, 0.02], "f")
    tiled = data(4, 2, 1, 1, ws=ws, bs=F(0.1) * np.tile(ws, 2))
    assert not find(build(groups, tiled), "OQ501"), "both groups share the scales of axis 1"
    assert places(build(groups, {**tiled, "bs": F(0.1) * np.repeat(ws, 2)}), "OQ501") == ["b"]


def test_who_may_have_a_scale_of_its_own() -> None:
    own = np.full(4, 0.5, "f")
    wide = build(CONV, data(z=np.uint16(9), bs=own))
    assert not find(wide, "OQ501"), "no kernel sums 16 bits in int32"
    float_input = build("v = DequantizeLinear<axis=0>(w, ws) b = DequantizeLinear<axis=0>(i, bs) y = Conv(x, v, b)",
                        {k: v for k, v in data(bs=own).items() if k not in ("s", "z", "bz")})  # fmt: skip
    assert not find(float_input, "OQ501")
    dead = data(bs=own)
    dead["ws"] = np.zeros(4, "f")
    assert not find(build(CONV, dead), "OQ501"), "that is OQ201"


def test_the_harm_of_another_scale() -> None:
    """onnxruntime's Gemm on integers adds the bias as it is, whatever its scale says: a quarter of it here."""
    bias = data(4, 4, i=np.full(4, 25, S32), wz=np.zeros(4, S8), ys=F(0.005), yz=U8(0))
    bias["bs"] = bias["bs"] * 4
    gemm = GEMM.format("1.0", "1.0").replace("y = Gemm", "g = Gemm").replace("(w, ws)", "(w, ws, wz)")
    body = gemm + " o = QuantizeLinear(g, ys, yz) y = DequantizeLinear(o, ys, yz)"
    model = build(body, bias, x="float[2,4] x", y="float[2,4] y")
    assert places(model, "OQ501") == ["b"]
    outs = []
    for key in ("0", "1"):
        options = ort.SessionOptions()
        options.add_session_config_entry("session.disable_quant_qdq", key)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outs.append(session.run(None, {"x": np.zeros((2, 4), "f")})[0])
    np.testing.assert_allclose(4 * outs[0], outs[1], atol=0.02)


def test_zero_point() -> None:
    assert not find(build(CONV, data()), "OQ502")
    model = build(CONV, data(bz=np.array([0, -7, 3, 0], S32)))
    assert places(model, "OQ502") == ["b"] and numbers(model, "OQ502") == {"zero point": -7}


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 2**31 - 256])
def test_saturated(value: int) -> None:
    model = build(CONV, data(i=np.array([1, value, value, 4], S32)))
    assert places(model, "OQ503") == ["b"]
    assert numbers(model, "OQ503") == {"value": value, "channel": 1, "channels": 2}
    assert not find(build(CONV, data(i=np.array([1, 2**31 - 1 - 256, 3, 4], S32))), "OQ503")


def test_axis() -> None:
    bare = build(CONV.replace("<axis=0>(i", "(i"), data())
    (found,) = find(bare, "OQ504")
    assert found.numbers == {"axis": 1, "rank": 1} and found.fix == "set-axis" and "by default" in found.message
    assert not find(build(CONV, data()), "OQ504")
    assert not find(build(CONV.replace("<axis=0>(i", "<axis=-1>(i"), data()), "OQ504")
    one = data(bs=F(1), bz=S32(0))
    assert not find(build(CONV.replace("<axis=0>(i", "(i"), one), "OQ504")


@pytest.mark.parametrize("kind", [S8, U8, np.int16])
def test_type(kind: Any) -> None:
    small = data(i=np.arange(4, dtype=kind), bz=np.zeros(4, kind))
    (found,) = find(build(CONV, small), "OQ507")
    assert found.place.node == "b" and np.dtype(kind).name in found.message
    assert not find(build(CONV, data()), "OQ507")


def test_in_a_branch() -> None:
    wrong = data(bs=np.ones(4, "f"), bz=np.ones(4, S32), i=np.full(4, 2**31 - 1, S32))
    model = build(in_branch(CONV.replace("<axis=0>(i", "(i").replace("y =", "p ="), "p"), wrong)
    for code in ("OQ501", "OQ502", "OQ503", "OQ504"):
        (found,) = find(model, code)
        assert (found.place.graph, found.place.node) == ("y/then_branch", "b"), code
