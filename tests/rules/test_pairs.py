"""OQ101–OQ106, OQ109: a QuantizeLinear and the DequantizeLinear behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxq.diagnostics import Severity
from tests.rules.lab import build, find, in_branch, numbers, places

F, U8, S8 = np.float32, np.uint8, np.int8
PAIR = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, t, k)"
SAME: dict[str, Any] = {"s": F(0.5), "z": U8(3), "t": F(0.5), "k": U8(3)}


def test_equal_parameters_are_a_pair_however_they_are_stored() -> None:
    assert not find(build(PAIR, SAME), "OQ101")
    assert not find(build(PAIR, {**SAME, "t": np.full(1, 0.5, "f"), "k": np.full(1, 3, U8)}), "OQ101")
    assert not find(build("q = QuantizeLinear(x, s) y = DequantizeLinear(q, s, k)", {"s": F(1), "k": U8(0)}), "OQ101")


def test_scale_and_zero_point() -> None:
    model = build(PAIR, {**SAME, "t": F(0.75), "k": U8(4)})
    found = find(model, "OQ101")
    assert [d.place.node for d in found] == ["y", "y"] and {d.fix for d in found} == {"repair-pairs"}
    assert [d.numbers for d in found] == [{"quantize": 0.5, "dequantize": 0.75}, {"quantize": 3, "dequantize": 4}]
    assert all(d.severity is Severity.ERROR for d in found) and "'q' (QuantizeLinear)" in found[0].message


def test_channels_axes_and_blocks() -> None:
    row = np.arange(1, 5, dtype="f")
    other = np.where(row == 3, F(9), row)
    pair = "q = QuantizeLinear<axis=1>(x, s) y = DequantizeLinear<axis={}>(q, t)"
    assert numbers(build(pair.format(1), {"s": row, "t": other}), "OQ101") == {
        "quantize": 3.0, "dequantize": 9.0, "channel": 2,
    }  # fmt: skip
    assert not find(build(pair.format(-3), {"s": row, "t": row}), "OQ101")
    assert numbers(build(pair.format(2), {"s": row, "t": row}), "OQ101") == {"quantize": 1, "dequantize": 2}
    scales = np.ones((1, 2, 6, 6), "f")
    block = "q = QuantizeLinear<block_size=2>(x, s) y = DequantizeLinear<block_size={}>(q, s)"
    assert not find(build(block.format(2), {"s": scales}), "OQ101")
    assert numbers(build(block.format(3), {"s": scales}), "OQ101") == {"quantize": 2, "dequantize": 3}
    fewer = build("q = QuantizeLinear(x, s) y = DequantizeLinear(q, t)", {"s": row, "t": row[:3]})
    assert numbers(fewer, "OQ101") == {"quantize": 4, "dequantize": 3}


def test_the_last_digits_of_a_scale_are_a_warning() -> None:
    (found,) = find(build(PAIR, {**SAME, "t": np.nextafter(F(0.5), F(1))}), "OQ101")
    assert found.severity is Severity.WARNING
    half = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, t)"
    assert not find(build(half, {"s": F(0.1), "t": np.float16(0.1)}, opset=23), "OQ101")


def test_parameters_that_nobody_knows_are_not_compared() -> None:
    computed = "m = ReduceMax<keepdims=0>(x) q = QuantizeLinear(x, m) y = DequantizeLinear(q, t)"
    assert not find(build(computed, {"t": F(1)}), "OQ101")


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_in_bodies_functions_and_the_other_domain(domain: str) -> None:
    pair = PAIR.replace("Q", f"{domain}Q").replace("Deq", f"{domain}Deq")
    contrib = ', "com.microsoft" : 1'
    data = {**SAME, "k": U8(4)}
    inner = build(in_branch(pair.replace("y =", "p ="), "p"), data, imports=contrib)
    (found,) = find(inner, "OQ101")
    assert (found.place.graph, found.place.node) == ("y/then_branch", "p")
    function = f"""<domain: "local", opset_import: ["" : 21{contrib}]> pair (x) => (y)
      {{ s = Constant<value_float=1.0>() t = Constant<value_float=2.0>()
         {pair.replace(", z", "").replace(", k", "")} }}"""
    model = build("y = local.pair(x)", imports=f', "local" : 1{contrib}', functions=function)
    (found,) = find(model, "OQ101")
    assert (found.place.graph, found.place.node) == ("local::pair", "y")


def test_the_harm() -> None:
    """Values come out half as large again, and onnxruntime says nothing."""
    model = build(PAIR, {**SAME, "t": F(0.75)}, y="float[1,4,6,6] y")
    x = np.full((1, 4, 6, 6), 2, "f")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert (session.run(None, {"x": x})[0] == 3).all()
    onnx.checker.check_model(model, full_check=True)


def test_types() -> None:
    model = build(PAIR, {**SAME, "k": S8(3)})
    (found,) = find(model, "OQ102")
    assert found.place.node == "y" and "is int8" in found.message and "writes uint8" in found.message
    assert not find(build(PAIR, SAME), "OQ102")
    default = build("q = QuantizeLinear(x, s) y = DequantizeLinear(q, s, k)", {"s": F(1), "k": S8(0)})
    assert places(default, "OQ102") == ["y"], "without a zero point it writes uint8"
    asked = build("q = QuantizeLinear<output_dtype=3>(x, s) y = DequantizeLinear(q, s, k)", {"s": F(1), "k": S8(0)})
    assert not find(asked, "OQ102")


def test_orphans() -> None:
    bypass = build("r = Relu(x) q = QuantizeLinear(r, s) y = Neg(r)", {"s": F(1)})
    (found,) = find(bypass, "OQ103")
    assert found.place.node == "q" and "'y' reads the value it was made for" in found.message
    given = build("y = Relu(x) q = QuantizeLinear(y, s)", {"s": F(1)})
    assert "is a graph output" in find(given, "OQ103")[0].message
    assert not find(build(PAIR, SAME), "OQ103")


def test_several_readers() -> None:
    two = "q = QuantizeLinear(x, s) a = DequantizeLinear(q, s) b = DequantizeLinear(q, s) y = Add(a, b)"
    (found,) = find(build(two, {"s": F(1)}), "OQ104")
    assert (found.place.node, found.numbers, found.severity) == ("q", {"readers": 2}, Severity.INFO)
    assert not find(build("q = QuantizeLinear(x, s) a = DequantizeLinear(q, s) y = Add(a, a)", {"s": F(1)}), "OQ104")


DOUBLE = """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
  r = QuantizeLinear(d, t, {}) y = DequantizeLinear(r, t, {})"""


def test_double_pairs() -> None:
    data = {"s": F(0.5), "z": U8(3), "t": F(0.25), "k": S8(0)}
    model = build(DOUBLE.format("z", "z"), data)
    assert places(model, "OQ106") == ["r"] and numbers(model, "OQ106") == {"scale before": 0.5, "scale": 0.25}
    assert not find(build(DOUBLE.format("z", "z"), {**data, "t": F(0.5)}), "OQ106"), "twice the same pair"
    assert not find(build(DOUBLE.format("k", "k"), data), "OQ106"), "a bridge to another type"
    given = build("d = DequantizeLinear(x, s) r = QuantizeLinear(d, t) y = DequantizeLinear(r, t)",
                  {"s": F(1), "t": F(2)}, x="uint8[4] x")  # fmt: skip
    assert not find(given, "OQ106"), "integers from outside get the scale that is wanted here"


def test_integers_as_outputs() -> None:
    model = build("q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)", {"s": F(1)}, y="uint8 q, float y")
    assert places(model, "OQ109") == ["q"]
    assert not find(build(PAIR, SAME), "OQ109")
