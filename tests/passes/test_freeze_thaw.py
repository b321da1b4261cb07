"""freeze and thaw: integers -> floats -> the same integers, for every op, granularity and type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.context import Context
from onnxq.facts import Goal
from onnxq.numerics.spec import QTYPES
from onnxq.passbase import run_step
from onnxq.passes.canonical_axis import CanonicalAxis
from onnxq.passes.freeze import Freeze
from onnxq.passes.thaw import Thaw
from onnxq.targets import load_target
from onnxq.targets.target import WeightForm

Array = np.ndarray[Any, Any]

# op -> (attributes, shape of x, shape of the weight, index of the weight, axis for channels, axis for blocks)
OPS: dict[str, tuple[str, dict[str, Any], list[int], list[int], int, int, int]] = {
    "conv": ("Conv", {"pads": [1] * 4}, [1, 5, 6, 6], [6, 5, 3, 3], 1, 0, 1),
    "grouped": ("Conv", {"group": 3}, [1, 6, 5, 5], [9, 2, 3, 3], 1, 0, 3),
    "transposed": ("ConvTranspose", {"strides": [2, 2]}, [1, 4, 5, 5], [4, 7, 3, 3], 1, 1, 0),
    "gemm": ("Gemm", {}, [3, 21], [21, 9], 1, 1, 0),
    "gemm-t": ("Gemm", {"transB": 1}, [3, 21], [9, 21], 1, 0, 1),
    "matmul": ("MatMul", {}, [2, 3, 21], [21, 9], 1, -1, -2),
    "gather": ("Gather", {}, [3], [11, 21], 0, 0, 1),
    "lstm": ("LSTM", {"hidden_size": 3}, [4, 1, 7], [1, 12, 7], 1, 1, 2),
}


def integers(name: str, shape: list[int], rng: np.random.Generator) -> Array:
    """All integers of a type, its ends among them."""
    q = QTYPES[name]
    drawn = rng.integers(q.qmin, q.qmax + 1, shape)
    drawn.flat[:2] = q.qmin, q.qmax
    kind = getattr(ml_dtypes, name) if q.bits < 8 else q.carrier
    return np.asarray(drawn.astype(q.carrier).astype(kind))


def model(
    op: str, dtype: str, how: str, *, zero: str = "symmetric", half: bool = False, opset: int = 21
) -> onnx.ModelProto:
    """One op behind ``integers -> DQ``."""
    rng = np.random.default_rng(7)
    op_type, attributes, x, w, index, channel, block = OPS[op]
    given: dict[str, Any] = {}
    shape: tuple[int, ...] = ()
    if how == "per-channel":
        given, shape = {"axis": channel}, (w[channel],)
    elif how == "blocked":
        size = max(2, w[block] // 2)  # 21 -> 10: the last block holds 1
        given = {"axis": block, "block_size": size}
        shape = tuple(-(-n // size) if i == block % len(w) else n for i, n in enumerate(w))
    scale = rng.uniform(1e-3, 0.1, shape).astype(np.float16 if half else np.float32)
    zeros = np.zeros(shape, int) if zero != "asymmetric" else np.asarray(rng.integers(0, 4, shape))
    constants = {"w_quantized": integers(dtype, w, rng), "s": scale}
    if zero != "absent":
        constants["z"] = zeros.astype(constants["w_quantized"].dtype)
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    feeds = [helper.make_tensor_value_info("x", TensorProto.INT64 if op == "gather" else kind, x)]
    names = ["w", "x"] if index == 0 else ["x", "w"]
    if op == "lstm":
        constants["r"] = (rng.standard_normal([1, 12, 3]) * 0.3).astype(scale.dtype)
        names.append("r")
    dq = helper.make_node("DequantizeLinear", [k for k in constants if k != "r"], ["w"], name="dq", **given)
    dq.metadata_props.add(key="note", value="mine")
    rank = {"gemm": 2, "gemm-t": 2, "gather": 2, "matmul": 3}.get(op, 4)
    y = helper.make_tensor_value_info("y", kind, list("abcd")[:rank])
    graph = helper.make_graph([dq, helper.make_node(op_type, names, ["y"], **attributes)], "g", feeds, [y])
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13 if opset > 24 else 10)
    onnx.checker.check_model(made, full_check=True)
    return made


def thawed_and_back(
    before: onnx.ModelProto, run_passes: Callable[..., Any], run_model: Callable[..., Any], *,
    two_bits: bool = False, half: float = 0,
) -> tuple[onnx.ModelProto, Any]:  # fmt: skip
    """Thaw, check the numbers on onnxruntime's literal sessions, freeze; returns both messages."""
    thawed = run_passes(before, Thaw()).proto
    onnx.checker.check_model(thawed, full_check=True)
    frozen = run_passes(thawed, Freeze())
    rng = np.random.default_rng(0)
    (x,) = before.graph.input
    dims = [d.dim_value for d in x.type.tensor_type.shape.dim]
    kind = helper.tensor_dtype_to_np_dtype(x.type.tensor_type.elem_type)
    feeds = {
        "x": rng.integers(0, 11, dims).astype(kind) if kind == np.int64 else rng.standard_normal(dims).astype(kind)
    }
    for session in ({"optimised": False}, {"true": True}):
        a, b = run_model(before, feeds, **session)[0], run_model(thawed, feeds, **session)[0]
        # A float16 Conv or Gemm computes in float32, and with a weight in float32 where onnxruntime can see to it.
        np.testing.assert_allclose(a, b, rtol=0, atol=half * float(np.abs(a).max()))
        np.testing.assert_array_equal(a, run_model(frozen.proto, feeds, **session)[0])
    size = float(np.abs(a).max())
    # By default a weight-only MatMul of integers rounds its input to 8 bits, and is wrong with 2-bit ones.
    if not two_bits:
        np.testing.assert_allclose(run_model(thawed, feeds)[0], a, rtol=1e-3, atol=0.02 * size)
    return thawed, frozen


