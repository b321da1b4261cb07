"""to-matmulnbits: the same weights bit for bit, the same product; what stays says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq.passes.from_matmulnbits import FromMatmulnbits
from onnxq.passes.to_matmulnbits import ToMatmulnbits

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 13, opset_import: ["" : 25]>'
BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


def integers(qtype: str, *shape: int) -> Array:
    """All integers of a type, one a byte."""
    bits, signed = BITS[qtype], qtype.startswith("i")
    low = -(1 << bits - 1) if signed else 0
    return RNG.integers(low, low + (1 << bits), shape).astype(np.int8 if signed else np.uint8)


def stored(name: str, values: Array, qtype: str) -> onnx.TensorProto:
    """Integers as an initializer of a type."""
    if BITS[qtype] == 8:
        return numpy_helper.from_array(values, name)
    return numpy_helper.from_array(values.astype(getattr(ml_dtypes, qtype)), name)


class Layer:
    """``DequantizeLinear -> op`` with random integers, scales and zero points.

    ``form`` is a block size along axis 0, ``channel`` or ``tensor``.
    """

    def __init__(
        self, qtype: str = "int4", form: int | str = 32, shape: tuple[int, int] = (64, 24), zero: bool = True,
        body: str = "y = MatMul(x, w)", dtype: type = np.float32, attributes: str | None = None,
    ) -> None:  # fmt: skip
        rows, columns = shape
        dims: tuple[int, ...] = {"channel": (columns,), "tensor": ()}.get(form, ())  # type: ignore[arg-type]
        if isinstance(form, int):
            dims = (-(-rows // form), columns)
        self.q, self.scale = integers(qtype, *shape), (RNG.random(dims) + 0.5).astype(dtype)
        self.zero = integers(qtype, *dims) if zero else np.zeros(dims, self.q.dtype)
        given = {"channel": "<axis=1>", "tensor": ""}.get(form, f"<axis=0, block_size={form}>")  # type: ignore[arg-type]
        kind = "float" if dtype == np.float32 else "float16"
        text = f"""{HEAD} g ({kind}[m,{rows}] x) => ({kind}[m,n] y) {{
            w = DequantizeLinear {given if attributes is None else attributes} (q, s, z) {body} }}"""
        self.proto = parser.parse_model(text)
        named = (stored("q", self.q, qtype), numpy_helper.from_array(self.scale, "s"), stored("z", self.zero, qtype))
        self.proto.graph.initializer.extend(named)

    def add(self, **constants: Array) -> Layer:
        self.proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
        return self

    @property
    def weight(self) -> Array:
        """What ONNX says the DequantizeLinear makes."""
        rows = self.q.shape[0]
        scale, zero = self.scale.astype(np.float32), self.zero.astype(np.float32)
        if scale.ndim == 2:
            size = {g.name: g.i for g in self.proto.graph.node[0].attribute}["block_size"]
            scale, zero = (np.repeat(p, size, axis=0)[:rows] for p in (scale, zero))
        return np.asarray((self.q.astype(np.float32) - zero) * scale).astype(self.scale.dtype)


def attributes(node: onnx.NodeProto) -> dict[str, int]:
    return {a.name: a.i for a in node.attribute}


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("form", [16, 32, 128, "channel", "tensor"])
@pytest.mark.parametrize("qtype", BITS)
def test_weights_and_products(
    qtype: str, form: int | str, zero: bool, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """A unit matrix brings out the weight itself, whatever the order of summation: it is equal bit for bit."""
    for shape, dtype in (((64, 24), np.float32), ((70, 7), np.float32), ((12, 3), np.float16)):
        layer = Layer(qtype, form, shape, zero, dtype=dtype)
        made = run_passes(layer.proto, ToMatmulnbits())
        (node,) = made.proto.graph.node
        assert node.op_type == "MatMulNBits" and node.domain == "com.microsoft" and node.output[0] == "y"
        size = form if isinstance(form, int) else {64: 64, 70: 128, 12: 16}[shape[0]]
        assert attributes(node) == {"K": shape[0], "N": shape[1], "bits": BITS[qtype], "block_size": size}
        middle = 0 if qtype.startswith("i") else 1 << BITS[qtype] - 1
        assert len(node.input) == (3 if np.all(layer.zero == middle) else 4)
        eye = np.eye(shape[0], dtype=dtype)
        for options in ({}, {"optimised": False}):
            (y,) = run_model(made.proto, {"x": eye}, **options)
            np.testing.assert_array_equal(y, layer.weight)
        tolerance = 2e-6 if dtype == np.float32 else 2e-3
        for rows in (1, 5):
            x = RNG.standard_normal((rows, shape[0])).astype(dtype)
            (wanted,), (y,) = run_model(layer.proto, {"x": x}, true=True), run_model(made.proto, {"x": x})
            error = np.abs(y.astype(np.float64) - wanted.astype(np.float64)).max()
            assert error <= tolerance * np.abs(wanted).max(), "only the order of summation differs"


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("form", [16, 32, 64, "channel"])
@pytest.mark.parametrize("qtype", BITS)
def test_round_trip(qtype: str, form: int | str, zero: bool, run_passes: Callable[..., Any]) -> None:
    """Integers, scales and zero points come back; signed ones half of their range higher."""
    shape = (16, 5) if form == "channel" else (70, 5)
    layer = Layer(qtype, form, shape, zero)
    made = run_passes(run_passes(layer.proto, ToMatmulnbits()).proto, FromMatmulnbits())
    dq, product = made.proto.graph.node
    assert attributes(dq) == ({"axis": 1} if form == "channel" else {"axis": 0, "block_size": form})
    assert product.op_type == "MatMul" and list(product.input) == ["x", dq.output[0]]
    assert [(o.domain, o.version) for o in made.proto.opset_import] == [("", 25)]
    tensors = {t.name: t for t in made.proto.graph.initializer}
    assert tensors[dq.input[0]].data_type == getattr(TensorProto, f"UINT{BITS[qtype]}")
    q, scale, zero_point = (numpy_helper.to_array(tensors[name]) for name in dq.input)
    shift = 1 << BITS[qtype] - 1 if qtype.startswith("i") else 0
    np.testing.assert_array_equal(q.astype(np.int32), layer.q.astype(np.int32) + shift)
    np.testing.assert_array_equal(zero_point.astype(np.int32), layer.zero.astype(np.int32) + shift)
    np.testing.assert_array_equal(scale, layer.scale)


@pytest.mark.parametrize("qtype", ["int4", "int8"])
def test_level_4_may_quantize_inputs(qtype: str, run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    layer = Layer(qtype, zero=False)
    made = run_passes(layer.proto, ToMatmulnbits(accuracy_level=4))
    assert attributes(made.node("MatMulNBits"))["accuracy_level"] == 4
    (note,) = made.ctx.report.notes
    assert "quantized to int8 in each run" in note.message and note.numbers == {"layers": 1, "accuracy_level": 4}
    x = RNG.standard_normal((5, 64)).astype(np.float32)
    (y,), (same,) = run_model(made.proto, {"x": x}), run_model(layer.proto, {"x": x})
    np.testing.assert_array_equal(y, same, err_msg="what onnxruntime makes of the Q/DQ file by itself")
    assert 1e-6 < np.abs(y - x @ layer.weight).max() / np.abs(y).max() < 0.02


def test_slow_8_bits(run_passes: Callable[..., Any]) -> None:
    made = run_passes(Layer("uint8").proto, ToMatmulnbits())
    assert made.codes() == ["matmulnbits", "slow-level"]


def test_disabled(run_passes: Callable[..., Any]) -> None:
    assert not run_passes(Layer().proto, ToMatmulnbits(enable=False)).changed


BIASES = {"none": None, "channels": (24,), "row": (1, 24), "one": (1,), "scalar": ()}


@pytest.mark.parametrize("bias", BIASES)
def test_gemm(bias: str, run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    dims = BIASES[bias]
    layer = Layer(body="y = Gemm(x, w)" if dims is None else "y = Gemm(x, w, b)")
    if dims is not None:
        layer.add(b=RNG.standard_normal(dims).astype(np.float32))
    made = run_passes(layer.proto, ToMatmulnbits())
    node = made.node("MatMulNBits")
    assert len(node.input) == (4 if dims is None else 6)
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    (wanted,) = run_model(layer.proto, {"x": x}, true=True)
    for options in ({}, {"optimised": False}):
        (y,) = run_model(made.proto, {"x": x}, **options)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_computed_bias(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    layer = Layer(body="b = Exp(c) y = Gemm(x, w, b)").add(c=RNG.standard_normal(24).astype(np.float32))
    layer.proto.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [24]))
    made = run_passes(layer.proto, ToMatmulnbits())
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    (wanted,), (y,) = run_model(layer.proto, {"x": x}, true=True), run_model(made.proto, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_inputs_of_any_rank(rank: int, run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    layer = Layer()
    for info, last in ((layer.proto.graph.input[0], 64), (layer.proto.graph.output[0], 24)):
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, [*"abc"[: rank - 1], last]))
    made = run_passes(layer.proto, ToMatmulnbits())
    x = RNG.standard_normal([2] * (rank - 1) + [64]).astype(np.float32)
    (y,) = run_model(made.proto, {"x": x})
    np.testing.assert_allclose(y, x @ layer.weight, rtol=1e-5, atol=1e-4)


def test_shared_weight(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Each reader gets a node of its own over the same bytes; a reader of another kind keeps the DequantizeLinear."""
    layer = Layer(body="a = MatMul(x, w) b = Gemm(x, w) t = ReduceMean<keepdims=0>(w) c = Add(a, b) y = Add(c, t)")
    made = run_passes(layer.proto, ToMatmulnbits())
    assert made.ops() == ["DequantizeLinear", "MatMulNBits", "MatMulNBits", "ReduceMean", "Add", "Add"]
    one, two = (n for n in made.proto.graph.node if n.op_type == "MatMulNBits")
    assert one.input[1:] == two.input[1:]
    assert sorted(made.initializers()) == ["q", "q_packed", "q_scales", "q_zero_points", "s", "z"]
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    (y,) = run_model(made.proto, {"x": x})
    np.testing.assert_allclose(y, 2 * (x @ layer.weight) + layer.weight.mean(), rtol=1e-5, atol=1e-3)


