"""What the data of a target do not allow; and what onnxq writes for each target, its linter accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxq import lint, quantize
from onnxq.diagnostics import Severity
from onnxq.errors import OptionError
from tests.defects.nets import feeds, net
from tests.rules.graphs import array, errors, found, model, places

PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
WEIGHT = "w = DequantizeLinear<axis = 1>(wq, ws, wz) y = MatMul(d, w)"
STORED: dict[str, Any] = {"wq": array(16, 8), "ws": np.full(8, 0.01, np.float32), "wz": np.zeros(8, np.int8)}
SIGNED = {"z": np.int8(0)}
FOUR = {"wq": array(16, 8, low=-8, high=8).astype(ml_dtypes.int4), "wz": np.zeros(8, ml_dtypes.int4)}


def layer(body: str = PAIR + WEIGHT, inputs: str = "float[4, 16] x", **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => (float[A, B] y) {{ {body} }}", **{**STORED, **more})


@pytest.mark.parametrize(
    ("target", "more", "where"),
    [
        ("tensorrt", {}, ["q"]),
        ("tensorrt", {"z": np.uint16(0)}, ["q"]),
        ("tensorrt", {"z": np.int16(0)}, ["q"]),
        ("tensorrt", SIGNED, []),
        ("tensorrt", {**SIGNED, "wq": array(16, 8, kind=np.uint8, low=0), "wz": np.zeros(8, np.uint8)}, ["w"]),
        ("tensorrt", {"z": np.zeros((), ml_dtypes.float8_e4m3fn)}, []),
        ("ascend", {}, ["q"]),
        ("ascend", SIGNED, []),
        ("qnn", {"wq": array(16, 8, kind=np.uint8, low=0), "wz": np.zeros(8, np.uint8)}, []),
        ("qnn", {"z": np.zeros((), ml_dtypes.float8_e4m3fn)}, ["q", "w"]),
        ("onnx", {}, []),
        ("ort-cpu", SIGNED, []),
        (None, {}, []),
    ],
)
def test_types(target: str | None, more: dict[str, Any], where: list[str]) -> None:
    assert places(layer(**more), "OQ606", target) == where


def test_a_type_that_one_operator_does_not_take() -> None:
    (one,) = found(layer(), "OQ606", "qnn")
    assert one.severity is Severity.WARNING and one.place.value == "w" and "MatMul" in str(one)


def test_biases() -> None:
    body = PAIR + "b = DequantizeLinear(bq, s) w = DequantizeLinear<axis = 1>(wq, ws, wz) y = Gemm(d, w, b)"
    proto = layer(body, **SIGNED, bq=np.ones(8, np.int32))
    assert places(proto, "OQ606", "tensorrt") == ["b"]
    assert not found(proto, "OQ606", "qnn") and not found(proto, "OQ606", "ascend")


@pytest.mark.parametrize(
    ("target", "more", "where"),
    [
        ("tensorrt", {"z": np.int8(5)}, ["q"]),
        ("tensorrt", {"z": np.int8(0)}, []),
        ("tensorrt", {**SIGNED, "wz": np.array([0, 0, 0, 0, 0, 0, 7, 0], np.int8)}, ["w"]),
        ("ascend", {"z": np.int8(5)}, []),
        ("ascend", {"wz": np.full(8, 1, np.int8), **SIGNED}, ["w"]),
        ("qnn", {"z": np.uint8(7)}, []),
    ],
)
def test_zero_points(target: str, more: dict[str, Any], where: list[str]) -> None:
    assert places(layer(**more), "OQ607", target) == where


@pytest.mark.parametrize(
    ("body", "target", "more", "where"),
    [
        (PAIR.replace("(", "<axis = 1>(") + WEIGHT, "tensorrt",
         {"s": np.ones(16, np.float32), "z": np.zeros(16, np.int8)}, "q"),
        (PAIR + WEIGHT.replace("= 1", "= 0, block_size = 8"), "qnn",
         {"ws": np.ones((2, 8), np.float32), "wz": np.zeros((2, 8), np.int8)}, "w"),
        ("d = Identity(x) " + WEIGHT.replace("= 1", "= 0, block_size = 8"), "tensorrt",
         {"ws": np.ones((2, 8), np.float32), "wz": np.zeros((2, 8), np.int8)}, ""),
        (PAIR + WEIGHT, "qnn", {}, "w"),
        (PAIR + WEIGHT, "tensorrt", SIGNED, ""),
        (PAIR + WEIGHT, "qnn", {"ws": np.float32(1), "wz": np.int8(0)}, ""),
    ],
)  # fmt: skip
def test_granularity(body: str, target: str, more: dict[str, Any], where: str) -> None:
    assert places(layer(body, **more), "OQ608", target) == ([where] if where else [])


@pytest.mark.parametrize(
    ("target", "body", "more", "fires"),
    [
        ("ascend", PAIR + WEIGHT, {**SIGNED, **FOUR}, False),
        ("ascend", PAIR + WEIGHT, {"z": np.int16(0), **FOUR}, True),
        ("ascend", "d = Tanh(x) " + WEIGHT, FOUR, True),
        ("tensorrt", "d = Tanh(x) " + WEIGHT, FOUR, False),
        ("tensorrt", PAIR + WEIGHT, {**SIGNED, **FOUR}, True),
        ("qnn", PAIR + WEIGHT, FOUR, False),
    ],
)
def test_combinations(target: str, body: str, more: dict[str, Any], fires: bool) -> None:
    assert places(layer(body, **more), "OQ609", target) == (["w"] if fires else [])


def test_layers_without_a_kernel(tmp_path: Path) -> None:
    proto = layer(PAIR + WEIGHT.replace("MatMul", "Gemm<alpha = 2.0>"))
    assert places(proto, "OQ610", "qnn") == ["y"]
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\ndescription: one of a user\nopset: {min: 13, max: 20, default: 13}\nir-version: 8\n"
        "float-types: [float32]\nactivations: {types: [int8], default: int8, symmetric: true, always-symmetric: true}\n"
        "weights: {types: [int8], default: int8, symmetric: true}\nbias: {type: int32, policy: raise-weight-scale}\n"
        "integer-ops: {Conv: {kind: matmul-like}}\n"
    )
    codes = {d.code for d in lint(layer(z=np.int8(3)), target=str(own))}
    assert {"OQ603", "OQ607", "OQ608", "OQ610"} <= codes


def test_in_bodies_and_functions() -> None:
    branch = layer(
        f"y = If(c) <then_branch = t () => (float[4, 8] o) {{ {PAIR}{WEIGHT.replace('y =', 'o =')} }}, "
        "else_branch = e () => (float[4, 8] k) { k = MatMul(x, v) }>",
        "float[4, 16] x, bool c",
        v=np.ones((16, 8), np.float32),
    )
    assert places(branch, "OQ606", "tensorrt") == ["y/then_branch/q"]
    constants = "s = Constant<value = float {0.1}>() z = Constant<value = uint8 {1}>() "
    function = model(
        "(float[4] x) => (float[4] y) { y = l.f(x) }",
        functions=f'<domain: "l", opset_import: ["": 21]> f (x) => (y) {{ {constants} {PAIR.replace("d =", "y =")} }}',
    )
    assert places(function, "OQ606", "tensorrt") == ["l::f/q"]


QUICK = {"rounding": "nearest"}
STATIC = {**QUICK, "search": False, "method": "minmax"}


@pytest.mark.parametrize(
    ("name", "target", "recipe", "options"),
    [
        ("conv-chain", "tensorrt", "int8", STATIC),
        ("attention", "tensorrt", "int8", STATIC),
        ("attention", "tensorrt", "w4-blocked", {**QUICK, "symmetric": "auto"}),
        ("conv-chain", "qnn", "int8", STATIC),
        ("transformer", "qnn", "int8", STATIC),
        ("conv-chain", "qnn", "int8", {**STATIC, "activations": "uint16"}),
        ("transformer", "ascend", "a8w4", QUICK),
    ],
)
def test_what_is_written_is_accepted(name: str, target: str, recipe: str, options: dict[str, Any]) -> None:
    data = None if recipe == "w4-blocked" else feeds(name)
    made = quantize(net(name), data, recipe=recipe, target=target, **options).model
    ops = [node.op_type for node in made.graph.node]
    assert ops.count("DequantizeLinear") > 5
    assert not errors(made, target)
    assert not [d for d in lint(made, target=target) if d.severity is Severity.WARNING]
    if target == "tensorrt":
        types = {t.name: t.data_type for t in made.graph.initializer}
        kinds = {types[n.input[0]] for n in made.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in types}
        assert onnx.TensorProto.INT32 not in kinds


def test_what_a_target_does_not_take_is_not_written() -> None:
    for options, text in (
        ({"symmetric": "no"}, "symmetric weights only"),
        ({"activations-symmetric": "no"}, "symmetric activations only"),
        ({"activations": "uint8"}, "does not take uint8 activations"),
        ({"weights": "int4"}, "int4 weights with float activations only"),
    ):
        with pytest.raises(OptionError, match=text):
            quantize(net("conv-chain"), feeds("conv-chain"), target="tensorrt", **{**STATIC, **options})
