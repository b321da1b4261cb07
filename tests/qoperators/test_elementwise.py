"""Integer elementwise operators, joins, pools and Softmax against their Q/DQ forms, both in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

Array = np.ndarray[Any, Any]

SX, SY, SZ = (np.float32(s) for s in (0.03, 0.05, 0.07))


def integer_model(
    op_type: str,
    inputs: list[str | Array],
    fed: dict[str, Array],
    *,
    version: int = 21,
    rank: int = 4,
    **attributes: Any,
) -> onnx.ModelProto:
    """One operator of onnxruntime's domain; arrays among the inputs become initializers."""
    names, constants = [], []
    for i, each in enumerate(inputs):
        if isinstance(each, str):
            names.append(each)
            continue
        constants.append(numpy_helper.from_array(np.asarray(each), f"c{i}"))
        names.append(f"c{i}")
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in fed.items()}
    out = next(kind for kind in kinds.values() if kind != TensorProto.BOOL)
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], "op", domain="com.microsoft", **attributes)],
        "g",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in fed.items()],
        [helper.make_tensor_value_info("y", out, [f"d{i}" for i in range(rank)])],
        constants,
    )
    imports = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10 if version > 20 else 8)


def zero(value: int, dtype: Any) -> Array:
    return np.array(value, dtype)


