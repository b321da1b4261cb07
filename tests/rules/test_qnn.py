"""What onnxruntime's QNN provider does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxq.diagnostics import Severity
from tests.rules.graphs import array, found, model, places

TARGET = "qnn"
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "


def net(body: str, inputs: str = "float[4, 16] x", **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => (float[A, B] y) {{ {body} }}", **{"w": array(16, 8), **more})


@pytest.mark.parametrize(("zero", "fires"), [(np.int8(0), True), (np.int16(0), True), (np.uint8(0), False)])
def test_signed_activations(zero: Any, fires: bool) -> None:
    assert places(net(PAIR + "y = Tanh(d)", z=zero), "OQ641", TARGET) == (["q"] if fires else [])
    weight = "i = QuantizeLinear(f, s, z) v = DequantizeLinear(i, s, z) y = MatMul(x, v)"
    assert not found(net(weight, z=zero, f=np.ones((16, 8), np.float32)), "OQ641", TARGET)


def test_shapes_that_are_not_fixed() -> None:
    (one,) = found(net("y = Tanh(x)", "float[N, 16] x"), "OQ642", TARGET)
    assert one.place.value == "x" and "['N', 16]" in str(one)
    assert not found(net("y = Tanh(x)"), "OQ642", TARGET)


def test_control_flow() -> None:
    body = "y = If(c) <then_branch = t () => (float[4, 16] o) { o = Tanh(x) }, else_branch = e () => (float[4, 16] k) {"
    (one,) = found(net(body + " k = Erf(x) }>", "float[4, 16] x, bool c"), "OQ643", TARGET)
    assert (one.place.value, one.severity) == ("y", Severity.WARNING)

    then = "then_branch = t () => (float[4, 16] o, float[4, 16] p) { o = Tanh(x) p = Erf(x) }"
    two = f"y, u = If(c) <{then}, {then.replace('then', 'else')}>"
    (one,) = found(net(two, "float[4, 16] x, bool c"), "OQ643", TARGET)
    assert (one.place.value, one.severity, one.numbers) == ("y", Severity.ERROR, {"outputs": 2})

    loop = "y = Loop(n, c, x) <body = b (int64 i, bool d, float[4, 16] v) => (bool e, float[4, 16] o) {"
    (one,) = found(net(loop + " e = Identity(d) o = Tanh(v) }>", "float[4, 16] x, int64 n, bool c"), "OQ643", TARGET)
    assert (one.place.value, one.severity) == ("y", Severity.ERROR)
    assert not found(net("y = Tanh(x)"), "OQ643", TARGET)


@pytest.mark.parametrize(
    ("op", "zero", "scale", "fires"),
    [
        ("Sigmoid", np.uint16(0), 2**-16, False),
        ("Sigmoid", np.uint16(0), 1 / 65535, True),
        ("Sigmoid", np.int16(0), 2**-15, False),
        ("Tanh", np.uint16(32768), 2**-15, False),
        ("Tanh", np.uint16(30000), 2**-15, True),
        ("Tanh", np.uint8(128), 1 / 127, False),
    ],
)
def test_outputs_of_sixteen_bits(op: str, zero: Any, scale: float, fires: bool) -> None:
    body = PAIR + f"m = {op}(d) p = QuantizeLinear(m, out, oz) y = DequantizeLinear(p, out, oz)"
    proto = net(body, out=np.float32(scale), oz=zero)
    assert places(proto, "OQ644", TARGET) == (["p"] if fires else [])


@pytest.mark.parametrize(("zero", "fires"), [("z16", True), ("z", False)])
def test_products_of_sixteen_bits(zero: str, fires: bool) -> None:
    body = (
        PAIR.replace("z)", "z16)")
        + f"o = QuantizeLinear(v, s, {zero}) r = DequantizeLinear(o, s, {zero}) y = MatMul(d, r)"
    )
    assert places(net(body, "float[4, 16] x, float[16, 8] v"), "OQ645", TARGET) == (["y"] if fires else [])
