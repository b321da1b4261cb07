"""QLinearMatMul, MatMulInteger, QGemm, MatMulIntegerToFloat against their Q/DQ forms, both in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from tests.qoperators.graphs import Agree, agreement, draw, model, scales

TYPES = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]
random_models = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def agree(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> Agree:
    return agreement(run_passes, run_model)


def operands(
    seed: int = 0, a_type: Any = np.uint8, b_type: Any = np.int8, per_column: bool = True, rank: int = 2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """a [.., 6, 32] is fed; b [32, 5] and everything else is constant."""
    rng = np.random.default_rng(seed)
    sa, sb = scales(rng, None, 0.02), scales(rng, 5 if per_column else None)
    constants = {
        "sa": sa,
        "za": np.asarray(rng.integers(-9, 9) if a_type == np.int8 else rng.integers(100, 150), a_type),
        "b": draw(rng, (32, 5), b_type),
        "sb": sb,
        "zb": np.full(sb.shape, 128 if b_type == np.uint8 else 0, b_type),
        "sy": np.float32(float(sa) * float(sb.max()) * 800),
        "zy": np.asarray(0 if a_type == np.int8 else 128, a_type),
        "c": rng.integers(-20000, 20000, 5).astype(np.int32),
    }
    return {"a": draw(rng, (2, 3, 6, 32)[4 - rank :], a_type)}, constants


LINEAR = "y = QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)"


@random_models
@given(st.data())
def test_qlinear_matmul(agree: Agree, data: st.DataObject) -> None:
    types, per_column = data.draw(st.sampled_from(TYPES)), data.draw(st.booleans())
    rank = data.draw(st.sampled_from([2, 3, 4]))
    feeds, constants = operands(data.draw(st.integers(0, 99)), *types, per_column, rank)
    made = agree(model(LINEAR, feeds, constants, np.dtype(types[0]).name, rank), feeds, 1, 0.01)
    assert sorted(made.ops()) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    weight = next(n for n in made.proto.graph.node if n.input[0] == "b")
    assert [a.i for a in weight.attribute] == ([1] if per_column else [])


@pytest.mark.parametrize("name", ["sa", "sb"])
def test_one_scale_a_row_or_batch_stays(run_passes: Callable[..., Any], name: str) -> None:
    feeds, constants = operands(per_column=False)
    shape = (6,) if name == "sa" else (2, 1, 5)
    zero = "z" + name[1]
    constants[name], constants[zero] = np.full(shape, 0.1, np.float32), np.full(shape, 0, constants[zero].dtype)
    made = run_passes(model(LINEAR, feeds, constants, "uint8", 2), QoperatorToQdq())
    assert made.ops() == ["QLinearMatMul"] and made.codes() == ["not-raised"] and not made.changed
    assert str(list(shape)) in made.ctx.report.notes[0].message


@random_models
@given(st.data())
def test_qgemm(agree: Agree, data: st.DataObject) -> None:
    types, per_column = data.draw(st.sampled_from(TYPES)), data.draw(st.booleans())
    trans, alpha = data.draw(st.sampled_from([0, 1])), data.draw(st.sampled_from([1.0, 0.5, 1.7]))
    quantized, has_c = data.draw(st.booleans()), data.draw(st.booleans())
    feeds, constants = operands(data.draw(st.integers(0, 99)), *types, per_column)
    if trans:
        constants["b"] = np.ascontiguousarray(constants["b"].T)
    node = f"y = com.microsoft.QGemm<transB={trans}, alpha={alpha}>(a, sa, za, b, sb, zb, {'c' if has_c else ''}"
    node += ", sy, zy)" if quantized else ")"
    if not has_c and not quantized:
        node = node.replace(", )", ")")
    output = np.dtype(types[0]).name if quantized else "float32"
    made = agree(model(node, feeds, constants, output, 2), feeds, 1, 0.02)
    assert [n.domain for n in made.proto.graph.node if n.domain] == []
    if has_c:
        bias = next(n for n in made.proto.graph.node if n.input[0] == "c")
        found = made.initializers()[bias.input[1]]
        np.testing.assert_allclose(found, alpha * constants["sa"] * constants["sb"], rtol=3e-7)
        assert [a.i for a in bias.attribute] == ([0] if per_column else [])


@random_models
@given(st.data())
def test_matmul_integer_to_float(agree: Agree, data: st.DataObject) -> None:
    types, per_column, biased = data.draw(st.sampled_from(TYPES)), data.draw(st.booleans()), data.draw(st.booleans())
    feeds, constants = operands(data.draw(st.integers(0, 99)), *types, per_column, 3)
    constants["bias"] = np.arange(5, dtype=np.float32)
    zeros = data.draw(st.sampled_from([", za, zb", ""]))
    node = f"y = com.microsoft.MatMulIntegerToFloat(a, b, sa, sb{zeros or ', , '}{', bias' if biased else ''})"
    made = agree(model(node, feeds, constants, "float32", 3), feeds)
    assert made.ops().count("MatMul") == 1 and made.ops().count("Add") == biased
    assert all(len(n.input) == 3 for n in made.proto.graph.node if n.op_type == "DequantizeLinear")


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5)])
@pytest.mark.parametrize(
    "tail", ["p = Mul(s, sw) y = Mul(f, p)", "m = Mul(s, f) y = Mul(m, sw)", "m = Mul(f, sw) y = Mul(m, s)"]
)
def test_scales_behind_matmul_integer_move_into_pairs(agree: Agree, shape: tuple[int, ...], tail: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 6, 32)).astype(np.float32)}
    several = 5 in shape
    constants = {"b": draw(rng, (32, 5), np.int8), "sw": scales(rng, 5 if several else None).reshape(shape)}
    constants["zb"] = np.zeros(5 if several else (), np.int8)
    text = f"q, s, z = DynamicQuantizeLinear(x) acc = MatMulInteger(q, b, z, zb) f = Cast<to=1>(acc) {tail}"
    made = agree(model(text, feeds, constants, "float32", 3), feeds)
    assert sorted(made.ops()) == ["DequantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMul"]


def test_int32_bias_behind_matmul_integer(agree: Agree) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 32)).astype(np.float32)}
    constants = {"b": draw(rng, (32, 5), np.int8), "sw": scales(rng, 5), "i": np.arange(5, dtype=np.int32) * 999}
    text = "q, s, z = DynamicQuantizeLinear(x) acc = MatMulInteger(q, b, z) o = Add(i, acc) f = Cast<to=1>(o)"
    made = agree(model(f"{text} p = Mul(s, sw) y = Mul(f, p)", feeds, constants, "float32", 2), feeds)
    assert sorted(made.ops())[:4] == ["Add", *["DequantizeLinear"] * 3] and made.ops()[-1] == "Add"


def test_bias_behind_a_product_of_rank_3_is_widened(agree: Agree) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 6, 32)).astype(np.float32)}
    constants = {"b": draw(rng, (32, 5), np.int8), "sw": scales(rng, 5), "bias": rng.normal(size=5).astype(np.float32)}
    text = "q, s, z = DynamicQuantizeLinear(x) acc = MatMulInteger(q, b, z) f = Cast<to=1>(acc) p = Mul(s, sw)"
    made = agree(model(f"{text} m = Mul(f, p) y = Add(bias, m)", feeds, constants, "float32", 3), feeds)
    assert made.initializers()[made.node("Add").input[0]].shape == (1, 1, 5)


def test_two_activations(agree: Agree) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(2, 6, 32)).astype(np.float32), "v": rng.normal(size=(2, 32, 4)).astype(np.float32)}
    text = """q, s, z = DynamicQuantizeLinear(x) r, t, o = DynamicQuantizeLinear(v)
    acc = MatMulInteger(q, r, z, o) f = Cast<to=1>(acc) p = Mul(t, s) y = Mul(f, p)"""
    made = agree(model(text, feeds, {}, "float32", 3), feeds)
    assert made.ops().count("DequantizeLinear") == 2 and made.ops()[-1] == "MatMul"


@pytest.mark.parametrize("types", TYPES)
def test_sums_without_scales_stay_integers(agree: Agree, types: tuple[Any, Any]) -> None:
    feeds, constants = operands(0, *types, False)
    made = agree(model("y = MatMulInteger(a, b, za, zb)", feeds, constants, "int32", 2), feeds)
    assert made.ops()[-2:] == ["MatMul", "Cast"]


def test_sums_of_two_activations_are_bounded_by_their_length(agree: Agree, run_passes: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    feeds = {"a": draw(rng, (4, 200), np.uint8), "v": draw(rng, (200, 3), np.int8)}
    assert agree(model("y = MatMulInteger(a, v)", feeds, {}, "int32", 2), feeds).ops()[-1] == "Cast"
    feeds = {"a": draw(rng, (4, 600), np.uint8), "v": draw(rng, (600, 3), np.int8)}
    made = run_passes(model("y = MatMulInteger(a, v)", feeds, {}, "int32", 2), QoperatorToQdq())
    assert made.ops() == ["MatMulInteger"] and made.codes() == ["not-raised"]


def test_zero_point_a_row_stays(run_passes: Callable[..., Any]) -> None:
    feeds, constants = operands(per_column=False)
    constants["za"] = np.arange(6, dtype=np.uint8)
    made = run_passes(model("y = MatMulInteger(a, b, za, zb)", feeds, constants, "int32", 2), QoperatorToQdq())
    assert made.ops() == ["MatMulInteger"] and made.codes() == ["not-raised"]
