"""`qoperator-to-qdq` on whole models: scopes, data movement, what stays, and what onnxruntime's own tool writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from models.fetch import ROOT
from onnxq.edit import all_nodes
from onnxq.passbase import Context, run_step
from onnxq.passes.inline_functions import InlineFunctions
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from onnxq.session import Runtime, open_session

Run = Callable[..., list[Any]]
LENET = ROOT / "models" / "lenet"

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g'
MATMUL = "QLinearMatMul(x, s, z, w, s, zw, s, z)"
WEIGHTS = "<float s = {0.5}, uint8 z = {100}, int8[2,2] w = {1, -2, 3, 4}, int8 zw = {0}>"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def same(before: onnx.ModelProto, made: onnx.ModelProto, run_model: Run, feeds: dict[str, Any]) -> None:
    onnx.checker.check_model(made, full_check=True)
    for a, b in zip(run_model(before, feeds), run_model(made, feeds, true=True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_bodies(run_passes: Callable[..., Any], run_model: Run) -> None:
    before = parser.parse_model(f"""{HEAD} (uint8[2,2] x, bool c) => (uint8[2,2] y) {WEIGHTS} {{
        y = If(c) <then_branch = t () => (uint8[2,2] a) {{ a = {MATMUL} }},
                   else_branch = e () => (uint8[2,2] b) {{ v = {MATMUL} b = Identity(v) }}>
    }}""")
    made = run_passes(before, QoperatorToQdq())
    found = [node.op_type for node in all_nodes(made.model)]
    assert found.count("MatMul") == 2 and found.count("QuantizeLinear") == 3 and found.count("DequantizeLinear") == 5
    assert all(
        len(body.initializers) == 0 for body in (n.graph for n in all_nodes(made.model) if n.op_type == "MatMul")
    )
    for flag in (True, False):
        same(before, made.proto, run_model, {"x": np.array([[90, 100], [120, 250]], np.uint8), "c": np.array(flag)})


def test_local_functions(run_passes: Callable[..., Any], run_model: Run) -> None:
    before = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (uint8[2,2] x) => (uint8[2,2] y, int32[2,2] k) {WEIGHTS} {{
        y = local.product(x) k = local.sums(x, s, z, w, zw)
    }}
    <domain: "local", opset_import: ["": 17]> product (x) => (y) {{
        s = Constant<value_float=0.5>()
        z = Constant<value=uint8[1] {{100}}>()
        w = Constant<value=int8[2,2] {{1, -2, 3, 4}}>()
        zw = Constant<value=int8[1] {{0}}>()
        y = {MATMUL}
    }}
    <domain: "local", opset_import: ["": 17]> sums (x, s, z, w, zw) => (k) {{
        v = {MATMUL} k = MatMulInteger(x, w)
    }}""")
    made = run_passes(before, QoperatorToQdq())
    product, sums = made.model.functions.values()
    assert [n.op_type for n in product if n.op_type != "Constant"] == [
        "DequantizeLinear",
        "DequantizeLinear",
        "MatMul",
        "QuantizeLinear",
    ]
    assert [n.op_type for n in sums if n.op_type != "QLinearMatMul"] == ["MatMulInteger"]
    assert made.codes() == ["not-raised", "not-raised", "raised"]  # nothing says what shapes arguments have
    feeds = {"x": np.array([[90, 100], [120, 250]], np.uint8)}
    same(before, made.proto, run_model, feeds)
    inlined = run_passes(before, InlineFunctions(), QoperatorToQdq())
    assert not {"QLinearMatMul", "MatMulInteger"} & set(inlined.ops())
    same(before, inlined.proto, run_model, feeds)


def test_movement_of_integers_gets_pairs(run_passes: Callable[..., Any], run_model: Run) -> None:
    before = parser.parse_model(f"""{HEAD} (float[1,2,4,4] x) => (uint8[1,8] y, uint8[1,1,4,4] b, float[1,8] f)
    <float s = {{0.1}}, uint8 z = {{100}}, int64[2] sizes = {{1, 1}}> {{
        q = QuantizeLinear(x, s, z)
        p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(q)
        y = Flatten(p)
        f = DequantizeLinear(y, s, z)
        a, b = Split<axis=1>(q, sizes)
    }}""")
    made = run_passes(before, QoperatorToQdq())
    moved = [n for n in made.proto.graph.node if n.op_type in ("MaxPool", "Flatten", "Split")]
    makers = {out: n.op_type for n in made.proto.graph.node for out in n.output}
    assert [makers[n.input[0]] for n in moved] == ["DequantizeLinear"] * 3
    assert made.ops().count("QuantizeLinear") == 4  # nobody reads a
    same(before, made.proto, run_model, {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)})


def test_tables_of_integers_stay(run_passes: Callable[..., Any]) -> None:
    before = (
        f"""{HEAD} (int64[3] i) => (float[3,2] y) {WEIGHTS} {{ r = Gather(w, i) y = DequantizeLinear(r, s, zw) }}"""
    )
    assert not run_passes(before, QoperatorToQdq()).changed