def test_names_and_metadata(run_passes: Callable[..., Any]) -> None:
    layer = Layer(body="q_packed = MatMul(x, w) y = Relu(q_packed)")
    dq, product = layer.proto.graph.node[:2]
    product.name, product.doc_string = "fc", "the head"
    product.metadata_props.add(key="namespace", value="model/head")
    dq.metadata_props.add(key="pkg", value="weights")
    made = run_passes(layer.proto, ToMatmulnbits())
    node = made.node("MatMulNBits")
    props = {p.key: p.value for p in node.metadata_props}
    assert props == {"namespace": "model/head", "pkg": "weights", "onnxq.pass": "to-matmulnbits"}
    assert (node.name, node.doc_string, node.output[0]) == ("fc", "the head", "q_packed")
    assert node.input[1] == "q_packed_1"
    assert ("com.microsoft", 1) in [(o.domain, o.version) for o in made.proto.opset_import]


def test_bodies(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """The weight stays in the main graph; the layers are in the branches."""
    text = f"""{HEAD} g (bool c, float[m,64] x) => (float[m,n] y) {{ y = If(c) <
      then_branch = t () => (float[m,n] p) {{ w = DequantizeLinear<axis=0, block_size=32>(q, s, z)
        p = MatMul(x, w) }},
      else_branch = e () => (float[m,n] r) {{ v = DequantizeLinear<axis=0, block_size=32>(q, s, z)
        r = Gemm(x, v) }} > }}"""
    layer = Layer()
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(layer.proto.graph.initializer)
    made = run_passes(proto, ToMatmulnbits())
    assert sorted(made.initializers()) == ["q_packed", "q_scales", "q_zero_points"]
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    for flag in (True, False):
        (y,) = run_model(made.proto, {"c": np.array(flag), "x": x})
        np.testing.assert_allclose(y, x @ layer.weight, rtol=1e-5, atol=1e-4)


def test_functions(run_passes: Callable[..., Any]) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21, "l" : 1]> g (float[m,16] x) => (float[m,n] y) {{ y = l.F(x) }}
    <domain: "l", opset_import: ["" : 21]> F (x) => (y) {{
      q = Constant<value = int8[16,2] {{{",".join(map(str, range(32)))}}}>() s = Constant<value = float {{0.5}}>()
      w = DequantizeLinear(q, s) y = MatMul(x, w) }}"""
    made = run_passes(text, ToMatmulnbits())
    assert not made.changed and "run inline-functions first" in made.ctx.report.notes[0].message


def quantizer(name: str) -> dict[str, Array]:
    return {name: np.float32(0.1), f"{name}z": np.uint8(3)}  # type: ignore[dict-item]


# -> layer, the reason
STAYS: dict[str, tuple[Callable[[], Layer], str]] = {
    "small-blocks": (lambda: Layer(form=8), "blocks of 8: MatMulNBits takes powers of two from 16"),
    "odd-blocks": (lambda: Layer(form=48), "blocks of 48: MatMulNBits takes powers of two from 16"),
    "wide-2-bit": (lambda: Layer("int2", 512, (1024, 4)), "blocks of 512: onnxruntime takes at most 256 with 2 bits"),
    "rows": (lambda: Layer(form="channel", shape=(24, 24), attributes="<axis=0>"), "do not follow the output channels"),
    "along-columns": (
        lambda: Layer(form=16, shape=(32, 32), attributes="<axis=1, block_size=16>"),
        "blocks run along the output channels",
    ),
    "other-type": (
        lambda: Layer(form="channel", attributes="<axis=1, output_dtype=10>"),
        "it dequantizes to another type than its scale's",
    ),
    "unfit": (
        lambda: Layer(form=16, attributes="<axis=0, block_size=32>"),
        "scales [4, 24] do not fit blocks of 32 rows of [64, 24]",
    ),
    "empty": (lambda: Layer(form="channel", shape=(0, 24)), "the weight is empty"),
    "left": (lambda: Layer(shape=(64, 64), body="y = MatMul(w, x)"), "the weight is the left operand"),
    "transposed": (lambda: Layer(shape=(64, 64), body="y = Gemm<transB=1>(x, w)"), "it transposes an operand"),
    "factors": (lambda: Layer(body="y = Gemm<alpha=0.5>(x, w)"), "it has factors"),
    "row-bias": (lambda: Layer(body="y = Gemm(x, w, b)").add(b=np.ones((3, 1), np.float32)), "its bias is not known"),
    "eight-bits-in": (
        lambda: Layer(body="a = QuantizeLinear(x, t, tz) d = DequantizeLinear(a, t, tz) y = MatMul(d, w)").add(
            **quantizer("t")
        ),
        "its input is quantized to 8 bits",
    ),
    "eight-bits-out": (
        lambda: Layer(body="m = MatMul(x, w) a = QuantizeLinear(m, t, tz) y = DequantizeLinear(a, t, tz)").add(
            **quantizer("t")
        ),
        "its output is quantized to 8 bits",
    ),
    "eight-bits-out-by-default": (
        lambda: Layer(body="m = MatMul(x, w) a = QuantizeLinear(m, t) y = DequantizeLinear(a, t)").add(
            **quantizer("t")
        ),
        "its output is quantized to 8 bits",
    ),
    "computed-scale": (
        lambda: Layer(form="channel", body="y = MatMul(x, w)", attributes="<axis=1>"),
        "scale or zero point is computed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str, run_passes: Callable[..., Any]) -> None:
    make, why = STAYS[case]
    proto = make().proto
    if case == "computed-scale":
        proto.graph.node.insert(0, helper.make_node("Abs", ["s"], ["s2"]))
        proto.graph.node[1].input[1] = "s2"
    made = run_passes(proto, ToMatmulnbits())
    assert not made.changed and made.codes() == ["not-matmulnbits"]
    (note,) = made.ctx.report.notes
    assert note.message.startswith(f"stays {note.place.op_type}: ") and why in note.message


def test_other_weights_stay(run_passes: Callable[..., Any]) -> None:
    """Three axes, 16 bits; and what is no layer with such a weight gives no note."""
    text = f"""{HEAD} g (float[2,3,16] x) => (float[a,b,c] y, float[a,b,c] v, float[a,b,c] e) {{
      w = DequantizeLinear(q, s) y = MatMul(x, w) u = DequantizeLinear(h, s) v = MatMul(x, u) e = MatMul(x, f) }}"""
    proto = parser.parse_model(text)
    for name, array in {
        "q": np.ones((2, 16, 4), np.int8), "h": np.ones((16, 4), np.int16), "s": np.float32(1),
        "f": np.ones((16, 4), np.float32),
    }.items():  # fmt: skip
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    made = run_passes(proto, ToMatmulnbits())
    first, second = (n.message for n in made.ctx.report.notes)
    assert "the weight has 3 axes" in first and "the weight is int16" in second and not made.changed
