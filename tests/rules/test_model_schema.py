"""OQ010, OQ011, OQ014, OQ017, OQ020, OQ022: what the file says about itself."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxq.diagnostics import Severity
from tests.rules.lab import build, find, in_branch, places


def declared(model: onnx.ModelProto, name: str, kind: int, shape: list[Any] | None) -> onnx.ModelProto:
    model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    return model


@pytest.mark.parametrize(
    ("kind", "shape", "severity"),
    [
        (TensorProto.FLOAT, [1, 4, 6, 6], None), (TensorProto.FLOAT, ["N", 4, 6, 6], None),
        (TensorProto.FLOAT, None, None),
        (TensorProto.FLOAT, [1, 4, 6, 7], Severity.WARNING), (TensorProto.FLOAT, [24, 6], Severity.WARNING),
        (TensorProto.INT8, [1, 4, 6, 6], Severity.ERROR),
    ],
)  # fmt: skip
def test_declared_types(kind: int, shape: list[Any] | None, severity: Severity | None) -> None:
    found = find(declared(build("a = Relu(x) y = Neg(a)"), "a", kind, shape), "OQ010")
    assert [(d.place.node, d.place.value, d.severity) for d in found] == ([("a", "a", severity)] if severity else [])
    assert all(d.fix == "infer-shapes" for d in found)


def test_outputs_bodies_and_what_nothing_is_known_of() -> None:
    assert places(build("y = Relu(x)", y="float[3] y"), "OQ010") == ["y"]
    inner = build(in_branch("p = Relu(x)", "p"))
    inner.graph.node[2].attribute[0].g.value_info.append(helper.make_tensor_value_info("p", 1, [7]))
    assert [(d.place.graph, d.place.node) for d in find(inner, "OQ010")] == [("y/then_branch", "p")]
    unknown = build("a = local.own(x) y = Neg(a)", imports=', "local" : 1')
    assert not find(declared(unknown, "a", TensorProto.INT8, [3]), "OQ010")


def test_the_harm_of_a_wrong_type() -> None:
    model = declared(build("a = Relu(x) y = Neg(a)", y="float[1,4,6,6] y"), "a", TensorProto.INT8, [1, 4, 6, 6])
    onnx.checker.check_model(model)
    with pytest.raises(Exception, match="Type Error"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_value_info_of_nothing() -> None:
    assert places(declared(build("y = Relu(x)"), "gone", 1, [1]), "OQ022") == ["gone"]
    assert not find(declared(build("a = Relu(x) y = Neg(a)"), "a", 1, [1, 4, 6, 6]), "OQ022")


def test_imports() -> None:
    model = build("y = Relu(x)", imports=', "com.microsoft" : 1')
    (found,) = find(model, "OQ011")
    assert (
        found.severity is Severity.WARNING and found.fix == "drop-unused-imports" and "com.microsoft" in found.message
    )
    used = build(in_branch("p = com.microsoft.Gelu(x)", "p"), imports=', "com.microsoft" : 1')
    assert not find(used, "OQ011")
    model = build("y = Relu(x)")
    model.opset_import.add(domain="", version=21)
    assert [d.severity for d in find(model, "OQ011")] == [Severity.WARNING]
    model.opset_import[1].version = 20
    (found,) = find(model, "OQ011")
    assert found.severity is Severity.ERROR and "21, 20" in found.message
    function = '<domain: "local", opset_import: ["" : 21]> op (a) => (b) { b = Relu(a) }'
    assert not find(build("y = local.op(x)", imports=', "local" : 1', functions=function), "OQ011")


def test_parts_that_tools_drop() -> None:
    model = build("y = Relu(x)")
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [2]))
    model.training_info.add()
    assert [d.place.value for d in find(model, "OQ014")] == ["w", ""]
    assert not find(build("y = Relu(x)", {"w": np.float32(1)}), "OQ014")


def test_constants_that_are_inputs() -> None:
    text = {"x": "float[1,4,6,6] x, float s"}
    model = build("y = Mul(x, s)", {"s": np.float32(1)}, **text)
    (found,) = find(model, "OQ017")
    assert found.place.value == "s" and (found.fix, found.safe) == ("freeze-defaults", False)
    assert not find(build("y = Mul(x, s)", {"s": np.float32(1)}), "OQ017")
    assert not find(build("y = Mul(x, s)", {"s": np.float32(1)}, ir=3, **text), "OQ017"), "it had to be one"


@pytest.mark.parametrize(
    ("dtype", "needs"),
    [
        (np.float32, 0), (ml_dtypes.float8_e4m3fn, 9), (ml_dtypes.int4, 10), (ml_dtypes.float4_e2m1fn, 11),
        (ml_dtypes.uint2, 13),
    ],
)  # fmt: skip
def test_ir_versions(dtype: Any, needs: int) -> None:
    for version in (8, 9, 10, 11, 13):
        found = find(build("y = Relu(x)", {"w": np.zeros(2, dtype)}, ir=version), "OQ020")
        assert [d.numbers for d in found] == ([{"has": version, "needs": needs}] if version < needs else [])
        assert all((d.place.value, d.fix) == ("w", "fit-versions") for d in found)
