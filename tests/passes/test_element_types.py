"""Models of other element types and opsets through all passes: what is quantized loads and is right, the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, NotImplemented

RNG = np.random.default_rng(0)
KERNELS = {"k": (RNG.standard_normal((16, 4, 4, 4)) * 0.2), "b": RNG.standard_normal(16) * 0.2,
           "k2": (RNG.standard_normal((8, 16, 1, 1)) * 0.2)}  # fmt: skip
BODY = "c = Conv(x, k, b) r = Relu(c) m = MaxPool<kernel_shape=[2,2]>(r) y = Conv(m, k2)"


def conv_net(dtype: str, numpy_type: Any) -> onnx.ModelProto:
    opset = 22 if dtype == "bfloat16" else 17
    signature = f"({dtype}[1,4,8,8] x) => ({dtype}[d0,d1,d2,d3] y)"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {signature} {{ {BODY} }}')
    for name, array in KERNELS.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(numpy_type), name))
    return proto


def test_half_floats_for_the_specification(
    quantized: Callable[..., Any], fused: Callable[..., Any], close: Callable[..., None]
) -> None:
    """Scales are float16 as the data are, those of biases too, and onnxruntime loads and runs it on both sessions."""
    made = quantized(conv_net("float16", np.float16), target="onnx")
    found = made.initializers()
    assert {found[k].dtype for k in found if k.endswith("_scale")} == {np.dtype(np.float16)}
    assert found["b_quantized"].dtype == np.int32 and found["k_quantized"].dtype == np.int8
    assert made.count("QuantizeLinear") == 4 and made.status("MaxPool_m") == "moves/moves"
    assert fused(made.proto)
    close(made)


def test_half_float_matmuls(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float16[6,64] x) => (float16[a,b] y) {
      c = MatMul(x, w) d = Add(c, b) r = Tanh(d) y = Gemm<transB=1, alpha=0.5>(r, v, b2) }"""
    weights = {"w": (64, 64), "b": (64,), "v": (4, 64), "b2": (4,)}
    made = quantized(
        text, {k: RNG.standard_normal(s).astype(np.float16) * 0.1 for k, s in weights.items()}, target="onnx"
    )
    assert made.status("MatMul_c") == "integer/layer", "DynamicQuantizeLinear takes float32 only"
    close(made)


@pytest.mark.parametrize(
    ("dtype", "numpy_type"), [("float16", np.float16), ("double", np.float64), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_types_without_kernels_stay(dtype: str, numpy_type: Any, quantized: Callable[..., Any]) -> None:
    """Not even calibrated: onnxruntime has no kernels for two of them."""
    made = quantized(conv_net(dtype, numpy_type), feeds=[{"x": np.zeros((1, 4, 8, 8), numpy_type)}])
    assert made.ops() == ["Conv", "Relu", "MaxPool", "Conv"] and "nothing-to-quantize" in made.codes()
    kind = onnx.TensorProto.DataType.Value({"double": "DOUBLE"}.get(dtype, dtype.upper()))
    assert {t.data_type for t in made.proto.graph.initializer} == {kind}
    assert made.plan["nodes"]["Conv_c"]["reason"] == f"ort-cpu has no integer kernel for {dtype} data"


def test_float_islands_in_a_half_float_model(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float16[1,4,8,8] x, int64[2] n, bool[2] f, string[2] s)
    => (float16[d0,d1,d2,d3] y, int64[a] m, bool[b] g, string[c] t) {
      h = Exp(x) u = Cast<to=1>(h) c = Conv(u, k, b) r = Relu(c) v = Conv(r, k2) z = Cast<to=10>(v) y = Sqrt(z)
      m = Add(n, n) g = Not(f) t = Concat<axis=0>(s, s) }"""
    proto = parser.parse_model(text.replace("Sqrt(z)", "Tanh(z)"))
    for name, array in KERNELS.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    feeds = [
        {
            "x": RNG.standard_normal((1, 4, 8, 8)).astype(np.float16),
            "n": np.array([1, 2]),
            "f": np.array([True, False]),
            "s": np.array(["a", "b"], object),
        }
        for _ in range(2)
    ]
    made = quantized(proto, feeds=feeds)
    assert made.status("Conv_c") == "integer/layer" and made.status("Exp_h") == "float/no-integer-kernel"
    assert made.status("Add_m") == made.status("Concat_t") == "float/data-type"
    del made.float_proto.graph.output[1:], made.proto.graph.output[1:]
    made.feeds[0].pop("s")
    for proto in (made.float_proto, made.proto):
        kept = [n for n in proto.graph.node if n.output[0] not in ("m", "g", "t")]
        del proto.graph.node[:]
        proto.graph.node.extend(kept)
        del proto.graph.input[3]
    close(made, 0.1)


@pytest.mark.parametrize("activations", ["uint8", "uint16", "int16"])
@pytest.mark.parametrize("weights", ["int8", "uint8", "int16", "int4", "uint4"])
def test_integer_types(activations: str, weights: str, quantized: Callable[..., Any], close: Any) -> None:
    """All types the target takes load in both sessions; 4 bits are coarse."""
    made = quantized(conv_net("float", np.float32), activations=activations, weights=weights)
    types = {t.name: onnx.TensorProto.DataType.Name(t.data_type).lower() for t in made.proto.graph.initializer}
    assert types["k_quantized"] == types["k_zero_point"] == weights and types["r_zero_point"] == activations
    assert types["b_quantized"] == "int32"
    packed = next(t for t in made.proto.graph.initializer if t.name == "k_quantized")
    assert (
        list(packed.dims) == [16, 4, 4, 4] and len(packed.raw_data) == 1024 * {"4": 1, "8": 2, "6": 4}[weights[-1]] // 2
    )
    close(made, 0.25 if "4" in weights else 0.02, gap=0.02)


@cache
def runs_pairs(opset: int) -> bool:
    """Whether the installed onnxruntime has Q/DQ kernels of an opset; the one for Python 3.10 stops at 22."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float x) => (float y)
    <float s = {{1.0}}, uint8 z = {{0}}> {{
      q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"""
    try:
        ort.InferenceSession(parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"])
    except (Fail, NotImplemented):
        return False
    return True


@pytest.mark.parametrize("opset", [7, 11, 13, 17, 20, 21, 22, 23, 25, 27])
def test_opsets(opset: int, quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """Old models come to opset 21, newer ones stay where they are."""
    if not runs_pairs(max(opset, 21)):
        pytest.skip(f"the installed onnxruntime has no pairs of opset {opset}")
    text = f"""<ir_version: {8 if opset < 19 else 10}, opset_import: ["" : {opset}]>
    g (float[1,4,8,8] x) => (float[a,b] y) {{
      c = Conv(x, k, b) r = Relu(c) m = MaxPool<kernel_shape=[5,5]>(r) d = Conv(m, k2) f = Flatten(d)
      e = MatMul(f, w) n = Add(e, v) y = Softmax<axis=1>(n) }}"""
    weights = {k: a.astype(np.float32) for k, a in KERNELS.items()}
    weights |= {"w": RNG.standard_normal((8, 4)).astype(np.float32), "v": np.ones(4, np.float32)}
    made = quantized(text, weights)
    assert made.proto.opset_import[0].version == max(opset, 21) and made.proto.ir_version >= 10
    ran = fused(made.proto)
    assert ran.count("QLinearConv") == 2 and "QGemm" in ran and "Conv" not in ran
    close(made)