def same_weight(before: onnx.ModelProto, frozen: Any, name: str = "w_quantized") -> None:
    (weight,) = [t for t in before.graph.initializer if t.name == "w_quantized"]
    got = frozen.initializers()[name]
    assert got.dtype == numpy_helper.to_array(weight).dtype
    assert got.tobytes() == numpy_helper.to_array(weight).tobytes()


CASES = [
    pytest.param(op, dtype, how, zero, id=f"{op}-{dtype}-{how}-{zero}")
    for op in OPS
    for dtype in ("int8", "uint8", "int4", "uint4", "int16")
    for how in ("per-tensor", "per-channel", "blocked")
    for zero in (("symmetric",) if dtype == "int16" else ("symmetric", "asymmetric"))
]


@pytest.mark.parametrize(("op", "dtype", "how", "zero"), CASES)
def test_same_integers(
    op: str, dtype: str, how: str, zero: str, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    before = model(op, dtype, how, zero=zero)
    thawed, frozen = thawed_and_back(before, run_passes, run_model)
    q, dq = (next(n for n in thawed.graph.node if n.op_type == f"{k}Linear") for k in ("Quantize", "Dequantize"))
    old = before.graph.node[0]
    assert list(dq.attribute) == list(old.attribute) and list(q.attribute) == list(old.attribute)
    assert dq.metadata_props == old.metadata_props
    assert list(q.input) == ["w_1", "s", "z"] and list(dq.input) == ["w_quantized", "s", "z"]
    (weight,) = [t for t in thawed.graph.initializer if t.name == "w_1"]
    assert weight.data_type == TensorProto.FLOAT
    assert frozen.initializers().keys() == {t.name for t in before.graph.initializer}
    for tensor in before.graph.initializer:
        got = frozen.initializers()[tensor.name]
        assert got.dtype == numpy_helper.to_array(tensor).dtype
        assert got.tobytes() == numpy_helper.to_array(tensor).tobytes(), tensor.name
    assert list(frozen.proto.graph.node) == list(before.graph.node)


@pytest.mark.parametrize("op", ["conv", "gemm-t", "matmul", "lstm"])
@pytest.mark.parametrize("how", ["per-tensor", "per-channel", "blocked"])
@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_two_bits(
    op: str, dtype: str, how: str, run_passes: Callable[..., Any], run_model: Callable[..., Any],
    runs_opset: Callable[[int], bool],
) -> None:  # fmt: skip
    if not runs_opset(25):
        pytest.skip("onnxruntime does not know opset 25")
    before = model(op, dtype, how, opset=25)
    _, frozen = thawed_and_back(before, run_passes, run_model, two_bits=True)
    same_weight(before, frozen)


@pytest.mark.parametrize("op", ["conv", "gemm", "gather"])
@pytest.mark.parametrize("how", ["per-tensor", "per-channel", "blocked"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4"])
def test_float16(op: str, dtype: str, how: str, run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    before = model(op, dtype, how, half=True, zero="asymmetric")
    thawed, frozen = thawed_and_back(before, run_passes, run_model, half=0 if op == "gather" else 2e-3)
    assert {t.name: t.data_type for t in thawed.graph.initializer}["w_1"] == TensorProto.FLOAT16
    same_weight(before, frozen)


@pytest.mark.parametrize(
    ("dtype", "opset", "attribute"), [("int4", 21, True), ("uint4", 21, True), ("int8", 21, True), ("int8", 13, False)]
)
def test_without_zero_point(
    dtype: str, opset: int, attribute: bool, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """Q says its type by output_dtype, or below opset 21 by a zero point of its own."""
    before = model("gemm", dtype, "per-channel", zero="absent", opset=opset)
    thawed, frozen = thawed_and_back(before, run_passes, run_model)
    q = thawed.graph.node[0]
    found = {a.name: helper.get_attribute_value(a) for a in q.attribute}
    assert found == ({"output_dtype": getattr(TensorProto, dtype.upper()), "axis": 1} if attribute else {"axis": 1})
    assert len(q.input) == (2 if attribute else 3)
    assert list(frozen.proto.graph.node) == list(before.graph.node)


def test_omit_zero_point(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    before = model("conv", "int4", "per-channel")
    out = run_passes(before, Thaw(zero_point="omit"))
    q, dq, _ = out.proto.graph.node
    assert list(q.input) == ["w_1", "s"] and list(dq.input) == ["w_quantized", "s"]
    assert {a.name: a.i for a in q.attribute} == {"output_dtype": TensorProto.INT4, "axis": 0}
    assert "z" not in out.initializers()
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 5, 6, 6)).astype(np.float32)}
    np.testing.assert_array_equal(run_model(before, feeds, true=True)[0], run_model(out.proto, feeds, true=True)[0])
    frozen = run_passes(out.proto, Freeze())
    same_weight(before, frozen)


@pytest.mark.parametrize(("zero", "opset", "word"), [("asymmetric", 21, "not 0"), ("symmetric", 19, "opset 21")])
def test_zero_point_that_cannot_go(zero: str, opset: int, word: str, run_passes: Callable[..., Any]) -> None:
    out = run_passes(model("gemm", "uint8", "per-tensor", zero=zero, opset=opset), Thaw(zero_point="omit"))
    (note,) = out.ctx.report.of("zero-point-kept")
    assert word in note.message
    assert list(out.node("QuantizeLinear").input) == ["w_1", "s", "z"]


@pytest.mark.parametrize(
    ("change", "half", "dtype", "why"),
    [
        (np.float32(1e38), False, "int8", "leave float32"),
        (np.float32(1e-39), False, "int8", "not all its scales"),
        (np.float32(0), False, "int4", "not all its scales"),
        (np.float32(np.inf), False, "int4", "not all its scales"),
        (np.float16(600), True, "int8", "leave float16"),
        (np.float16(0.1), True, "int16", "16-bit"),
    ],
)
def test_stays_integer(change: Any, half: bool, dtype: str, why: str, run_passes: Callable[..., Any]) -> None:
    before = model("gemm", dtype, "per-tensor", half=half)
    before.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.asarray(change), "s"))
    out = run_passes(before, Thaw())
    (note,) = out.ctx.report.of("not-thawed")
    assert why in note.message and note.place.node == "dq"
    assert not out.changed


def target(form: WeightForm, zero_point: bool) -> Goal:
    return Goal(replace(load_target("onnx"), weight_form=form, weight_zero_point=zero_point))


@pytest.mark.parametrize(
    ("options", "form", "zero_point", "ops", "inputs"),
    [
        ({}, "fake-quant", False, 1, 2),
        ({}, "fake-quant", True, 1, 3),
        ({}, "deploy", False, 0, 3),
        ({"form": "fake-quant"}, "deploy", True, 1, 3),
        ({"form": "deploy"}, "fake-quant", True, 0, 3),
        ({"zero_point": "keep"}, "fake-quant", False, 1, 3),
    ],
)
def test_target_decides(options: dict[str, Any], form: WeightForm, zero_point: bool, ops: int, inputs: int) -> None:
    graph, ctx = ir.from_proto(model("matmul", "int4", "per-channel")), Context()
    ctx.put(target(form, zero_point))
    assert run_step(Thaw(**options), graph, ctx) == bool(ops)
    assert sum(n.op_type == "QuantizeLinear" for n in graph.graph) == ops
    (dq,) = [n for n in graph.graph if n.op_type == "DequantizeLinear"]
    assert len(dq.inputs) == inputs


def test_lazy() -> None:
    """Nothing is computed before it is written."""
    graph = ir.from_proto(model("conv", "int4", "per-channel"))
    for step, name in ((Thaw(), "w_1"), (Freeze(), "w_quantized")):
        run_step(step, graph, Context())
        assert isinstance(graph.graph.initializers[name].const_value, ir.LazyTensor)


@pytest.mark.parametrize(("op", "how"), [("gemm-t", "per-channel"), ("conv", "per-channel"), ("gemm-t", "blocked")])
@pytest.mark.parametrize("dtype", ["int8", "uint4"])
def test_canonical_axis(
    op: str, how: str, dtype: str, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """Mutually inverse Transposes stay around both forms: float -> Transpose -> Q -> DQ -> Transpose -> op."""
    canonical = run_passes(model(op, dtype, how), CanonicalAxis(axis_form="canonical")).proto
    thawed, frozen = thawed_and_back(canonical, run_passes, run_model)
    ends = ["Transpose"] if how == "per-channel" else []
    assert [n.op_type for n in thawed.graph.node][:-1] == [*ends, "QuantizeLinear", "DequantizeLinear", *ends]
    assert frozen.ops() == [n.op_type for n in canonical.graph.node]
    same_weight(canonical, frozen, "w_1_quantized" if ends else "w_quantized")
    (weight,) = [t for t in thawed.graph.initializer if t.data_type == TensorProto.FLOAT and t.name != "s"]
    assert list(weight.dims) == OPS[op][3]
