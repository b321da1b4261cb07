"""What onnxruntime's training build does not take, as findings of the linter."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxq import lint
from onnxq.api import run
from onnxq.diagnostics import Severity
from tests.rules.graphs import array, found, model

TARGET = "ort-training"
ROUND = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"


def net(body: str, inputs: str = "float[4, 16] x", outputs: str = "float[A, B] y", **more: Any) -> onnx.ModelProto:
    proto = model(f"({inputs}) => ({outputs}) {{ {body} }}", **{"opset": 18, **more})
    proto.ir_version = 8
    for tensor in [t for t in proto.graph.initializer if t.name.startswith("z")]:
        values = onnx.numpy_helper.to_array(tensor).ravel().tolist()
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, values))
    return proto


FILTER = np.ones((4, 4, 1, 1), np.float32)
CASES: dict[str, tuple[onnx.ModelProto, str, str]] = {
    "opset": (net(ROUND, opset=19), "OQ621", ""),
    "scales": (
        net(ROUND.replace("Linear(", "Linear<axis = 1>("), s=np.full(16, 0.1, np.float32), z=np.zeros(16, np.uint8)),
        "OQ622",
        "q",
    ),
    "two-readers": (
        net(ROUND + " k = DequantizeLinear(q, s, z)", outputs="float[A, B] y, float[A, B] k"),
        "OQ624",
        "q",
    ),
    "healthy": (net(ROUND), "", ""),
    "integers": (
        net("i, j, k = DynamicQuantizeLinear(x) y = DequantizeLinear(i, j, k)"),
        "OQ625",
        "i",
    ),
    "branch": (
        net(
            "y = If(c) <then_branch = t () => (float[4, 16] o) { q = QuantizeLinear(x, s, z) "
            "o = DequantizeLinear(q, s, z) }, else_branch = e () => (float[4, 16] k) { k = Relu(x) }>",
            "float[4, 16] x, bool c",
        ),
        "OQ626",
        "q",
    ),
    "operator": (net("y = MatMulInteger(x, w)", "uint8[4, 16] x", "int32[A, B] y", w=array(16, 8)), "OQ627", "y"),
    "no-gradient": (
        net(
            "y = ConvTranspose(x, w)", "float[1, 4, 4, 4] x", "float[A, B, C, D] y", w=np.ones((4, 4, 1, 1), np.float32)
        ),
        "OQ628",
        "y",
    ),
    "frozen": (net("w = DequantizeLinear(wq, s, z8) y = MatMul(x, w)", wq=array(16, 8)), "OQ629", "w"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_obstacle_has_a_rule(name: str) -> None:
    proto, code, where = CASES[name]
    rows = [d for d in lint(proto, target=TARGET) if d.code.startswith("OQ62")]
    assert [d.code for d in rows] == ([code] if code else [])
    for one in rows:
        assert where in (one.place.value, "") and one.fix == "to-trainable" and not one.safe
        assert (one.severity is Severity.WARNING) is (code == "OQ629")


def test_raw_zero_points() -> None:
    proto = net(ROUND)
    tensor = next(t for t in proto.graph.initializer if t.name == "z")
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.uint8(100), "z"))
    assert [d.place.value for d in found(proto, "OQ623", TARGET)] == ["q"]


def test_what_to_trainable_writes_is_clean() -> None:
    body = (
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear<axis = 1>(wq, ws, wz) "
        "m = MatMul(d, w) p = QuantizeLinear(m, s2, z) y = DequantizeLinear(p, s2, z)"
    )
    proto = net(body, wq=array(16, 8), ws=np.full(8, 0.01, np.float32), wz=np.zeros(8, np.int8), opset=21)
    assert {d.code for d in lint(proto, target=TARGET, select="OQ62")} >= {"OQ621", "OQ629"}
    assert not lint(run("to-trainable", proto).model, target=TARGET, select="OQ62")
    assert not lint(proto, select="OQ6"), "only for that target"
