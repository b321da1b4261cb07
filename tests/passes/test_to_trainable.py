"""to-trainable: the same numbers, in the form that onnxruntime's training build takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime import quantization as ortq

from onnxq import border
from onnxq.diagnostics import Severity
from onnxq.errors import OptionError, UnsupportedError
from onnxq.passbase import Context
from onnxq.passes.from_trainable import FromTrainable
from onnxq.passes.to_trainable import ToTrainable
from onnxq.trainable.findings import trainable_findings
from onnxq.trainable.record import KEY
from tests.trainable.layers import OPS, arrays, finished, layer, pair, same_model

CHECKED = {"opset": 18, "ir_version": 10}


def frame(model: onnx.ModelProto) -> dict[str, Any]:
    (text,) = [p.value for p in model.metadata_props if p.key == KEY]
    found: dict[str, Any] = json.loads(text)
    return found


def accepted(model: onnx.ModelProto) -> None:
    """What the training build asks for (measured), read off the message itself."""
    onnx.checker.check_model(model, full_check=True)
    assert 13 <= model.opset_import[0].version <= 18 and model.ir_version <= 10
    tensors = {t.name: t for t in model.graph.initializer}
    zero_points = []
    for q in (n for n in model.graph.node if n.op_type == "QuantizeLinear"):
        behind = [n for n in model.graph.node if q.output[0] in n.input]
        assert [n.op_type for n in behind] == ["DequantizeLinear"]
        assert q.output[0] not in [v.name for v in model.graph.output]
        for node in (q, behind[0]):
            assert node.domain == "" and len(node.input) == 3
            scale, zero = (tensors[name] for name in node.input[1:])
            assert np.prod(scale.dims) == np.prod(zero.dims) == 1
            assert zero.data_type in (TensorProto.INT8, TensorProto.UINT8)
            assert len(zero.int32_data) == 1 and not zero.raw_data
        zero_points.append(q.input[2])
    assert len(set(zero_points)) == len(zero_points)
    model_ = border.open_model(model).model
    assert not [str(d) for d in trainable_findings(model_) if d.severity is Severity.ERROR]


@pytest.mark.parametrize("zero", ["middle", "mixed"])
@pytest.mark.parametrize("op", OPS)
def test_the_same_numbers(op: str, zero: str, run_model: Callable[..., Any]) -> None:
    for weight, per_channel in (("int8", True), ("uint8", True), ("int8", False)):
        model = layer(op, weight, per_channel=per_channel, zero=zero)
        out = ToTrainable().apply(model)
        accepted(out)
        feeds = {"x": np.random.default_rng(1).standard_normal(OPS[op][1]).astype(np.float32)}
        a, b = (run_model(m, feeds, optimised=False)[0] for m in (model, out))
        if op != "ConvTranspose":
            np.testing.assert_array_equal(a, b)
            continue
        # Conv sums in another order, so that a sum in the middle of two steps may go the other way.
        assert "ConvTranspose" not in [n.op_type for n in out.graph.node]
        assert np.abs(a - b).max() < 0.11 and (a != b).mean() < 0.01


def test_form_of_a_per_channel_weight() -> None:
    out = ToTrainable().apply(layer("Conv"))
    maker = {n.output[0]: n for n in out.graph.node}
    conv = next(n for n in out.graph.node if n.op_type == "Conv")
    chain = [maker[conv.input[1]]]
    while chain[-1].input[0] in maker:
        chain.append(maker[chain[-1].input[0]])
    assert [n.op_type for n in chain] == ["Mul", "DequantizeLinear", "QuantizeLinear", "Div"]
    values = arrays(out)
    assert chain[0].input[1] == chain[3].input[1] and values[chain[0].input[1]].shape == (7, 1, 1, 1)
    assert values[chain[1].input[1]] == 1 and values[chain[1].input[2]] == 0
    assert frame(out)["parameters"] == ["w_float", "b_float"] and frame(out)["opset"] == 21
    master = values["w_float"]
    old = arrays(layer("Conv"))
    np.testing.assert_array_equal(master, old["w"].astype(np.float32) * old["sw"].reshape(-1, 1, 1, 1))
    np.testing.assert_array_equal(values["b_float"], (old["b"] * old["sb"].astype(np.float64)).astype(np.float32))


def test_per_tensor_pairs_keep_their_numbers() -> None:
    out = ToTrainable().apply(layer("Gemm", per_channel=False, zero="same"))
    assert not {"Div", "Mul", "Add"} & {n.op_type for n in out.graph.node}
    (q,) = [n for n in out.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "w_float"]
    assert arrays(out)[q.input[1]] == np.float32(0.02) and arrays(out)[q.input[2]] == 3


def test_zero_points_on_disk(tmp_path: Path) -> None:
    crossing = border.open_model(layer("Conv"))
    ToTrainable().run(crossing.model, Context())
    crossing.save(tmp_path / "m.onnx")
    accepted(onnx.load(tmp_path / "m.onnx"))
    again = border.open_model(tmp_path / "m.onnx")
    assert not ToTrainable().run(again.model, Context())
    again.save(tmp_path / "n.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "n.onnx").read_bytes()


@pytest.mark.parametrize("options", [{}, {"weight_bits": 4}, {"opset": 13}])
@pytest.mark.parametrize("op", OPS)
def test_twice_is_once(op: str, options: dict[str, Any], run_passes: Callable[..., Any]) -> None:
    run_passes(layer(op, zero="mixed", opset=21), ToTrainable(**options))


def test_float_model(run_passes: Callable[..., Any]) -> None:
    constants = {"w": np.ones((7, 11), np.float32), "b": np.ones(7, np.float32)}
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", transB=1)
    model = finished([node], constants, [3, 11], [3, 7], 21)
    out = run_passes(model, ToTrainable())
    assert frame(out.proto)["parameters"] == ["w", "b"] and out.proto.opset_import[0].version == 18
    same_model(model, FromTrainable().apply(out.proto))


def test_fake_quantized_model(run_model: Callable[..., Any]) -> None:
    constants = {
        "w": np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32),
        "s": np.linspace(0.01, 0.04, 7, dtype=np.float32),
        "z": np.zeros(7, np.int8),
    }
    nodes = [*pair("w", "s", "z", axis=0), helper.make_node("Gemm", ["x", "w_dq"], ["y"], "gemm", transB=1)]
    model = finished(nodes, constants, [3, 11], [3, 7], 19)
    out = ToTrainable().apply(model)
    accepted(out)
    assert frame(out)["parameters"] == ["w"]
    same_model(model, FromTrainable(form="fake-quant").apply(out))
    feeds = {"x": np.ones((3, 11), np.float32)}
    np.testing.assert_array_equal(*(run_model(m, feeds, optimised=False)[0] for m in (model, out)))


@pytest.mark.parametrize(("bits", "low", "high"), [(7, -64, 63), (4, -8, 7), (2, -2, 1)])
def test_fewer_bits(bits: int, low: int, high: int, run_model: Callable[..., Any]) -> None:
    model = layer("Gemm")
    out = ToTrainable(weight_bits=bits).apply(model)
    accepted(out)
    clipped = onnx.ModelProto()
    clipped.CopyFrom(model)
    for tensor in clipped.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(numpy_helper.from_array(np.clip(arrays(model)["w"], low, high), "w"))
    feeds = {"x": np.random.default_rng(1).standard_normal(OPS["Gemm"][1]).astype(np.float32)}
    np.testing.assert_array_equal(*(run_model(m, feeds, optimised=False)[0] for m in (clipped, out)))


def wide(opset: int = 21) -> onnx.ModelProto:
    """16-bit activations and weights."""
    constants: dict[str, Any] = {
        "sx": np.float32(1e-3), "zx": np.uint16(30000), "z": np.zeros(7, np.int16),
        "w": np.random.default_rng(0).integers(-32768, 32768, (7, 11)).astype(np.int16),
        "s": np.linspace(1e-5, 1e-4, 7, dtype=np.float32),
    }  # fmt: skip
    weight = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["w_dq"], "w_DQ", axis=0)
    nodes = [*pair("x", "sx", "zx"), weight, helper.make_node("Gemm", ["x_dq", "w_dq"], ["y"], "gemm", transB=1)]
    return finished(nodes, constants, [3, 11], [3, 7], opset)


def test_sixteen_bits_stay_float() -> None:
    ctx = Context()
    model = wide()
    out = ToTrainable().apply(model, ctx=ctx)
    accepted(out)
    assert [n.op_type for n in out.graph.node] == ["Identity", "Identity", "Gemm"]
    assert {n.place.node for n in ctx.report.of("trained-in-float")} == {"x_DQ", "w_DQ"}
    assert "16" in ctx.report.of("trained-in-float")[0].message
    same_model(model, FromTrainable().apply(out))


def test_pairs_in_a_body_stay_float(run_model: Callable[..., Any]) -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[3] x, bool c) => (float[3] y)
        <float s = {0.5}, uint8 z = {7}> {
            q = QuantizeLinear(x, s, z)
            y = If(c) <
                then_branch = t () => (float[3] a) {
                    d = DequantizeLinear(q, s, z)
                    p = QuantizeLinear(d, s, z)
                    a = DequantizeLinear(p, s, z)
                },
                else_branch = e () => (float[3] b) { b = Identity(x) }
            >
        }""")
    ctx = Context()
    out = ToTrainable().apply(model, ctx=ctx)
    accepted(out)
    assert [n.op_type for n in out.graph.node] == ["If"]
    assert len(ctx.report.of("trained-in-float")) == 2
    back = FromTrainable().apply(out)
    feeds = {"x": np.array([0.3, 9.9, -8], np.float32), "c": np.array(True)}
    for a, b in zip(*(run_model(m, feeds, optimised=False) for m in (model, back)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [n.op_type for n in back.graph.node] == ["QuantizeLinear", "If"]


def test_inputs_quantized_at_run_time_stay_float(run_model: Callable[..., Any]) -> None:
    constants = {
        "w": np.random.default_rng(0).integers(-128, 128, (11, 7)).astype(np.int8),
        "s": np.linspace(0.01, 0.04, 7, dtype=np.float32),
        "z": np.zeros(7, np.int8),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"], "dynamic"),
        helper.make_node("DequantizeLinear", ["q", "qs", "qz"], ["d"], "x_DQ"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["w_dq"], "w_DQ", axis=1),
        helper.make_node("MatMul", ["d", "w_dq"], ["y"], "matmul"),
    ]
    model = finished(nodes, constants, [3, 11], [3, 7])
    out = ToTrainable().apply(model)
    accepted(out)
    assert "DynamicQuantizeLinear" not in [n.op_type for n in out.graph.node]
    back = FromTrainable().apply(out)
    assert [n.op_type for n in back.graph.node] == [n.op_type for n in model.graph.node]
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 11)).astype(np.float32)}
    np.testing.assert_array_equal(*(run_model(m, feeds, optimised=False)[0] for m in (model, back)))


