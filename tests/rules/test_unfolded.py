"""OQ110–OQ112: constants that are computed when the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rules.lab import build, find, in_branch, places

F, S8 = np.float32, np.int8
PAIR = "q = QuantizeLinear<axis=0>({}, s) d = DequantizeLinear<axis=0>(q, s) y = Conv(x, d)"
DATA: dict[str, Any] = {"w": np.ones((4, 4, 1, 1), "f"), "s": np.ones(4, "f")}


def test_float_weights() -> None:
    (found,) = find(build(PAIR.format("w"), DATA), "OQ110")
    assert (found.place.node, found.numbers, found.fix) == (
        "q",
        {"values": 16},
        "freeze",
    ) and "float32" in found.message
    turned = "t = Transpose<perm=[1,0,2,3]>(w) " + PAIR.format("t")
    assert places(build(turned, DATA), "OQ110") == ["q"]
    inner = PAIR.format("w").replace("y =", "p =")
    assert places(build(in_branch(inner, "p"), DATA), "OQ110") == ["q"]


def test_float_weights_that_are_meant() -> None:
    model = build(PAIR.format("w"), DATA)
    assert not find(model, "OQ110", target="ort-training"), "it trains them"
    assert places(model, "OQ110", target="ort-cpu") == ["q"]
    assert not find(
        build("d = DequantizeLinear<axis=0>(w, s) y = Conv(x, d)", {**DATA, "w": DATA["w"].astype(S8)}), "OQ110"
    )
    activations = "r = Relu(x) q = QuantizeLinear(r, k) y = DequantizeLinear(q, k)"
    assert not find(build(activations, {"k": F(1)}), "OQ110")


@pytest.mark.parametrize(
    ("body", "node"),
    [
        ("c = Cast<to=1>(w) d = Mul(c, s)", "d"), ("c = Cast<to=1>(w) d = Mul(s, c)", "d"),
        ("c = Cast<to=1>(w) d = Div(c, s)", "d"), ("c = Cast<to=1>(w) z = Sub(c, k) d = Mul(z, s)", "d"),
        ("c = Cast<to=1>(w) d = Add(c, s)", ""), ("c = Cast<to=1>(w) d = Mul(c, x)", ""),
        ("c = Cast<to=1>(w) z = Sub(c, x) d = Mul(z, s)", ""), ("c = Cast<to=1>(x) d = Mul(c, s)", ""),
    ],
)  # fmt: skip
def test_cast_and_mul(body: str, node: str) -> None:
    data = {"w": np.ones((6, 6), S8), "s": np.ones((1, 6), "f"), "k": F(3)}
    (*found,) = find(build(f"{body} y = MatMul(x, d)", data), "OQ111")
    assert [d.place.node for d in found] == ([node] if node else [])
    assert all((d.fix, d.numbers) == ("qoperator-to-qdq", {"values": 36}) for d in found)


def test_cast_and_mul_of_something_else() -> None:
    wide = build("c = Cast<to=1>(w) y = Mul(c, s)", {"w": np.ones((6, 6), np.int64), "s": F(2)})
    assert not find(wide, "OQ111"), "positions, not weights"


def test_computed_parameters() -> None:
    body = "m = ReduceMax<keepdims=0>(x) k = Div(m, n) q = QuantizeLinear(x, k) d = DequantizeLinear(q, k) y = Neg(d)"
    (found,) = find(build(body, {"n": F(127)}), "OQ112")
    assert found.place.node == "q" and "'k' is made by Div 'k'" in found.message
    zero = "i = Cast<to=2>(n) q = QuantizeLinear(x, n, i) y = DequantizeLinear(q, n, i)"
    assert "its zero point" in find(build(zero, {"n": F(1)}), "OQ112")[0].message


def test_parameters_that_are_meant_to_be_computed() -> None:
    dynamic = build("q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)")
    assert not find(dynamic, "OQ112")
    constant = build("s = Constant<value_float=1.0>() q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)")
    assert not find(constant, "OQ112")
    function = """<domain: "local", opset_import: ["" : 21]> pair (x, s) => (y)
      { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"""
    assert not find(build("y = local.pair(x, s)", {"s": F(1)}, imports=', "local" : 1', functions=function), "OQ112")