@pytest.mark.parametrize("op_type", ["QMoE", "DynamicQuantizeLSTM", "QOrderedGelu", "MatMulBnb4", "QLinearUnheardOf"])
def test_operators_without_a_form_stay_with_a_note(op_type: str) -> None:
    model = ir.from_proto(parser.parse_model(f"{HEAD} (float x) => (float y) {{ [n] y = com.microsoft.{op_type}(x) }}"))
    ctx = Context()
    assert not run_step(QoperatorToQdq(), model, ctx)
    (note,) = ctx.report.notes
    assert note.code == "not-raised" and note.place.node == "n" and op_type in note.message


def test_ir_version_3(run_passes: Callable[..., Any], run_model: Run) -> None:
    before = parser.parse_model(f"""{HEAD} (uint8[2,2] x) => (uint8[2,2] y) {WEIGHTS} {{ y = {MATMUL} }}""")
    before.ir_version = 3
    before.opset_import[0].version = 10
    for tensor in before.graph.initializer:
        kind = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        before.graph.input.append(kind)
    made = run_passes(before, QoperatorToQdq())
    assert made.proto.ir_version == 4 and len(made.proto.graph.input) == 1
    same(before, made.proto, run_model, {"x": np.array([[90, 100], [120, 250]], np.uint8)})


class _Images(CalibrationDataReader):
    def __init__(self) -> None:
        self.batches = iter(np.load(LENET / "calibration.npz")["image"][:16].reshape(2, 8, 1, 28, 28))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"image": batch}


def _digits() -> Any:
    return np.load(LENET / "digits.npz")["pixels"][:50, None].astype(np.float32) / 255


def _raised(path: Path) -> tuple[ir.Model, ir.Model]:
    before, after = ir.load(path), ir.load(path)
    run_step(QoperatorToQdq(), after, Context())
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    return before, after


def _outputs(model: ir.Model, *, true: bool) -> Any:
    with open_session(model, Runtime(threads=1, true_semantics=true)) as session:
        return session.run({session.inputs[0]: _digits()})[0]


@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [("QUInt8", "QInt8", False), ("QUInt8", "QInt8", True), ("QUInt8", "QUInt8", False), ("QInt8", "QInt8", True)],
)
def test_static_models_of_onnxruntime(tmp_path: Path, activations: str, weights: str, per_channel: bool) -> None:
    path = tmp_path / "lenet.onnx"
    quantize_static(
        LENET / "lenet.onnx",
        path,
        _Images(),
        quant_format=QuantFormat.QOperator,
        activation_type=QuantType[activations],
        weight_type=QuantType[weights],
        per_channel=per_channel,
    )
    before, after = _raised(path)
    ops = [node.op_type for node in after.graph]
    assert not any(op.startswith(("QLinear", "QGemm")) for op in ops) and "com.microsoft" not in after.opset_imports
    assert ops.count("Conv") == ops.count("Gemm") == 2
    quantizers = [node for node in after.graph if node.op_type == "QuantizeLinear"]
    readers = [[use.op_type for use, _ in node.outputs[0].uses()] for node in quantizers]
    assert readers == [["DequantizeLinear"]] * len(quantizers)
    wanted = _outputs(before, true=False)
    for true in (False, True):
        got = _outputs(after, true=true)
        np.testing.assert_allclose(got, wanted, atol=0.016 * np.abs(wanted).max())  # two steps of the output at most
        assert (got != wanted).mean() < 0.01


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_dynamic_models_of_onnxruntime(tmp_path: Path, weights: str) -> None:
    path = tmp_path / "lenet.onnx"
    quantize_dynamic(
        LENET / "lenet.onnx", path, weight_type=QuantType[weights], op_types_to_quantize=["Conv", "MatMul", "Gemm"]
    )
    before, after = _raised(path)
    ops = [node.op_type for node in after.graph]
    assert not {"ConvInteger", "MatMulInteger", "Cast", "Mul", "Reshape"} & set(ops)
    assert all(len(node.inputs) == 3 for node in after.graph if node.op_type == "Conv")
    wanted = _outputs(before, true=False)
    for true in (False, True):  # what float sums round otherwise may be one step off behind the next quantization
        np.testing.assert_allclose(_outputs(after, true=true), wanted, atol=0.01 * np.abs(wanted).max())


@pytest.mark.real
def test_older_dynamic_convolutions(real_model: Callable[[str], Path]) -> None:
    before, after = _raised(real_model("ddddocr-old"))
    ops = [node.op_type for node in after.graph]
    assert ops.count("Conv") == 21 and not {"ConvInteger", "MatMulInteger", "Floor", "Cast"} & set(ops)
    # What is written is round enough to compare: with noise for an image, one step more or less shows everywhere.
    page = np.tile(np.linspace(-1, 1, 96, dtype=np.float32), (1, 1, 64, 1))
    found = []
    for model in (before, after):
        with open_session(model, Runtime(threads=1)) as session:
            found.append(session.run({session.inputs[0]: page})[0].astype(np.float64).ravel())
    assert found[0] @ found[1] / np.sqrt((found[0] @ found[0]) * (found[1] @ found[1])) > 0.998