class Once(ortq.CalibrationDataReader):
    def __init__(self, feeds: dict[str, Any]) -> None:
        self.feeds: dict[str, Any] | None = feeds

    def get_next(self) -> dict[str, Any] | None:
        feeds, self.feeds = self.feeds, None
        return feeds


@pytest.mark.parametrize("per_channel", [True, False])
def test_integer_operators(per_channel: bool, tmp_path: Path, run_model: Callable[..., Any]) -> None:
    """A residual net in QOperator form, as onnxruntime's quantizer writes it."""
    rng = np.random.default_rng(0)
    constants: dict[str, Any] = {f"w{i}": rng.standard_normal((4, 4, 3, 3)).astype(np.float32) * 0.2 for i in (1, 2)}
    constants |= {f"b{i}": rng.standard_normal(4).astype(np.float32) * 0.1 for i in (1, 2)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "one", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w2", "b2"], ["d"], "two", pads=[1] * 4),
        helper.make_node("Add", ["d", "r"], ["y"], "add"),
    ]
    onnx.save(finished(nodes, constants, [1, 4, 5, 5], [1, 4, 5, 5], 13), tmp_path / "f.onnx")
    feeds = {"x": rng.standard_normal((1, 4, 5, 5)).astype(np.float32)}
    ortq.quantize_static(
        tmp_path / "f.onnx", tmp_path / "q.onnx", Once(feeds), ortq.QuantFormat.QOperator, per_channel=per_channel
    )
    model = onnx.load(tmp_path / "q.onnx")
    assert "QLinearConv" in [n.op_type for n in model.graph.node]
    out = ToTrainable().apply(model)
    accepted(out)
    assert len(frame(out)["parameters"]) == 4
    a, b = (run_model(m, feeds, optimised=False)[0] for m in (model, out))
    step = float(np.abs(a).max()) / 100
    np.testing.assert_allclose(a, b, atol=2 * step, rtol=0)
    back = FromTrainable().apply(out)
    np.testing.assert_array_equal(run_model(back, feeds, optimised=False)[0], b)


