"""Quantize and dequantize equal onnxruntime's kernels bit for bit."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper as oh

from onnxq.errors import OptionError
from onnxq.numerics.affine import dequantize, fake_quantize, quantize
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, PerAxis, PerTensor, TensorSpec
from onnxq.numerics.tiles import scale_shape

ODD = np.array(
    [0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-30, 3.4e38, -3.4e38, 1e30, 3e9, -3e9, 2**31, 126.5, 127.5, 254.5, 255.5]
)


def run_ort(op, x, encoding, qtype):
    """One QuantizeLinear (x float) or Q-DQ chain in onnxruntime, optimizations off."""
    element = getattr(onnx.TensorProto, qtype.upper())
    float_type = oh.np_dtype_to_tensor_dtype(x.dtype)
    attributes = {} if encoding.axis is None else {"axis": encoding.axis}
    if encoding.block_size:
        attributes["block_size"] = encoding.block_size
    inits = [onnx.numpy_helper.from_array(encoding.scale, "s")]
    inits.append(oh.make_tensor("z", element, encoding.zero_point.shape, encoding.zero_point.ravel().tolist()))
    nodes = [oh.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes)]
    if op == "qdq":
        nodes.append(oh.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes))
    else:
        nodes.append(oh.make_node("Cast", ["q"], ["y"], to=onnx.TensorProto.INT32))
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", float_type, list(x.shape))],
        [oh.make_tensor_value_info("y", float_type if op == "qdq" else onnx.TensorProto.INT32, list(x.shape))],
        inits,
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 25)], ir_version=13)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.fixture
def new_kernels(runs_opset):
    """Older kernels of onnxruntime divide float16 in float16 and wrap huge values in blocks."""
    if not runs_opset(25):
        pytest.skip("this onnxruntime does not run opset 25")


def an_encoding(rng, shape, qtype, granularity, dtype=np.float32):
    t = QTYPES[qtype]
    size = scale_shape(shape, granularity)
    scale = np.exp(rng.uniform(-6, 2, size)).astype(dtype)
    zero = rng.integers(t.qmin, t.qmax, size, endpoint=True).astype(t.carrier)
    return Encoding(TensorSpec(t, False, granularity), np.asarray(scale), np.asarray(zero))


GRANULARITIES = [PerTensor(), PerAxis(0), PerAxis(1), PerAxis(2), Blocked(4, 0), Blocked(5, 1), Blocked(3, 2)]


@pytest.mark.usefixtures("new_kernels")
@pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
@pytest.mark.parametrize("qtype", ["uint8", "int8", "uint16", "int16", "int4", "uint4"])
def test_equals_onnxruntime(qtype, granularity):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((7, 11, 6)) * 40).astype(np.float32)
    x.flat[: ODD.size] = ODD
    x.flat[60:64] = [np.inf, -np.inf, np.nan, np.nan]
    encoding = an_encoding(rng, x.shape, qtype, granularity)
    q = quantize(x, encoding)
    assert q.dtype == QTYPES[qtype].carrier
    np.testing.assert_array_equal(q, run_ort("q", x, encoding, qtype))
    np.testing.assert_array_equal(fake_quantize(x, encoding), run_ort("qdq", x, encoding, qtype))


@pytest.mark.usefixtures("new_kernels")
@pytest.mark.parametrize("qtype", ["int2", "uint2"])
def test_two_bits_equal_onnxruntime(qtype):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 9)).astype(np.float32)
    encoding = an_encoding(rng, x.shape, qtype, PerAxis(1))
    np.testing.assert_array_equal(fake_quantize(x, encoding), run_ort("qdq", x, encoding, qtype))


@pytest.mark.usefixtures("new_kernels")
@pytest.mark.parametrize("qtype", ["uint8", "int8", "uint16", "int16"])
def test_float16_equals_onnxruntime(qtype):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((40, 50)) * 30).astype(np.float16)
    x.flat[:4] = [np.inf, -np.inf, np.nan, 65504]
    encoding = an_encoding(rng, x.shape, qtype, PerAxis(0), np.float16)
    np.testing.assert_array_equal(quantize(x, encoding), run_ort("q", x, encoding, qtype))
    ours = fake_quantize(x, encoding, np.float16)
    assert ours.dtype == np.float16
    np.testing.assert_array_equal(ours, run_ort("qdq", x, encoding, qtype))


@pytest.mark.usefixtures("new_kernels")
def test_true_division_and_rounding_before_the_zero_point():
    """Multiplying by the reciprocal, or rounding after adding an odd zero point, differs from onnxruntime here."""
    rng = np.random.default_rng(6)
    scale = np.float32(0.1)
    x = np.concatenate([(np.arange(-300, 300) + 0.5) * np.float64(scale), rng.uniform(-20, 20, 200_000)]).astype("f4")
    encoding = Encoding(TensorSpec(QTYPES["uint16"]), np.asarray(scale), np.asarray(101, np.uint16))
    ours = quantize(x, encoding)
    np.testing.assert_array_equal(ours, run_ort("q", x, encoding, "uint16"))
    assert np.any(np.clip(np.rint(x / scale + 101), 0, 65535) != ours)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_dequantize_undoes_quantize_within_half_a_step(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    size = data.draw(st.integers(1, 9))
    granularity = data.draw(st.sampled_from([PerTensor(), PerAxis(axis), Blocked(size, axis)]))
    t = QTYPES[data.draw(st.sampled_from(sorted(name for name, t in QTYPES.items() if not t.is_float)))]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scale = np.asarray(10 ** rng.uniform(-10, 10, scale_shape(shape, granularity)), np.float32)
    zero = (
        np.asarray(rng.integers(t.qmin, t.qmax, scale.shape, endpoint=True)) if t.bits < 32 else np.zeros(scale.shape)
    )
    encoding = Encoding(TensorSpec(t, False, granularity), scale, zero.astype(t.carrier))
    full = scale
    if isinstance(granularity, PerAxis):
        full = scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    elif isinstance(granularity, Blocked):
        full = np.repeat(scale, size, axis)[tuple(slice(0, n) for n in shape)]
    q = rng.integers(t.qmin, t.qmax, shape, endpoint=True).astype(t.carrier)
    x = dequantize(q, encoding, np.float64)
    np.testing.assert_allclose(x / full, q - _spread(zero, granularity, shape), rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(quantize(x, encoding).astype(np.int64) - q)) <= (0 if t.bits < 32 else 1)


def _spread(zero, granularity, shape):
    if isinstance(granularity, PerAxis):
        return zero.reshape([-1 if i == granularity.axis else 1 for i in range(len(shape))]).astype(np.float64)
    if isinstance(granularity, Blocked):
        return np.repeat(zero, granularity.size, granularity.axis)[tuple(slice(0, n) for n in shape)].astype(np.float64)
    return np.float64(zero)


def test_blocks_are_runs_along_the_axis():
    spec = TensorSpec(QTYPES["int8"], True, Blocked(2, 1))
    encoding = Encoding(spec, np.array([[1, 10, 100, 1000]], np.float32), np.zeros((1, 4), np.int8))
    q = np.arange(1, 8, dtype=np.int8).reshape(1, 7)
    assert dequantize(q, encoding).tolist() == [[1, 2, 30, 40, 500, 600, 7000]]


def test_int32_keeps_every_bit():
    encoding = Encoding(TensorSpec(QTYPES["int32"], True), np.asarray(1e-6, np.float32), np.asarray(0, np.int32))
    b = np.array([0.1234567891, -2000.0000005, 1e30, -1e30, 2147.0])
    exact = np.clip(np.rint(b / np.float64(np.float32(1e-6))), -(2**31), 2**31 - 1)
    assert quantize(b, encoding).tolist() == exact.tolist()


def test_empty_and_shared_scalar_shapes():
    encoding = Encoding(TensorSpec(QTYPES["uint8"]), np.array([0.5], np.float32), np.array([3], np.uint8))
    assert quantize(np.zeros((0, 4), np.float32), encoding).shape == (0, 4)
    assert quantize(np.float32([[1.0]]), encoding).tolist() == [[5]]
    assert quantize(np.asarray(1.0, np.float32), encoding).shape == ()


@pytest.mark.parametrize(
    ("granularity", "shape", "message"),
    [
        (PerAxis(None), (3,), "not resolved"),
        (PerAxis(2), (3,), "outside a tensor of rank 2"),
        (Blocked(0, 1), (3,), "at least one value"),
        (PerAxis(1), (3,), r"needs scales of shape \(4,\), got \(3,\)"),
        (Blocked(3, 1), (3, 1), r"needs scales of shape \(3, 2\), got \(3, 1\)"),
    ],
)
def test_misfits_are_named(granularity, shape, message):
    encoding = Encoding(
        TensorSpec(QTYPES["int8"], True, granularity), np.ones(shape, np.float32), np.zeros(shape, np.int8)
    )
    with pytest.raises(OptionError, match=message):
        quantize(np.zeros((3, 4), np.float32), encoding)
