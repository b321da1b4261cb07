"""OQ003, OQ008, OQ009: versions and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.rules.lab import build, find, numbers, places


def tensor(kind: int, dims: list[int], **fields: Any) -> TensorProto:
    return TensorProto(data_type=kind, dims=dims, **fields)


def test_imports() -> None:
    model = build("q = com.microsoft.QuantizeLinear(x, s) r = com.microsoft.QuantizeLinear(x, s) y = Relu(x)",
                  {"s": np.float32(1)})  # fmt: skip
    (found,) = find(model, "OQ003")
    assert found.place.node == "q" and found.numbers == {"nodes": 2} and "com.microsoft" in found.help
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # which fills it in, in silence
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    model.opset_import.add(domain="com.microsoft", version=1)
    assert not find(model, "OQ003")


def test_versions_that_are_not_there() -> None:
    model = build("y = Relu(x)")
    model.ClearField("ir_version")
    assert "no IR version" in find(model, "OQ003")[0].message
    bare = build("y = Relu(x)")
    del bare.opset_import[:]
    assert "no opset import" in find(bare, "OQ003")[0].message
    zero = build("y = Relu(x)")
    zero.opset_import[0].version = 0
    assert "as version 0" in find(zero, "OQ003")[0].message


def test_functions_import_for_themselves() -> None:
    function = '<domain: "local", opset_import: ["other" : 1]> op (a) => (b) { b = Relu(a) }'
    (found,) = find(build("y = local.op(x)", imports=', "local" : 1', functions=function), "OQ003")
    assert (found.place.graph, found.place.node) == ("local::op", "b")


KINDS = [t for t in TensorProto.DataType.values() if t not in (0, TensorProto.STRING)]


@pytest.mark.parametrize("kind", KINDS, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("dims", [[], [3], [2, 3], [0]])
def test_raw_data_of_each_type(kind: int, dims: list[int]) -> None:
    name = TensorProto.DataType.Name(kind)
    array = np.zeros(dims, helper.tensor_dtype_to_np_dtype(kind))
    right = numpy_helper.from_array(array) if not name.startswith("FLOAT6") else None
    size = len(right.raw_data) if right is not None else -(-6 * array.size // 8)
    assert not find(build("y = Relu(x)", {"w": tensor(kind, dims, raw_data=bytes(size))}), "OQ008")
    long = find(build("y = Relu(x)", {"w": tensor(kind, dims, raw_data=bytes(size + 1))}), "OQ008")
    if name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2"):
        assert not long, "those are OQ405"
    elif not name.startswith("FLOAT6"):
        assert [d.numbers for d in long] == [{"has": size + 1, "needs": size}]
    if size:
        short = build("y = Relu(x)", {"w": tensor(kind, dims, raw_data=bytes(size - 1))})
        assert places(short, "OQ008") == ["w"] and numbers(short, "OQ008") == {"has": size - 1, "needs": size}
        assert "no data" in find(build("y = Relu(x)", {"w": tensor(kind, dims)}), "OQ008")[0].message


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.FLOAT, [1, 2, 3]), (TensorProto.DOUBLE, [1, 2, 3]), (TensorProto.INT64, [1, 2, 3]),
        (TensorProto.INT8, [1, 2, 3]), (TensorProto.UINT32, [1, 2, 3]), (TensorProto.UINT64, [1, 2, 3]),
        (TensorProto.BOOL, [True, False, True]), (TensorProto.FLOAT16, [1, 2, 3]), (TensorProto.INT4, [1, 2, 3]),
        (TensorProto.COMPLEX64, [1j, 2, 3]), (TensorProto.STRING, ["a", "b", "c"]),
    ],
)  # fmt: skip
def test_typed_data(kind: int, values: Any) -> None:
    made = helper.make_tensor("w", kind, [3], values)
    assert not made.HasField("raw_data") and not find(build("y = Relu(x)", {"w": made}), "OQ008")
    other = TensorProto.FromString(made.SerializeToString())
    other.dims[0] = 7
    assert places(build("y = Relu(x)", {"w": other}), "OQ008") == ["w"]
    wrong = tensor(TensorProto.FLOAT, [1], int32_data=[1])
    assert "no data" in find(build("y = Relu(x)", {"w": wrong}), "OQ008")[0].message, "in the field of another type"


def test_types_and_dimensions_that_are_none() -> None:
    odd = {
        "a": tensor(0, [1], raw_data=b"1234"),
        "b": tensor(77, [1], raw_data=b"1"),
        "c": tensor(1, [-1], raw_data=b""),
    }
    found = {d.place.value: d.message for d in find(build("y = Relu(x)", odd), "OQ008")}
    assert "no element type" in found["a"] and "77" in found["b"] and "negative" in found["c"]


def test_tensors_of_nodes() -> None:
    model = build("k = Constant<value = float[2] {1, 2}>() y = Add(x, k)")
    model.graph.node[0].attribute[0].t.float_data.append(3)
    (found,) = find(model, "OQ008")
    assert found.place.node == "k" and found.numbers == {"has": 3, "needs": 2}


def test_the_harm_of_a_byte_too_many() -> None:
    model = build("y = DequantizeLinear(w, s)", {"w": tensor(TensorProto.INT8, [3], raw_data=bytes(4)),
                                                "s": np.float32(1)}, y="float[3] y")  # fmt: skip
    assert numbers(model, "OQ008") == {"has": 4, "needs": 3}
    onnx.checker.check_model(model, full_check=True)
    with pytest.raises(Exception, match="w"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def external(tmp_path: Path, size: int = 12, **entries: str) -> Path:
    weight = tensor(TensorProto.FLOAT, [3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        weight.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(bytes(size))
    path = tmp_path / "m.onnx"
    path.write_bytes(build("y = Mul(x, w)", {"w": weight}, x="float[3] x").SerializeToString())
    return path


@pytest.mark.parametrize(
    ("size", "entries", "why"),
    [
        (12, {}, ""), (16, {"offset": "4"}, ""), (12, {"length": "12"}, ""), (11, {}, "truncated"),
        (12, {"offset": "4"}, "truncated"), (12, {"length": "8"}, "need 12"), (12, {"offset": "many"}, "no number"),
        (12, {"location": "../w.bin"}, "outside"), (12, {"location": "/etc/hosts"}, "outside"),
        (12, {"location": "none.bin"}, "cannot be read"), (12, {"location": ""}, "location"),
    ],
)  # fmt: skip
def test_external_data(size: int, entries: dict[str, str], why: str, tmp_path: Path) -> None:
    found = find(external(tmp_path, size, **entries), "OQ009")
    assert [d.place.value for d in found] == (["w"] if why else [])
    assert all(why in d.message for d in found), [d.message for d in found]


def test_external_data_of_a_message(tmp_path: Path) -> None:
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    assert not find(model, "OQ009")
    model.graph.initializer[0].external_data[0].value = "../w.bin"
    assert places(model, "OQ009") == ["w"], "that is wrong wherever it lies"


def test_a_file_that_is_gone_is_one_finding(tmp_path: Path) -> None:
    model = build("a = Mul(x, v) y = Mul(a, w)", {"v": np.ones(3, "f"), "w": np.ones(3, "f")}, x="float[3] x")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    assert len(find(tmp_path / "m.onnx", "OQ009")) == 1


def test_types_of_ml_dtypes_are_met() -> None:
    assert not find(build("y = Relu(x)", {"w": np.zeros(3, ml_dtypes.int4)}), "OQ008")
