"""verify: sessions that do not load, do not run, or compute something else than the file says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

import onnxq
from onnxq.cli.app import app
from onnxq.errors import DataError

LENET = Path("models/lenet/lenet.onnx")
RNG = np.random.default_rng(0)


def model(body: str, constants: dict[str, np.ndarray], ports: str) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {ports} {{ {body} }}')
    for node in proto.graph.node:
        node.name = node.output[0]
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return proto


def square_gemm(axis: int) -> onnx.ModelProto:
    """A square weight whose scales lie along ``axis``; Gemm without transB has its output channels on 1."""
    body = f"""i = QuantizeLinear(x, s, z) d = DequantizeLinear(i, s, z) w = DequantizeLinear<axis={axis}>(q, ws, wz)
    c = Gemm(d, w) o = QuantizeLinear(c, ys, z) y = DequantizeLinear(o, ys, z)"""
    constants = {
        "s": np.float32(0.03), "z": np.uint8(128), "ys": np.float32(0.5),
        "q": RNG.integers(-127, 128, (16, 16), np.int8), "wz": np.zeros(16, np.int8),
        "ws": np.geomspace(0.001, 0.1, 16, dtype=np.float32),
    }  # fmt: skip
    return model(body, constants, "(float[4,16] x) => (float[4,16] y)")


def int8_reshape() -> onnx.ModelProto:
    """int8 activations in front of Reshape and MatMul, which onnxruntime's default session does not load."""
    body = """i = QuantizeLinear(x, s, z) d = DequantizeLinear(i, s, z) r = Reshape(d, shape)
    w = DequantizeLinear(q, ws, z) c = MatMul(r, w) o = QuantizeLinear(c, s, z) y = DequantizeLinear(o, s, z)"""
    constants = {
        "s": np.float32(0.1), "z": np.int8(0), "ws": np.float32(0.01), "shape": np.array([2, 8]),
        "q": RNG.integers(-127, 128, (8, 4), np.int8),
    }  # fmt: skip
    return model(body, constants, "(float[2,2,4] x) => (float[2,4] y)")


def test_a_sound_model_is_clean() -> None:
    found = onnxq.verify(LENET)
    assert found.clean and found.sessions == ["default", "true", "basic"] and found.samples == 4
    assert found.data.startswith("random")
    assert onnxq.verify(square_gemm(1)).clean


def test_an_axis_that_fusion_ignores_is_a_disagreement() -> None:
    found = onnxq.verify(square_gemm(0))
    assert {(d.output, d.session) for d in found.disagreements} == {("y", "default")}
    (wrong,) = found.disagreements
    assert wrong.agreement.sqnr_db is not None and wrong.agreement.sqnr_db < 5
    assert [c.nodes for c in wrong.causes] == [("c",)]
    assert not found.failures


def test_a_session_that_does_not_load_is_a_failure_and_the_others_go_on() -> None:
    found = onnxq.verify(int8_reshape())
    assert [(f.session, f.stage) for f in found.failures] == [("default", "load")]
    assert "output_dtype" in found.failures[0].reason
    assert found.sessions == ["true", "basic"] and found.samples == 4 and not found.disagreements


def test_a_session_that_stops_when_it_runs_is_a_failure() -> None:
    body, bad = "w = DequantizeLinear<axis=0>(q, ws) y = MatMul(x, w)", np.ones(3, np.float32)
    found = onnxq.verify(model(body, {"q": np.ones((4, 4), np.int8), "ws": bad}, "(float[2,4] x) => (float[2,4] y)"),
                         [{"x": np.ones((2, 4), np.float32)}])  # fmt: skip
    assert {f.stage for f in found.failures if f.session == "true"} <= {"run", "load"}
    assert not found.clean and "true" not in found.sessions


def test_generated_samples_that_nothing_can_run_ask_for_real_ones() -> None:
    proto = model("y = Reshape(x, shape)", {"shape": np.array([7, -1])}, "(float[N] x) => (float[7,M] y)")
    with pytest.raises(DataError, match="give real ones with --data"):
        onnxq.verify(proto)
    assert onnxq.verify(proto, [{"x": np.ones(14, np.float32)}]).clean


def test_the_command_tells_and_exits_with_one(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(int8_reshape(), path)
    result = CliRunner().invoke(app, ["verify", str(path)])
    assert result.exit_code == 1 and "default does not load" in result.stdout
    result = CliRunner().invoke(app, ["verify", str(path), "--format", "json"])
    assert json.loads(result.stdout)["failures"][0]["session"] == "default"
    assert CliRunner().invoke(app, ["verify", str(LENET)]).exit_code == 0
