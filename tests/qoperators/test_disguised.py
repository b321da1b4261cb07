"""Integer weights hidden as Cast, Sub, Mul and Div: found, and only where they are a DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from tests.passes.conftest import _run_model, _run_passes

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,4] y)
  <{kind}[3,4] q = {{1,2,3,4,5,6,7,8,9,10,11,12}}, float one = {{0.5}}, float[1] single = {{0.25}}, float zero = {{3}},
   float[4] last = {{0.5,1,2,4}}, float[1,4] row = {{0.5,1,2,4}}, float[3,1] column = {{1,2,4}}, float half = {{0.5}},
   float[1,4] zeros = {{1,2,3,4}}, uint8[4] stored = {{1,2,3,4}}, float[3,4] each = {{1,2,3,4,5,6,7,8,9,10,11,12}}> {{
  f = Cast<to=1>(q) {body} y = MatMul(x, w) }}"""

FOUND = [
    ("w = Mul(f, one)", None),
    ("w = Mul(single, f)", None),
    ("w = Mul(f, last)", 1),
    ("w = Mul(f, row)", 1),
    ("w = Mul(f, column)", 0),
    ("w = Div(f, row)", 1),
    ("d = Sub(f, zero) w = Mul(d, one)", None),
    ("d = Sub(f, zero) w = Mul(d, column)", 0),
    ("d = Sub(f, zeros) w = Mul(d, row)", 1),
    ("d = Sub(f, zeros) w = Div(d, one)", 1),
    ("z = Cast<to=1>(stored) d = Sub(f, z) w = Mul(d, row)", 1),
]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(("body", "axis"), FOUND)
def test_found(
    body: str, axis: int | None, kind: str, run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]
) -> None:
    before = onnx.parser.parse_model(TEXT.format(body=body, kind=kind))
    made = run_passes(before, QoperatorToQdq())
    onnx.checker.check_model(made.proto, full_check=True)
    assert made.ops() == ["DequantizeLinear", "MatMul"]
    assert [a.i for a in made.node("DequantizeLinear").attribute] == ([] if axis is None else [axis])
    feeds = {"x": np.float32([[1, 2, 3], [-1, 0, 2]])}
    np.testing.assert_array_equal(run_model(made.proto, feeds, true=True)[0], run_model(before, feeds)[0])


def test_int32(run_passes: Callable[..., Any]) -> None:
    assert (
        run_passes(TEXT.format(body="w = Mul(f, one)", kind="int32"), QoperatorToQdq()).ops()[0] == "DequantizeLinear"
    )


OTHERS = [
    "w = Mul(f, each)",
    "w = Mul(f, x4)",
    "d = Sub(f, half) w = Mul(d, one)",
    "d = Sub(f, zeros) w = Mul(d, column)",
    "w = Div(one, f)",
    "n = Neg(one) m = Constant<value = float {-1.0}>() w = Mul(f, m)",
    "d = Sub(one, f) w = Mul(d, one)",
]


@pytest.mark.parametrize("body", OTHERS)
def test_not_one(body: str, run_passes: Callable[..., Any]) -> None:
    """Scales along both axes, computed or negative ones, odd zero points: left alone, without a note."""
    text = TEXT.format(body=body.replace("x4", "t"), kind="uint8")
    if "x4" in body:
        text = text.replace("f = Cast", "t = ReduceMax(x) f = Cast")
    made = run_passes(text, QoperatorToQdq())
    assert not made.changed and not made.ctx.report.notes


def test_one_weight_with_two_scales(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """Each gets integers of its own, so that either can be trained; an output keeps its name."""
    body = "w = Mul(f, one) v = Mul(f, row) u = Identity(v)"
    before = onnx.parser.parse_model(TEXT.format(body=body, kind="int8"))
    before.graph.output.append(onnx.helper.make_tensor_value_info("v", 1, [3, 4]))
    made = run_passes(before, QoperatorToQdq())
    first, second = (n for n in made.proto.graph.node if n.op_type == "DequantizeLinear")
    assert first.input[0] != second.input[0] and "weight-copied" in made.codes()
    feeds = {"x": np.ones((2, 3), np.float32)}
    for a, b in zip(run_model(before, feeds), run_model(made.proto, feeds, true=True), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**16), st.booleans(), st.sampled_from(["Mul", "Div"]), st.sampled_from([None, 0, 1]))
def test_any_numbers(seed: int, zero: bool, op: str, axis: int | None) -> None:
    """The same floats to the last bit with Mul, within two roundings with Div."""
    rng = np.random.default_rng(seed)
    shape = {None: (), 0: (5, 1), 1: (1, 7)}[axis]
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[5,7] x) => (float[5,7] y) { f = Cast<to=1>(q) '
    text += f"{'d = Sub(f, z)' if zero else 'd = Identity(f)'} w = {op}({'d' if zero else 'f'}, s) y = Add(x, w) }}"
    before = onnx.parser.parse_model(text)
    constants: dict[str, Any] = {"q": rng.integers(-128, 128, (5, 7)).astype(np.int8)}
    constants["s"] = np.exp2(rng.uniform(-20, 20, shape)).astype(np.float32)
    constants["z"] = rng.integers(-128, 128, shape).astype(np.float32)
    for name, array in constants.items():
        before.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    made = _run_passes(before, QoperatorToQdq())
    assert "DequantizeLinear" in made.ops()
    feeds = {"x": np.zeros((5, 7), np.float32)}
    a, b = (_run_model(p, feeds, true=True)[0] for p in (before, made.proto))
    np.testing.assert_allclose(a, b, rtol=0 if op == "Mul" else 3e-7)