def draw(shape: tuple[int, ...], dtype: Any = np.uint8, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.fixture
def agree(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> Callable[..., Any]:
    """Raises a model; both are run, and results differ by ``steps`` at most, in ``share`` of the places at most."""

    def check(before: onnx.ModelProto, feeds: dict[str, Array], steps: int = 0, share: float = 0.0) -> Any:
        made = run_passes(before, QoperatorToQdq())
        onnx.checker.check_model(made.proto, full_check=True)
        assert all(node.domain == "" for node in made.proto.graph.node), made.ctx.report.notes
        wanted = run_model(before, feeds)[0].astype(np.int32)
        for session in ({"true": True}, {"optimised": False}, {}):
            got = run_model(made.proto, feeds, **session)[0]
            assert got.dtype == run_model(before, feeds)[0].dtype and got.shape == wanted.shape
            off = np.abs(got.astype(np.int32) - wanted)
            assert off.max() <= steps and (off > 0).mean() <= share, (session, off.max(), (off > 0).mean())
        return made

    return check


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_binary(op: str, dtype: Any, agree: Callable[..., Any]) -> None:
    a, b = draw((2, 3, 4, 5), dtype), draw((3, 1, 5), dtype, 1)
    inputs = ["a", SX, zero(20, dtype), "b", SY, zero(7, dtype), SZ, zero(11, dtype)]
    made = agree(integer_model(f"QLinear{op}", inputs, {"a": a, "b": b}), {"a": a, "b": b}, 1, 0.01)
    assert made.ops() == ["DequantizeLinear", "DequantizeLinear", op, "QuantizeLinear"]
    assert [n.name for n in made.proto.graph.node if n.op_type == op] == ["op"]


UNARY: list[tuple[str, dict[str, Any], tuple[float, int], float]] = [
    ("Sigmoid", {}, (1 / 256, 0), 0.0),
    ("LeakyRelu", {"alpha": 0.1}, (0.03, 60), 0.0),
    ("LeakyRelu", {}, (0.03, 60), 0.0),
    ("GlobalAveragePool", {}, (0.01, 100), 0.0),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}, (0.02, 100), 0.1),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}, (0.02, 100), 0.1),
    ("AveragePool", {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"}, (0.02, 100), 0.1),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, (0.02, 100), 0.1),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("op", "attributes", "pair", "share"), UNARY)
def test_unary(
    op: str, attributes: dict[str, Any], pair: tuple[float, int], share: float, dtype: Any, agree: Callable[..., Any]
) -> None:
    x = draw((2, 3, 8, 9), dtype)
    inputs = ["x", SX, zero(60, dtype), np.float32(pair[0]), zero(pair[1], dtype)]
    made = agree(integer_model(f"QLinear{op}", inputs, {"x": x}, **attributes), {"x": x}, 1 if share else 0, share)
    assert made.ops() == ["DequantizeLinear", op, "QuantizeLinear"]


@pytest.mark.parametrize("op", ["AveragePool", "GlobalAveragePool"])
def test_channels_last(op: str, agree: Callable[..., Any]) -> None:
    x = draw((2, 6, 7, 3))
    attributes = {} if op.startswith("Global") else {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}
    inputs = ["x", SX, zero(60, np.uint8), np.float32(0.02), zero(90, np.uint8)]
    model = integer_model(f"QLinear{op}", inputs, {"x": x}, channels_last=1, **attributes)
    made = agree(model, {"x": x}, 1, 0.1)
    assert made.ops() == ["DequantizeLinear", "Transpose", op, "Transpose", "QuantizeLinear"]


def test_missing_zero_points(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """They are 0, of the type of the operand; onnxruntime 1.32 crashes on them, so the oracle has them written."""
    x = draw((2, 3, 4, 5), np.int8)
    short = integer_model("QLinearLeakyRelu", ["x", SX, "", SY], {"x": x}, alpha=0.5)
    made = run_passes(short, QoperatorToQdq())
    zeros = [made.initializers()[node.input[2]] for node in made.proto.graph.node if "quantize" in node.op_type.lower()]
    assert [z.dtype for z in zeros] == [np.int8, np.int8] and not any(zeros)
    full = integer_model("QLinearLeakyRelu", ["x", SX, np.int8(0), SY, np.int8(0)], {"x": x}, alpha=0.5)
    np.testing.assert_array_equal(run_model(made.proto, {"x": x})[0], run_model(full, {"x": x})[0])


def test_where(agree: Callable[..., Any]) -> None:
    a, b = draw((2, 3, 4, 5)), draw((3, 4, 5), seed=1)
    mask = draw((2, 1, 4, 5)) > 100
    inputs = ["m", "a", SX, zero(20, np.uint8), "b", SY, zero(7, np.uint8), SZ, zero(11, np.uint8)]
    feeds = {"m": mask, "a": a, "b": b}
    made = agree(integer_model("QLinearWhere", inputs, feeds), feeds)
    assert made.ops() == ["DequantizeLinear", "DequantizeLinear", "Where", "QuantizeLinear"]


def test_concat(agree: Callable[..., Any]) -> None:
    feeds = {name: draw((2, i + 1, 4, 5), seed=i) for i, name in enumerate("abc")}
    inputs: list[Any] = [SZ, zero(11, np.uint8)]
    for name, scale in zip("abc", (SX, SY, SZ), strict=True):
        inputs += [name, scale, zero(20, np.uint8)]
    made = agree(integer_model("QLinearConcat", inputs, feeds, axis=1), feeds)
    assert made.ops() == ["DequantizeLinear"] * 3 + ["Concat", "QuantizeLinear"]


SOFTMAX = [
    (21, {"axis": -1, "opset": 13}, ["Softmax"]),
    (21, {"axis": 1, "opset": 13}, ["Softmax"]),
    (21, {"opset": 13}, ["Softmax"]),
    (21, {"axis": 2, "opset": 11}, ["Softmax"]),
    (21, {"axis": 1, "opset": 11}, ["Flatten", "Softmax", "Reshape"]),
    (21, {"opset": 11}, ["Softmax"]),
    (12, {"axis": 1, "opset": 11}, ["Softmax"]),
    (12, {"axis": 1, "opset": 13}, ["Transpose", "Softmax", "Transpose"]),
]


@pytest.mark.parametrize(("opset", "attributes", "ops"), SOFTMAX)
def test_softmax(opset: int, attributes: dict[str, int], ops: list[str], agree: Callable[..., Any]) -> None:
    """What Softmax means is said by an attribute, whatever the opset of the model; the axis is the last by default."""
    x = draw((2, 4, 5))
    inputs = ["x", SX, zero(128, np.uint8), np.float32(1 / 256), zero(0, np.uint8)]
    model = integer_model("QLinearSoftmax", inputs, {"x": x}, version=opset, rank=3, **attributes)
    made = agree(model, {"x": x}, 1, 0.1)
    assert made.ops() == ["DequantizeLinear", *ops, "QuantizeLinear"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_max_pool(dtype: Any, agree: Callable[..., Any]) -> None:
    """No pair: MaxPool takes integers."""
    x = draw((2, 6, 7, 3), dtype)
    made = agree(integer_model("NhwcMaxPool", ["x"], {"x": x}, kernel_shape=[3, 2], pads=[1, 0, 1, 1]), {"x": x})
    assert made.ops() == ["Transpose", "MaxPool", "Transpose"]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "opset", "why"),
    [
        ("NhwcMaxPool", ["x"], {"kernel_shape": [2, 2]}, 11, "MaxPool takes integers from opset 12 on"),
        ("QLinearGlobalAveragePool", ["x", SX, np.uint8(1), SY, np.uint8(0)], {"channels_last": 1}, 13, "rank of its"),
        ("QLinearSoftmax", ["x", SX, np.uint8(1), SY, np.uint8(0)], {"axis": 1, "opset": 13}, 12, "unknown rank"),
        ("QLinearSigmoid", ["x", np.float32([1, 2]), np.uint8([1, 2]), SY, np.uint8(0)], {}, 13, "has shape [2]"),
    ],
)
def test_stays(
    op: str, inputs: list[Any], attributes: dict[str, Any], opset: int, why: str, run_passes: Callable[..., Any]
) -> None:
    x = draw((2, 3, 3, 2))
    model = integer_model(op, inputs, {"x": x}, version=opset, **attributes)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    made = run_passes(model, QoperatorToQdq())
    (note,) = made.ctx.report.of("not-raised")
    assert why in note.message and not made.changed


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), op=st.sampled_from(["Add", "Mul"]), data=st.data())
def test_any_scales(seed: int, op: str, data: Any) -> None:
    """One step at most, whatever scales and zero points."""
    from tests.passes.conftest import _run_model, _run_passes

    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from([np.uint8, np.int8]))
    info = np.iinfo(dtype)
    scales = np.exp2(rng.uniform(-9, 3, 3)).astype(np.float32)
    zeros = rng.integers(info.min, info.max + 1, 3).astype(dtype)
    feeds = {"a": draw((40, 3), dtype, seed), "b": draw((40, 3), dtype, seed + 1)}
    inputs = ["a", scales[0], zeros[0], "b", scales[1], zeros[1], scales[2], zeros[2]]
    before = integer_model(f"QLinear{op}", inputs, feeds, rank=2)
    after = _run_passes(before, QoperatorToQdq()).proto
    a, b = (_run_model(model, feeds)[0].astype(np.int32) for model in (before, after))
    assert np.abs(a - b).max() <= 1
