"""Integer copies of weights: lazy, packed when written, behind a Transpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq import border
from onnxq.numerics.affine import quantize
from onnxq.numerics.encodings import from_values
from onnxq.numerics.packing import pack
from onnxq.numerics.spec import Blocked, PerAxis, PerTensor, QType, TensorSpec
from onnxq.weights import quantized_bias, quantized_weight, weight_tensor

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def model(body: str, array: Array) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g (float[2,4] x) => (y) {{ {body} }}')
    proto.graph.initializer.append(numpy_helper.from_array(array, "w"))
    return ir.from_proto(proto)


@pytest.mark.parametrize("perm", [None, [2, 0, 1], [0, 2, 1]])
def test_behind_a_transpose(perm: list[int] | None) -> None:
    array = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    given = "" if perm is None else f"<perm = {perm}>"
    made = model(f"t = Transpose{given}(w) y = Add(x, t)", array)
    tensor = weight_tensor(made.graph[0].outputs[0])
    assert isinstance(tensor, ir.LazyTensor)
    wanted = array.transpose(perm)
    assert tuple(tensor.shape) == wanted.shape
    np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_what_is_no_constant() -> None:
    made = model("t = Transpose(x) y = MatMul(t, w)", RNG.standard_normal((2, 4)).astype(np.float32))
    assert weight_tensor(made.graph[0].outputs[0]) is None and weight_tensor(made.graph.inputs[0]) is None
    assert weight_tensor(None) is None and weight_tensor(made.graph[1].outputs[0]) is None


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int4", "uint4", "int2"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantized_when_it_is_written(kind: str, axis: int | None) -> None:
    """Lazy, of the ONNX type, the right integers, and packed in the message: two to four values a byte."""
    array = RNG.standard_normal((3, 5)).astype(np.float32)
    made = model("y = MatMul(x, w)", array)
    qtype = QType.named(kind)
    spec = TensorSpec(qtype, qtype.signed, PerTensor() if axis is None else PerAxis(axis))
    encoding = from_values(array, spec)
    tensor = quantized_weight(made.graph.initializers["w"], encoding)
    assert isinstance(tensor, ir.LazyTensor) and tensor.dtype == ir.DataType[kind.upper()]
    assert tensor.shape == ir.Shape([3, 5])
    np.testing.assert_array_equal(tensor.numpy().astype(int), quantize(array, encoding))
    assert len(tensor.tobytes()) == -(-15 * qtype.bits // 8)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_packed_once(kind: str, external: bool, chosen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From floats to the file: packed by our own routine, neither unpacked nor packed again on the way."""
    array = RNG.standard_normal((65, 67)).astype(np.float32)
    made = model("y = MatMul(x, w)", array)
    qtype = QType.named(kind)
    encoding = from_values(array, TensorSpec(qtype, qtype.signed, Blocked(32, 0)))
    wanted = quantize(array, encoding)
    if chosen:
        encoding = replace(encoding, integers=wanted)
    value = made.graph.initializers["w"]
    tensor = quantized_weight(value, encoding)
    assert isinstance(tensor, ir.LazyTensor) and isinstance(tensor.raw(), ir.PackedTensor)
    made.graph.initializers["q"] = ir.Value(name="q", const_value=tensor, type=ir.TensorType(tensor.dtype))

    def refuse(*args: Any) -> Array:
        raise AssertionError("unpacked")

    with monkeypatch.context() as patch:
        patch.setattr(ir.PackedTensor, "numpy", refuse)
        border.save(made, tmp_path / "m.onnx", external_data=external)
    (record,) = [t for t in onnx.load(tmp_path / "m.onnx").graph.initializer if t.name == "q"]
    assert record.raw_data == pack(wanted, qtype).tobytes()
    np.testing.assert_array_equal(numpy_helper.to_array(record).astype(int), wanted.astype(int))


def test_integers_that_were_chosen_are_taken() -> None:
    array = RNG.standard_normal((3, 5)).astype(np.float32)
    made = model("y = MatMul(x, w)", array)
    encoding = from_values(array, TensorSpec(QType.named("int4"), True))
    chosen = RNG.integers(-8, 8, (3, 5)).astype(np.int8)
    tensor = quantized_weight(made.graph.initializers["w"], replace(encoding, integers=chosen))
    np.testing.assert_array_equal(tensor.numpy().astype(int), chosen)
    assert tensor.dtype == ir.DataType.INT4


def test_bias_has_all_its_digits() -> None:
    """int32 needs float64: float32 would be off by up to 64 steps."""
    bias = np.array([1.0, -0.987654321, 0.3])
    spec = TensorSpec(QType.named("int32"), True, PerAxis(0))
    encoding = replace(from_values(bias.astype("f4"), TensorSpec(QType.named("int8"), True, PerAxis(0))), spec=spec)
    encoding = replace(encoding, scale=np.full(3, 1e-9, np.float32), zero_point=np.zeros(3, np.int32))
    got = quantized_bias(bias, encoding).numpy()
    np.testing.assert_array_equal(got, np.rint(bias / np.float64(np.float32(1e-9))).astype(np.int32))
