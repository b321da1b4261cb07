"""What the opset has, and what the runtime has of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxq.diagnostics import Severity
from tests.rules.graphs import array, found, loads, model, places, session

ROUND = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
X, Y = "float[4, 16] x", "float[A, B] y"


def net(body: str, inputs: str = X, outputs: str = Y, **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => ({outputs}) {{ {body} }}", **more)


@pytest.mark.parametrize(
    ("zero", "opset", "needs"),
    [
        (np.int16(0), 19, 21),
        (np.uint16(0), 13, 21),
        (np.zeros((), ml_dtypes.int4), 19, 21),
        (np.zeros((), ml_dtypes.float8_e4m3fn), 18, 19),
        (np.zeros((), ml_dtypes.uint2), 21, 25),
        (np.int16(0), 21, 0),
        (np.uint8(0), 10, 0),
        (np.zeros((), ml_dtypes.float8_e5m2), 19, 0),
    ],
)
def test_types_of_pairs(zero: Any, opset: int, needs: int) -> None:
    proto = net(ROUND, z=zero, opset=opset)
    rows = found(proto, "OQ601")
    assert [d.place.value for d in rows] == (["q", "y"] if needs else [])
    assert all(d.numbers == {"opset": opset, "needs": needs} and d.fix == "upgrade-opset" for d in rows)
    if needs:
        with pytest.raises(Exception, match="Type"):
            session(proto)
    else:
        assert loads(proto)


def test_a_type_by_attribute() -> None:
    proto = net("q = QuantizeLinear<output_dtype = 5>(x, s) y = DequantizeLinear(q, s)", opset=19)
    assert "q" in places(proto, "OQ601")


def test_types_of_other_operators() -> None:
    four = array(8, 16, low=-8, high=8).astype(ml_dtypes.int4)
    gather = model("(int64[4] i) => (float[4, 16] y) { g = Gather(w, i) y = DequantizeLinear(g, s) }", w=four)
    (one,) = found(gather, "OQ601")
    assert (one.place.value, one.fix) == ("g", "") and "nor does any later" in str(one)
    turned = "t = Transpose(w) d = DequantizeLinear(t, s) y = MatMul(x, d)"
    assert places(net(turned, w=four, opset=19), "OQ601") == ["d", "t"]
    assert not found(net(turned, w=four), "OQ601")


def test_in_bodies_and_functions() -> None:
    body = "q = QuantizeLinear(x, s, z16) o = DequantizeLinear(q, s, z16)"
    branch = net(
        f"y = If(c) <then_branch = t () => (float[4, 16] o) {{ {body} }}, "
        "else_branch = e () => (float[4, 16] k) { k = Relu(x) }>",
        f"{X}, bool c",
        opset=19,
    )
    assert places(branch, "OQ601") == ["y/then_branch/q", "y/then_branch/o"]
    constants = "s = Constant<value = float {0.1}>() z = Constant<value = int16 {0}>() "
    function = model(
        f"({X}) => ({Y}) {{ y = l.f(x) }}",
        functions=f'<domain: "l", opset_import: ["": 19]> f (x) => (y) {{ {constants} {ROUND} }}',
    )
    assert places(function, "OQ601") == ["l::f/q", "l::f/y"]


@pytest.mark.parametrize(("target", "opset", "fires"), [("ort-cpu", 28, True), ("ort-cpu", 27, False)])
def test_opset_above_the_runtime(target: str, opset: int, fires: bool, runs_opset: Any) -> None:
    proto = net(ROUND, opset=opset)
    proto.ir_version = 10
    assert places(proto, "OQ603", target) == (["q"] if fires else [])
    assert not found(proto, "OQ603", None) and not found(proto, "OQ603", "onnx")
    if runs_opset(28):
        if fires:
            with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
                session(proto)
        else:
            assert loads(proto)


def test_opset_above_other_targets() -> None:
    assert places(net(ROUND, opset=25), "OQ603", "tensorrt") == ["q"]
    assert not found(net(ROUND, opset=24), "OQ603", "tensorrt")
    assert not found(net("y = Tanh(x)", opset=28), "OQ603")
    assert not found(net(ROUND, opset=28), "OQ603", "ort-training"), "OQ621 tells"


@pytest.mark.parametrize(
    ("zero", "opset", "fires"), [("z", 21, True), ("z16", 21, True), ("z16", 19, False), ("z", 13, True)]
)
def test_pairs_of_onnxruntime(zero: str, opset: int, fires: bool) -> None:
    body = ROUND.replace("= Quantize", "= com.microsoft.Quantize").replace("z)", f"{zero})")
    proto = net(body.replace("= Dequantize", "= com.microsoft.Dequantize"), opset=opset)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert places(proto, "OQ604") == (["q", "y"] if fires else [])


def test_operators_on_integers() -> None:
    body = "i = QuantizeLinear(x, s, z) o = QLinearMatMul(i, s, z, w, s, z8, s2, z) y = DequantizeLinear(o, s2, z)"
    proto = net(body, w=array(16, 8))
    for target, severity in ((None, Severity.INFO), ("ort-cpu", Severity.INFO), ("qnn", Severity.WARNING)):
        (one,) = found(proto, "OQ605", target)
        assert (one.severity, one.place.value, one.fix) == (severity, "o", "qoperator-to-qdq")
    assert not found(net(ROUND), "OQ605")
