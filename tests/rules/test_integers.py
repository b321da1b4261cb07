"""OQ105, OQ107, OQ108: integers read as if they were numbers, or at another scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.rules.lab import build, find, in_branch, numbers, places

F, U8, S8 = np.float32, np.uint8, np.int8
DATA: dict[str, Any] = {"s": F(0.1), "z": U8(128), "t": F(0.2), "k": U8(0)}
HEAD = "q = QuantizeLinear(x, s, z) "


def test_an_integer_operator_with_another_scale() -> None:
    data = {**DATA, "w": np.ones((4, 4, 1, 1), S8), "ws": F(0.5), "wz": S8(0)}
    body = HEAD + "c = QLinearConv(q, {}, {}, w, ws, wz, s, z) y = DequantizeLinear(c, s, z)"
    assert not find(build(body.format("s", "z"), data), "OQ105")
    model = build(body.format("t", "k"), data)
    found = find(model, "OQ105")
    assert [d.place.node for d in found] == ["c", "c"]
    assert found[0].numbers == {"made": F(0.1).item(), "read": F(0.2).item()}
    assert found[1].numbers == {"made": 128, "read": 0}
    behind = body.format("s", "z").replace("y = DequantizeLinear(c, s", "y = DequantizeLinear(c, t")
    assert places(build(behind, data), "OQ105") == ["y"]


@pytest.mark.parametrize("move", ["Reshape(q, shape)", "Transpose(q)", "MaxPool<kernel_shape=[2,2]>(q)", "Clip(q, k)"])
def test_behind_what_only_moves_integers(move: str) -> None:
    body = HEAD + f"m = {move} y = DequantizeLinear(m, {{}}, z)"
    data = {**DATA, "shape": np.array([1, -1])}
    assert places(build(body.format("t"), data), "OQ105") == ["y"] and not find(build(body.format("s"), data), "OQ105")
    assert not find(build(body.format("s"), data), "OQ107")


def test_contrib_operators_and_bodies() -> None:
    add = HEAD + "a = com.microsoft.QLinearAdd(q, s, z, q, {}, z, s, z) p = DequantizeLinear(a, s, z)"
    contrib = ', "com.microsoft" : 1'
    (found,) = find(build(in_branch(add.format("t"), "p"), DATA, imports=contrib), "OQ105")
    assert (found.place.graph, found.place.node) == ("y/then_branch", "a")
    assert not find(build(in_branch(add.format("s"), "p"), DATA, imports=contrib), "OQ105")


@pytest.mark.parametrize("op", ["Add(q, r)", "Mul(q, r)", "Relu(q)", "Sub(q, r)"])
def test_arithmetic(op: str) -> None:
    """Relu of integers with a zero point is none of the numbers; each node is named once."""
    body = HEAD + f"r = QuantizeLinear(x, t, k) a = {op} y = DequantizeLinear(a, s, z)"
    (found,) = find(build(body, DATA, opset=21), "OQ107")
    assert found.place.node == "a" and "'q'" in found.message and ("'r'" in found.message) is ("r" in op[4:])


def test_what_is_no_arithmetic() -> None:
    signed = {"s": F(0.1), "z": S8(0)}
    assert not find(build(HEAD + "r = Relu(q) y = DequantizeLinear(r, s, z)", signed), "OQ107"), "its zero is 0"
    cast = "f = Cast<to=1>(q) y = Mul(f, s)"
    assert not find(build(HEAD + cast, DATA), "OQ107")
    dynamic = "q, a, b = DynamicQuantizeLinear(x) y = MatMulInteger(q, w, b)"
    assert not find(build(dynamic, {"w": np.ones((6, 2), S8)}, y="int32 y"), "OQ107")
    local = f"{HEAD} a = local.op(q) y = DequantizeLinear(a, s, z)"
    function = '<domain: "local", opset_import: ["" : 21]> op (i) => (o) { o = Identity(i) }'
    assert not find(build(local, DATA, imports=', "local" : 1', functions=function), "OQ107")


def test_joins() -> None:
    body = HEAD + "r = QuantizeLinear(x, {}, {}) j = Concat<axis=1>(q, r) y = DequantizeLinear(j, s, z)"
    assert not find(build(body.format("s", "z"), DATA), "OQ108")
    model = build(body.format("t", "z"), DATA)
    assert places(model, "OQ108") == ["j"]
    assert numbers(model, "OQ108") == {"values": [F(0.1).item(), F(0.2).item()]}
    assert numbers(build(body.format("s", "k"), DATA), "OQ108") == {"values": [128, 0]}
    absent = body.replace("x, {}, {}", "x, s")
    assert numbers(build(absent, DATA), "OQ108") == {"values": [128, 0]}, "a zero point that is left out is 0"
    where = HEAD + "r = QuantizeLinear(x, t, z) c = Cast<to=9>(x) j = Where(c, q, r) y = DequantizeLinear(j, s, z)"
    assert places(build(where, DATA), "OQ108") == ["j"]


def test_the_harm() -> None:
    """The second half of a Concat comes out half as large."""
    model = build(HEAD + "r = QuantizeLinear(x, t, z) j = Concat<axis=1>(q, r) y = DequantizeLinear(j, s, z)", DATA,
                  x="float[1,2] x", y="float[1,4] y")  # fmt: skip
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.full((1, 2), 4, "f")})
    np.testing.assert_allclose(y, [[4, 4, 2, 2]], rtol=1e-5)
