"""OQ204–OQ208, OQ211, OQ213: types and shapes of parameters, and zero points as numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.rules.lab import build, find, in_branch, numbers, places

F, U8, S8 = np.float32, np.uint8, np.int8
BF16 = ml_dtypes.bfloat16
PAIR = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
WEIGHT = "y = DequantizeLinear<axis=0>(w, s, z)"


@pytest.mark.parametrize(
    ("scale", "opset", "x", "nodes"),
    [
        (F(1), 13, "float", []), (np.float16(1), 13, "float", ["q", "y"]), (F(1), 13, "float16", ["q"]),
        (np.float16(1), 19, "float16", []), (np.float16(1), 21, "float", ["q"]), (np.float16(1), 23, "float", []),
        (np.array(1, BF16), 21, "bfloat16", []), (np.float64(1), 21, "float", ["q", "y"]),
        (np.array(1, ml_dtypes.float8_e8m0fnu), 23, "float", ["q", "y"]),
        (np.array(1, ml_dtypes.float8_e8m0fnu), 24, "float", []), (F(1), 21, "int32", []),
    ],
)  # fmt: skip
def test_scale_types(scale: Any, opset: int, x: str, nodes: list[str]) -> None:
    pair = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)"
    assert places(build(pair, {"s": scale}, opset=opset, x=f"{x}[4] x", ir=12), "OQ204") == nodes


def test_scale_types_in_functions() -> None:
    """What goes into a function is known from its calls."""
    function = """<domain: "local", opset_import: ["" : 21]> pair (x) => (y)
      { s = Constant<value = float16 {1}>() q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"""
    model = build("y = local.pair(x)", imports=', "local" : 1', functions=function)
    assert places(model, "OQ204") == ["q"]


@pytest.mark.parametrize(
    ("scale", "zero", "wrong"),
    [
        ((), (), False), ((4,), (4,), False), ((), (1,), False), ((1,), (), False), ((4,), (), True), ((), (4,), True),
        ((4, 1), (4, 1), True), ((1, 1), (1, 1), False), ((4,), (3,), True),
    ],
)  # fmt: skip
def test_shapes(scale: tuple[int, ...], zero: tuple[int, ...], wrong: bool) -> None:
    data = {"w": np.ones((4, 2), S8), "s": np.ones(scale, "f"), "z": np.zeros(zero, S8)}
    assert places(build(WEIGHT, data), "OQ205") == (["y"] if wrong else [])


def test_shapes_in_blocks_and_unknown_ones() -> None:
    data = {"w": np.ones((4, 2), S8), "s": np.ones((2, 2), "f"), "z": np.zeros((2, 2), S8)}
    assert not find(build("y = DequantizeLinear<axis=0, block_size=2>(w, s, z)", data), "OQ205")
    given = build(WEIGHT, {"w": np.ones((4, 2), S8)}, x="float[n] s, int8[m] z")
    assert not find(given, "OQ205"), "both may be as long as the other"


@pytest.mark.parametrize("where", ["main", "branch"])
def test_zero_point_types(where: str) -> None:
    data: dict[str, Any] = {"w": np.ones((4, 2), S8), "s": F(1), "z": U8(0)}
    body = WEIGHT if where == "main" else in_branch(WEIGHT.replace("y =", "p ="), "p")
    assert places(build(body, data), "OQ206") == ["y" if where == "main" else "p"]
    assert not find(build(body, {**data, "z": S8(0)}), "OQ206")


def test_zero_point_types_of_quantizers() -> None:
    asked = "q = QuantizeLinear<output_dtype=3>(x, s, z) y = DequantizeLinear(q, s, z)"
    assert places(build(asked, {"s": F(1), "z": U8(0)}), "OQ206") == ["q"]
    assert not find(build(asked, {"s": F(1), "z": S8(0)}), "OQ206")
    mixed = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, k)"
    assert not find(build(mixed, {"s": F(1), "z": U8(0), "k": S8(0)}), "OQ206"), "between the two it is OQ102"


def test_mixed_zero_points() -> None:
    data: dict[str, Any] = {"w": np.ones((4, 2), U8), "s": np.ones(4, "f"), "z": np.array([7, 7, 9, 7], U8)}
    assert numbers(build(WEIGHT, data), "OQ207") == {"channels": 4, "least": 7, "greatest": 9}
    assert not find(build(WEIGHT, {**data, "z": np.full(4, 7, U8)}), "OQ207")
    four = {**data, "w": np.ones((4, 2), ml_dtypes.uint4), "z": np.array([7, 7, 9, 7], ml_dtypes.uint4)}
    assert not find(build(WEIGHT, four), "OQ207")


def test_weights_with_a_zero_point() -> None:
    body = "q = QuantizeLinear(x, t) e = DequantizeLinear(q, t) d = DequantizeLinear<axis=0>(w, s, z) y = {}"
    data: dict[str, Any] = {"w": np.ones((4, 4, 1, 1), S8), "s": F(1), "z": S8(-3), "t": F(1)}
    model = build(body.format("Conv(e, d)"), data)
    assert places(model, "OQ208") == ["d"] and numbers(model, "OQ208") == {"zero point": -3}
    assert not find(build(body.format("Conv(e, d)"), {**data, "z": S8(0)}), "OQ208")
    assert not find(build(body.format("Conv(e, d)"), {**data, "w": np.ones((4, 4, 1, 1), U8), "z": U8(3)}), "OQ208")
    assert not find(build(body.format("Mul(e, d)"), data), "OQ208"), "a constant that is no weight"
    assert not find(build(body.format("Conv(x, d)"), data), "OQ208"), "weights alone"
    one = {**data, "s": np.ones(4, "f"), "z": np.array([0, 0, 5, 0], S8)}
    assert numbers(build(body.format("Conv(e, d)"), one), "OQ208") == {"zero point": 5}


def test_zero_points_that_their_type_does_not_hold() -> None:
    def zero(number: int, kind: int = TensorProto.UINT8) -> onnx.TensorProto:
        made = helper.make_tensor("z", kind, [], [0])
        made.int32_data[0] = number
        return made

    assert not find(build(PAIR, {"s": F(1), "z": zero(255)}), "OQ211")
    model = build(PAIR, {"s": F(1), "z": zero(300)})
    assert places(model, "OQ211") == ["q"], "the first that reads it"
    assert numbers(model, "OQ211") == {"stored": 300, "least": 0, "greatest": 255}
    assert numbers(build(PAIR, {"s": F(1), "z": zero(-129, TensorProto.INT8)}), "OQ211")["stored"] == -129


def test_parameters_that_a_caller_gives() -> None:
    pair = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)"
    found = find(build(pair, x="float[4] x, float s"), "OQ213")
    assert [(d.place.node, d.fix) for d in found] == [("q", ""), ("y", "")]
    with_default = build(pair, {"s": F(1)}, x="float[4] x, float s")
    assert {d.fix for d in find(with_default, "OQ213")} == {"freeze-defaults"}
    assert not find(build(pair, {"s": F(1)}), "OQ213")
    function = f'<domain: "local", opset_import: ["" : 21]> pair (x, s) => (y) {{ {pair} }}'
    called = build("y = local.pair(x, s)", {"s": F(1)}, imports=', "local" : 1', functions=function)
    assert not find(called, "OQ213"), "an input of a function is none of the model"
