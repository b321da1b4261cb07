"""What TensorRT's importer does not take."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.rules.graphs import array, found, model, places

TARGET = "tensorrt"


def net(body: str, inputs: str = "float[4, 16] x", **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => (float[A, B] y) {{ {body} }}", **{"z": np.int8(0), "w": array(16, 8), **more})


def test_scales_that_are_computed() -> None:
    body = "t = Abs(v) q = QuantizeLinear(x, t, z) y = DequantizeLinear(q, s, z)"
    assert places(net(body, "float[4, 16] x, float v"), "OQ631", TARGET) == ["q"]
    assert not found(net("q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"), "OQ631", TARGET)


def test_operators_that_are_not_imported() -> None:
    text = "i = QuantizeLinear(x, s, z) o = QLinearMatMul(i, s, z, w, s, z, s2, z) y = DequantizeLinear(o, s2, z)"
    (one,) = found(net(text), "OQ632", TARGET)
    assert (one.place.value, one.fix) == ("o", "qoperator-to-qdq")
    dynamic = "i, j, k = DynamicQuantizeLinear(x) y = DequantizeLinear(i, j, k)"
    (one,) = found(net(dynamic), "OQ632", TARGET)
    assert (one.place.value, one.fix) == ("i", "")
    contrib = "t = com.microsoft.MatMulIntegerToFloat(i, w, s, s2) y = com.microsoft.Gelu(t)"
    (one,) = found(net(contrib, "int8[4, 16] i"), "OQ632", TARGET)
    assert (one.place.value, one.fix) == ("t", "qoperator-to-qdq") and "com.microsoft" in one.message
    lookup = "y = com.microsoft.QMoE<k = 1>(x, r, w, s, b, w, s)"
    (one,) = found(net(lookup, r=np.ones((4, 8), np.float32), b=np.ones(8, np.float32)), "OQ632", TARGET)
    assert (one.place.value, one.fix) == ("y", "")


def test_contrib_pairs_are_imported_as_those_of_onnx() -> None:
    pair = "q = com.microsoft.QuantizeLinear(x, s, z) y = com.microsoft.DequantizeLinear(q, s, z)"
    assert not found(net(pair), "OQ632", TARGET)
    assert places(net(pair, z=np.uint8(0)), "OQ606", TARGET) == ["q"]  # what it looks at is the type


def test_operators_in_a_branch_and_in_a_function() -> None:
    dynamic = "i, j, k = DynamicQuantizeLinear(x) o = DequantizeLinear(i, j, k)"
    branch = f"y = If(c) <then_branch = t () => (float[4, 16] o) {{ {dynamic} }}, "
    branch += "else_branch = e () => (float[4, 16] g) { g = Tanh(x) }>"
    assert places(net(branch, "float[4, 16] x, bool c"), "OQ632", TARGET) == ["y/then_branch/i"]
    function = f'<domain: "l", opset_import: ["": 21]> f (x) => (o) {{ {dynamic} }}'
    proto = model("(float[4, 16] x) => (float[A, B] y) { y = l.f(x) }", functions=function)
    assert places(proto, "OQ632", TARGET) == ["l::f/i"]


@pytest.mark.parametrize(
    ("shape", "body", "scale", "fires"),
    [
        ((3, 5), "d = DequantizeLinear(w, s) y = MatMul(x, d)", (), True),
        ((3, 6), "d = DequantizeLinear(w, s) y = MatMul(x, d)", (), False),
        ((3, 6), "d = DequantizeLinear<axis = 0, block_size = 2>(w, s) y = MatMul(x, d)", (2, 6), True),
        ((4, 6), "d = DequantizeLinear<axis = 0, block_size = 2>(w, s) y = MatMul(x, d)", (2, 6), False),
    ],
)
def test_numbers_of_four_bit_values(shape: tuple[int, int], body: str, scale: tuple[int, ...], fires: bool) -> None:
    weight = array(*shape, low=-8, high=8).astype(ml_dtypes.int4)
    proto = net(body, f"float[4, {shape[0]}] x", w=weight, s=np.ones(scale, np.float32))
    assert places(proto, "OQ633", TARGET) == (["d"] if fires else [])
    assert not found(proto, "OQ633", None)