@pytest.mark.parametrize(
    ("node", "opset", "why"),
    [
        ("y = Gelu (x)", 20, "node 'n': Gelu of opset 20 .* it came with opset 20"),
        ("y = Swish (x)", 24, "node 'n': Swish of opset 24 .* it came with opset 24"),
    ],
)
def test_refused(node: str, opset: int, why: str) -> None:
    version = 10 if opset < 23 else 12
    model = parser.parse_model(
        f'<ir_version: {version}, opset_import: ["": {opset}]> g (float[3] x) => (float[3] y) {{ {node} }}'
    )
    model.graph.node[0].name = "n"
    with pytest.raises(UnsupportedError, match=why):
        ToTrainable().apply(model)


def test_half_precision_is_refused() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]> g (float16[3] x) => (float16[3] y) {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)
        }""")
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float16), "s"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "z"))
    with pytest.raises(UnsupportedError, match=r"QuantizeLinear of opset 21 .* is float16"):
        ToTrainable().apply(model)


@pytest.mark.parametrize("options", [{"opset": 12}, {"opset": 19}, {"weight_bits": 1}, {"weight_bits": 9}])
def test_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"opset is 13 to 18|weight-bits is 2 to 8"):
        ToTrainable(**options)


def test_old_models_come_up() -> None:
    model = parser.parse_model("""
        <ir_version: 6, opset_import: ["": 11]> g (float[2, 3] x) => (float[2, 1] y) {
            y = ReduceSum <axes = [1]> (x)
        }""")
    out = ToTrainable().apply(model)
    accepted(out)
    assert out.opset_import[0].version == 18


def test_what_cannot_be_trained_is_noted() -> None:
    model = layer("Conv")
    model.graph.output.append(helper.make_tensor_value_info("x_q", TensorProto.UINT8, OPS["Conv"][1]))
    ctx = Context()
    ToTrainable().apply(model, ctx=ctx)
    (note,) = ctx.report.of("not-trainable")
    assert note.severity is Severity.WARNING and note.place.node == "x_Q"
    assert "graph output 'x_q'" in note.message and "'conv' (Conv)" in note.message
