"""OQ401–OQ405: how small integers lie in bytes."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxq.diagnostics import Severity
from tests.rules.lab import build, find, numbers, places

F, S8, S4 = np.float32, np.int8, ml_dtypes.int4
MATMUL = "d = DequantizeLinear(w, s) y = MatMul(x, d)"


def tensor(kind: int, dims: list[int], raw: bytes) -> onnx.TensorProto:
    made = TensorProto(data_type=kind, dims=dims)
    made.raw_data = raw
    return made


@pytest.mark.parametrize(
    ("body", "dims", "found"),
    [
        (MATMUL, (6, 4), []), (MATMUL, (6, 5), [5]), (MATMUL, (5, 4), []),
        (MATMUL.replace("MatMul(x", "Gemm<transB=1>(m"), (5, 6), [5]),
        (MATMUL.replace("MatMul(x", "Gemm<transB=1>(m"), (4, 7), []),
        ("d = DequantizeLinear(w, s) t = Transpose(d) y = MatMul(x, t)", (5, 4), [5]),
    ],
)  # fmt: skip
def test_the_axis_that_a_target_packs(body: str, dims: tuple[int, ...], found: list[int]) -> None:
    data = {"w": np.ones(dims, S4), "s": F(1)}
    model = build(body, data, x="float[1,4,6,6] x, float[6,6] m")
    assert [d.numbers["length"] for d in find(model, "OQ401", target="ascend")] == found
    assert not find(model, "OQ401") and not find(model, "OQ401", target="ort-cpu"), "they pack over the whole tensor"
    eight = build(body, {**data, "w": np.ones(dims, S8)}, x="float[1,4,6,6] x, float[6,6] m")
    assert not find(eight, "OQ401", target="ascend")


@pytest.mark.parametrize(
    ("values", "fires"),
    [
        ([-8, 7], True), ([-8, 8], False), ([0, 1], True), ([3, 3], False), ([-128, 7], False),
        (np.array([0, 15], np.uint8), True), (np.array([0, 16], np.uint8), False),
    ],
)  # fmt: skip
def test_four_bits_in_eight(values: Any, fires: bool) -> None:
    row = np.asarray(values) if isinstance(values, np.ndarray) else np.array(values, S8)
    found = find(build(MATMUL, {"w": np.tile(row, (6, 2)), "s": F(1)}), "OQ402")
    assert [(d.place.node, d.severity) for d in found] == ([("d", Severity.INFO)] if fires else [])
    if fires:
        assert found[0].numbers == {"least": int(row[0]), "greatest": int(row[1]), "bytes": 24}
    native = build(MATMUL, {"w": np.tile(np.array([-8, 7], S4), (6, 2)), "s": F(1)})
    assert not find(native, "OQ402")


@pytest.mark.parametrize(
    ("kind", "count", "last", "used"),
    [
        (TensorProto.INT4, 3, 0x17, 4), (TensorProto.UINT4, 5, 0xF0, 4), (TensorProto.INT2, 1, 0x04, 2),
        (TensorProto.UINT2, 7, 0x40, 6), (TensorProto.FLOAT4E2M1, 1, 0x10, 4),
    ],
)  # fmt: skip
def test_padding(kind: int, count: int, last: int, used: int) -> None:
    bits = 2 if kind in (TensorProto.INT2, TensorProto.UINT2) else 4
    size = -(-count * bits // 8)
    model = build("y = Relu(x)", {"w": tensor(kind, [count], bytes(size - 1) + bytes([last]))}, ir=14)
    assert places(model, "OQ403") == ["w"] and numbers(model, "OQ403") == {"byte": last, "bits used": used}
    clean = build("y = Relu(x)", {"w": tensor(kind, [count], bytes(size - 1) + bytes([last & (1 << used) - 1]))}, ir=14)
    assert not find(clean, "OQ403")
    whole = build("y = Relu(x)", {"w": tensor(kind, [8], b"\xff" * bits)}, ir=14)
    assert not find(whole, "OQ403"), "eight values fill their bytes"


@pytest.mark.parametrize("columns", [3, 4, 5, 6, 8])
def test_two_bits(columns: int) -> None:
    rng = np.random.default_rng(columns)
    integers = rng.integers(-2, 2, (32, columns))
    data = {"w": integers.astype(ml_dtypes.int2), "s": F(0.5)}
    model = build(MATMUL, data, x="float[1,32] x", y=f"float[1,{columns}] y", opset=25, ir=13)
    found = find(model, "OQ404", target="ort-cpu")
    assert [d.numbers for d in found] == ([{"columns": columns}] if columns % 4 else [])
    assert not find(model, "OQ4"), "it is onnxruntime's trouble alone"
    x = rng.normal(size=(1, 32)).astype("f")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    off = np.abs(session.run(None, {"x": x})[0] - x @ (integers * 0.5)).max() / np.abs(x @ (integers * 0.5)).max()
    assert bool(off > 0.1) is bool(found), "the harm: other numbers, without a word"


@pytest.mark.parametrize(("kind", "bits"), [(TensorProto.INT4, 4), (TensorProto.UINT4, 4), (TensorProto.INT2, 2)])
@pytest.mark.parametrize("dims", [[3, 3], [4], [1], []])
def test_one_value_a_byte(kind: int, bits: int, dims: list[int]) -> None:
    count = math.prod(dims)
    needed = -(-count * bits // 8)
    right, long = (build("y = Relu(x)", {"w": tensor(kind, dims, bytes(n))}, ir=13) for n in (needed, needed + 1))
    assert not find(right, "OQ405")
    assert places(long, "OQ405") == ["w"] and numbers(long, "OQ405") == {"has": needed + 1, "needs": needed}
    assert not find(long, "OQ008"), "named once"


def test_the_harm_of_one_value_a_byte() -> None:
    model = build("y = DequantizeLinear(w, s)", {"w": tensor(TensorProto.INT4, [3, 3], bytes(9)), "s": F(1)},
                  y="float[3,3] y")  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    with pytest.raises(Exception, match="packed int4"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_typed_fields_are_not_raw() -> None:
    made = helper.make_tensor("w", TensorProto.INT4, [3], [1, 2, 3])
    assert not made.HasField("raw_data")
    model = build("y = Relu(x)", {"w": made})
    assert not find(model, "OQ405") and not find(model, "OQ403")
