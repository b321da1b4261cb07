"""8-bit float types, bit for bit as onnxruntime's kernels compute them."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxq.calibration.observers import Observation
from onnxq.numerics.affine import dequantize, fake_quantize, quantize
from onnxq.numerics.encodings import from_range, from_values
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, PerAxis, PerTensor, QType, TensorSpec
from onnxq.pairs import read_encoding
from onnxq.weights import as_tensor, onnx_dtype

Array = np.ndarray[Any, Any]
TYPES = [t for t in QTYPES.values() if t.is_float]
FLOATS = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}

pytestmark = pytest.mark.parametrize("qtype", TYPES, ids=str)


@cache
def kernels(qtype: QType, kind: type, scale: float) -> ort.InferenceSession:
    """``x -> Q -> q`` (cast to float, as numpy knows no float8 outputs) and ``x -> Q -> DQ -> y``."""
    zero = helper.make_tensor("z", int(onnx_dtype(qtype)), [], [0.0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["q"], to=TensorProto.FLOAT),
        helper.make_node("DequantizeLinear", ["i", "s", "z"], ["y"]),
    ]
    names = {"x": FLOATS[kind], "q": TensorProto.FLOAT, "y": FLOATS[kind]}
    values = {name: helper.make_tensor_value_info(name, t, [None]) for name, t in names.items()}
    factor = helper.make_tensor("s", FLOATS[kind], [], [scale])
    graph = helper.make_graph(nodes, "g", [values["x"]], [values["q"], values["y"]], [factor, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def numbers(qtype: QType) -> Array:
    """All finite numbers of the type, the middles between them and their neighbours, random bits, and what is left."""
    own = np.unique(np.arange(256, dtype=np.uint8).view(qtype.carrier).astype(np.float32))
    own = own[np.isfinite(own)]
    middle = ((own[1:].astype(np.float64) + own[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    edge = [qtype.largest * f for f in (1.0, 1.03, 1.07, 1.2)]
    odd = np.array([*edge, np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, 1e-40], np.float32)
    return np.concatenate([own, middle, *beside, bits, odd])


def encoding(qtype: QType, scale: float, kind: type = np.float32) -> Encoding:
    return Encoding(TensorSpec(qtype), np.asarray(scale, kind), np.asarray(0, qtype.carrier))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("scale", [1.0, 0.37])
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered in cast:RuntimeWarning")
def test_as_the_kernels_of_onnxruntime(qtype: QType, scale: float, kind: type) -> None:
    x, e = numbers(qtype).astype(kind), encoding(qtype, scale, kind)
    q, y = kernels(qtype, kind, scale).run(None, {"x": x})
    mine = quantize(x, e)
    assert mine.dtype == qtype.carrier
    for got, wanted in ((mine.astype(np.float32), q), (dequantize(mine, e, kind), y)):
        np.testing.assert_array_equal(got, wanted)
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(wanted[number]))


def test_ends(qtype: QType) -> None:
    e = encoding(qtype, 2.0)
    x = np.array([np.inf, -np.inf, 1e30, 2 * qtype.largest, np.nan], np.float32)
    q = quantize(x, e).astype(np.float32)
    np.testing.assert_array_equal(q, np.array([1, -1, 1, 1, np.nan], np.float32) * qtype.largest)
    assert (qtype.qmin, qtype.qmax) == (-qtype.largest, qtype.largest)
    assert float(ml_dtypes.finfo(qtype.carrier).max) == qtype.largest


def test_scale_covers_the_larger_end_and_zero_point_is_zero(qtype: QType) -> None:
    spec = TensorSpec(qtype, symmetric=False)
    assert spec.symmetric, "there is no other zero point"
    e = from_range(-1.0, 3.0, spec)
    assert e.scale == np.float32(3 / qtype.largest) and e.zero_point == 0 and e.zero_point.dtype == qtype.carrier
    assert fake_quantize(np.array([3.0, -1.0], np.float32), e).tolist() == pytest.approx([3.0, -1.0], rel=0.13)
    assert from_range(0, 0, spec).scale == 1


@pytest.mark.parametrize("granularity", [PerTensor(), PerAxis(1), Blocked(16, 0)], ids=str)
@pytest.mark.parametrize("method", ["minmax", "mse", "hqq"])
def test_weights(qtype: QType, granularity: Any, method: Any) -> None:
    """The relative error of every number is at most half a step, whatever its size."""
    w = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32) * np.float32([1e-3, 1, 2, 5, 100, 0])
    e = from_values(w, TensorSpec(qtype, True, granularity), method=method)
    full = from_values(w, TensorSpec(qtype, True, granularity))
    assert e.same(full), "every value is covered"
    y = fake_quantize(w, e)
    half = 2.0 ** -(ml_dtypes.finfo(qtype.carrier).nmant + 1)
    large = np.abs(w) > 0.02 * np.abs(w).max(axis=0)
    if not isinstance(granularity, PerTensor):
        assert (np.abs(y - w)[large] <= half * 1.001 * np.abs(w)[large]).all()
    assert (y[:, 5] == 0).all()


@pytest.mark.parametrize("method", ["minmax", "average", "percentile", "entropy", "mse", "auto"])
def test_ranges_cover_all_values(qtype: QType, method: Any) -> None:
    observer = Observation(method).observer()
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    observer.add(x, float(x.min()), float(x.max()))
    found = observer.range(TensorSpec(qtype))
    assert (found.lo, found.hi, found.size) == (x.min(), x.max(), 1000) and not found.candidates


def test_tensors(qtype: QType) -> None:
    tensor = as_tensor(np.array([1.5, -2.0], qtype.carrier), qtype)
    assert tensor.dtype == onnx_dtype(qtype) and tensor.nbytes == 2 and qtype.bits == 8 and qtype.since == 19
    assert QType.named(str(qtype).upper()) is qtype


def test_pairs_are_read_back(qtype: QType) -> None:
    e = from_range(-1.0, 3.0, TensorSpec(qtype))
    arrays = {"q": np.ones(4, qtype.carrier), "s": e.scale, "z": e.zero_point}
    parts = [ir.Value(name=name, const_value=ir.Tensor(array)) for name, array in arrays.items()]
    node = ir.node("DequantizeLinear", parts)
    for value in parts:
        value.dtype = value.const_value.dtype
    ir.Graph([], node.outputs, nodes=[node], initializers=parts)
    found = read_encoding(node, (4,))
    assert isinstance(found, Encoding) and found.same(e)
