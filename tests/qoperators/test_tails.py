"""What counts as the scales behind an integer product, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.qoperators.graphs import Agree, agreement, draw, model, scales

HEAD = "q, s, z = DynamicQuantizeLinear(x) acc = MatMulInteger(q, b, z)"


@pytest.fixture
def agree(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> Agree:
    return agreement(run_passes, run_model)


def given(rank: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 6, 32)[3 - rank :]).astype(np.float32)}
    return feeds, {"b": draw(rng, (32, 5), np.int8), "sw": scales(rng, 5), "k": np.float32(0.25)}


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        ("f = Cast<to=1>(acc) p = Mul(s, sw) m = Mul(f, p) y = Mul(m, k)", ["Mul"]),  # a factor of its own
        ("f = Cast<to=1>(acc) m = Mul(f, s) n = Mul(m, sw) y = Relu(n)", ["Relu"]),
        ("f = Cast<to=1>(acc) m = Mul(f, s) y = Relu(m)", ["Relu"]),  # the weight has scale 1
        ("f = Cast<to=1>(acc) p = Mul(s, sw) r = Mul(p, k) y = Mul(f, r)", ["Cast", "Cast", "Mul", "Mul", "Mul"]),
        ("f = Cast<to=1>(acc) t = Sqrt(s) p = Mul(t, sw) y = Mul(f, p)", ["Cast", "Cast", "Mul", "Mul", "Sqrt"]),
        ("f = Cast<to=11>(acc) g = Cast<to=1>(f) p = Mul(s, sw) y = Mul(g, p)", ["Cast", "Cast", "Cast", "Mul", "Mul"]),
    ],
)
def test_scales(agree: Agree, tail: str, left: list[str]) -> None:
    feeds, constants = given()
    made = agree(model(f"{HEAD} {tail}", feeds, constants, "float32", 2), feeds)
    pairs = ["DequantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMul"]
    assert sorted(made.ops()) == sorted([*pairs, *left])


def test_another_reader_of_the_sums(agree: Agree) -> None:
    feeds, constants = given()
    tail = "f = Cast<to=1>(acc) p = Mul(s, sw) m = Mul(f, p) g = Cast<to=1>(acc) y = Add(m, g)"
    assert agree(model(f"{HEAD} {tail}", feeds, constants, "float32", 2), feeds).ops().count("Cast") == 3


def test_one_factor_a_row_is_no_scale(agree: Agree) -> None:
    feeds, constants = given()
    constants["sw"] = np.arange(1, 7, dtype=np.float32).reshape(6, 1)
    tail = "f = Cast<to=1>(acc) p = Mul(s, sw) y = Mul(f, p)"
    assert agree(model(f"{HEAD} {tail}", feeds, constants, "float32", 2), feeds).ops().count("Cast") == 2


def test_constants_stored_in_nodes(agree: Agree) -> None:
    feeds, constants = given()
    tail = "f = Cast<to=1>(acc) c = Constant<value_floats=[0.1,0.2,0.3,0.4,0.5]>() p = Mul(s, c) y = Mul(f, p)"
    made = agree(model(f"{HEAD} {tail}", feeds, constants, "float32", 2), feeds)
    assert sorted(made.ops()) == ["DequantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMul"]


@pytest.mark.parametrize("tail", ["p = Mul(sx, sw) y = Mul(f, p)", "m = Mul(f, sx) y = Mul(m, sw)", "y = Mul(f, sw)"])
@pytest.mark.parametrize("fed", [False, True])
def test_static_inputs(agree: Agree, tail: str, fed: bool) -> None:
    feeds, constants = given()
    feeds = {"x": draw(np.random.default_rng(1), (6, 32), np.uint8)}
    constants |= {"sx": np.float32(0.02), "z": np.uint8(117)}
    if fed:
        feeds["sx"] = np.asarray(constants.pop("sx"))
    before = model(f"acc = MatMulInteger(x, b, z) f = Cast<to=1>(acc) {tail}", feeds, constants, "float32", 2)
    made = agree(before, feeds)
    assert sorted(made.ops()) == ["DequantizeLinear", "DequantizeLinear", "MatMul"]
    weight = next(n for n in made.proto.graph.node if n.input[0] == "b")
    assert weight.input[1] == "sw"


def test_moved_integers_keep_their_scale(agree: Agree) -> None:
    feeds, constants = given()
    feeds["x"] = np.ascontiguousarray(feeds["x"].T)
    head = "q, s, z = DynamicQuantizeLinear(x) t = Transpose(q) acc = MatMulInteger(t, b, z)"
    tail = "f = Cast<to=1>(acc) p = Mul(s, sw) y = Mul(f, p)"
    made = agree(model(f"{head} {tail}", feeds, constants, "float32", 2), feeds)
    assert "Cast" not in made.ops() and made.ops().count("Transpose") == 1


def test_a_product_with_itself(agree: Agree) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 6)).astype(np.float32)}
    text = """q, s, z = DynamicQuantizeLinear(x) acc = MatMulInteger(q, q, z, z) f = Cast<to=1>(acc)
    p = Mul(s, s) y = Mul(f, p)"""
    made = agree(model(text, feeds, {}, "float32", 2), feeds)
    assert sorted(made.ops()) == ["DequantizeLinear", "DynamicQuantizeLinear", "MatMul"]
