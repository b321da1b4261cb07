"""Q/DQ pairs around one float operator, and the operator on integers that takes their place, in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxq.passes.qdq_to_qoperator import QdqToQoperator
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

Array = np.ndarray[Any, Any]

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def pairs(dtype: Any, out: Any, **given: Array) -> dict[str, Array]:
    """Scales and zero points by the names that the texts use; ``z`` of what is read, ``zy`` of the output."""
    middle = 128 if dtype == np.uint8 else 0
    some: dict[str, Any] = {"s": np.float32(0.03), "z": np.array(middle - 8, dtype), "t": np.float32(0.05)}
    some |= {"sy": np.float32(0.11), "zy": np.array(130 if out == np.uint8 else 2, out)}
    return some | given


def build(text: str, constants: dict[str, Array], feeds: dict[str, Array]) -> onnx.ModelProto:
    """A model from the body of a graph; x and others are inputs, y is the output."""
    shapes = ", ".join(f"{_type(array.dtype)}[{','.join(map(str, array.shape))}] {k}" for k, array in feeds.items())
    proto = onnx.parser.parse_model(f"{HEAD} g ({shapes}) => (float[a] y) {{ {text} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in constants.items():
        if f" {name}" in text or f"({name}" in text:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    inferred = onnx.shape_inference.infer_shapes(proto)
    proto.graph.output[0].CopyFrom(inferred.graph.output[0])
    return proto


def _type(dtype: Any) -> str:
    return {"float32": "float", "bool": "bool"}.get(np.dtype(dtype).name, np.dtype(dtype).name)


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 2


@pytest.fixture
def agree(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> Callable[..., Any]:
    """Lowers, runs both ways there and back; all within ``steps`` of the true pairs, in at most ``share`` places."""

    def check(
        before: onnx.ModelProto,
        feeds: dict[str, Array],
        ops: list[str],
        *,
        step: float = 0.11,
        steps: float = 0,
        share: float = 0.0,
        **options: Any,
    ) -> Any:
        wanted = run_model(before, feeds, true=True)[0]
        made = run_passes(before, QdqToQoperator(**options))
        assert [op for op in made.ops() if op not in ("QuantizeLinear", "DequantizeLinear")] == ops, made.codes()
        back = run_passes(made.proto, QoperatorToQdq())
        for proto in (made.proto, back.proto):
            onnx.checker.check_model(proto, full_check=True)
            off = np.abs(run_model(proto, feeds, true=True)[0] - wanted) / step
            assert off.max() <= steps + 0.01 and (off > 0.01).mean() <= share, (off.max(), (off > 0.01).mean())
        assert not any(n.domain == "com.microsoft" for n in back.proto.graph.node)
        return made

    return check


READ = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
WRITE = " o = QuantizeLinear(f, sy, zy) y = DequantizeLinear(o, sy, zy)"
TYPES = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize(("kind", "weight"), TYPES)
def test_conv(kind: Any, weight: Any, channels: bool, agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    scale = rng.uniform(0.01, 0.05, 6).astype(np.float32) if channels else np.float32(0.02)
    zero = np.full(np.shape(scale), 130 if weight == np.uint8 else 0, weight)
    info = np.iinfo(weight)
    constants = pairs(
        kind, kind, w=rng.integers(info.min, info.max + 1, (6, 2, 3, 3)).astype(weight), ws=scale, wz=zero
    )
    constants |= {"b": rng.integers(-3000, 3000, 6).astype(np.int32), "bs": np.float32(0.03) * scale}
    axis = "<axis=0>" if channels else ""
    text = READ + f"v = DequantizeLinear{axis}(w, ws, wz) c = DequantizeLinear{axis}(b, bs) "
    text += "f = Conv<group=2, pads=[1,1,0,1], strides=[2,1]>(d, v, c)" + WRITE
    feeds = {"x": noise(2, 4, 9, 8)}
    made = agree(build(text, constants, feeds), feeds, ["QLinearConv"], steps=1, share=0.01)
    assert made.codes() == ["lowered"], "the bias stands at its scale already"


PRODUCTS = [
    ("MatMul(d, v)", "axis=1", ["QLinearMatMul"]),
    ("Gemm(d, v, c)", "axis=1", ["QGemm"]),
    ("Gemm<transB=1, alpha=0.5>(d, v, c)", "axis=0", ["QGemm"]),
    ("Gemm(d, v)", "", ["QGemm"]),
    ("MatMul(d, v)", "", ["QLinearMatMul"]),
]


@pytest.mark.parametrize(("op", "axis", "ops"), PRODUCTS)
@pytest.mark.parametrize(("kind", "weight"), TYPES)
def test_products(kind: Any, weight: Any, op: str, axis: str, ops: list[str], agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(2)
    scale = rng.uniform(0.01, 0.05, 8).astype(np.float32) if axis else np.float32(0.02)
    info = np.iinfo(weight)
    constants = pairs(kind, kind, w=rng.integers(info.min, info.max + 1, (8, 8)).astype(weight), ws=scale)
    constants["wz"] = np.full(np.shape(scale), 130 if weight == np.uint8 else 0, weight)
    alpha = np.float32(0.5 if "alpha" in op else 1)
    constants |= {"b": rng.integers(-3000, 3000, 8).astype(np.int32), "bs": alpha * np.float32(0.03) * scale}
    given = f"<{axis}>" if axis else ""
    text = READ + f"v = DequantizeLinear{given}(w, ws, wz) "
    text += f"c = DequantizeLinear{'<axis=0>' if axis else ''}(b, bs) f = {op}" + WRITE
    if "c)" not in op:
        text = text.replace(text[text.index("c = ") : text.index("f = ")], "")
    feeds = {"x": noise(3, 8)}
    agree(build(text, constants, feeds), feeds, ops, steps=1, share=0.02)


ELEMENTWISE: list[tuple[str, list[str], float]] = [
    ("f = Add(d, e)", ["QLinearAdd"], 0.02),
    ("f = Mul(d, e)", ["QLinearMul"], 0.02),
    ("f = Sigmoid(d)", ["QLinearSigmoid"], 0.0),
    ("f = LeakyRelu<alpha=0.2>(d)", ["QLinearLeakyRelu"], 0.0),
    ("f = Softmax<axis=2>(d)", ["QLinearSoftmax"], 0.1),
    ("f = AveragePool<kernel_shape=[2,3], pads=[0,1,1,1]>(d)", ["QLinearAveragePool"], 0.1),
    ("f = AveragePool<kernel_shape=[2,2], count_include_pad=1, pads=[1,1,1,1]>(d)", ["QLinearAveragePool"], 0.1),
    ("f = GlobalAveragePool(d)", ["QLinearGlobalAveragePool"], 0.0),
    ("f = Concat<axis=1>(d, e, d)", ["QLinearConcat"], 0.0),
    ("m = Greater(x, k) f = Where(m, d, e)", ["Greater", "QLinearWhere"], 0.0),
]


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(("op", "ops", "share"), ELEMENTWISE)
def test_elementwise(op: str, ops: list[str], share: float, kind: Any, agree: Callable[..., Any]) -> None:
    constants = pairs(kind, kind, k=np.float32(0), zw=np.array(100 if kind == np.uint8 else 9, kind))
    feeds = {"x": noise(2, 3, 4, 5), "u": noise(2, 3, 4, 5, seed=1)}
    if "e" not in op.partition("(")[2]:
        del feeds["u"]
    second = "r = QuantizeLinear(u, t, zw) e = DequantizeLinear(r, t, zw) " if "u" in feeds else ""
    agree(build(READ + second + op + WRITE, constants, feeds), feeds, ops, steps=1 if share else 0, share=share)


MOVES = [
    "f = MaxPool<kernel_shape=[2,2]>(d)",
    "f = Transpose<perm=[0,2,3,1]>(d)",
    "f = Reshape(d, shape)",
    "f = Flatten(d)",
    "f = Squeeze(d, last)",
    "f = Slice(d, one, four, axes)",
    "f = Gather<axis=1>(d, last)",
    "g, f = Split<axis=2, num_outputs=2>(d)",
    "f = Concat<axis=0>(d, d)",
    "f = Tile(d, tiles)",
    "f = Expand(d, wide)",
    "f = Resize<mode='nearest'>(d, , sizes)".replace("'", '"'),
]
INTS = {
    "shape": [2, -1],
    "last": [0],
    "one": [0],
    "four": [2],
    "axes": [3],
    "tiles": [1, 2, 1, 1],
    "wide": [2, 3, 4, 5],
}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op", MOVES)
def test_data_movement(op: str, kind: Any, agree: Callable[..., Any]) -> None:
    ints = {name: np.array(values, np.int64) for name, values in INTS.items()}
    constants = pairs(kind, kind, sizes=np.float32([1, 1, 2, 2]), **ints)
    constants |= {"sy": constants["s"], "zy": constants["z"]}
    feeds = {"x": noise(1 if "Squeeze" in op else 2, 3, 4, 5)}
    (name,) = [word for word in op.replace("<", " ").replace("(", " ").split() if word[0].isupper()]
    agree(build(READ + op + WRITE, constants, feeds), feeds, [name], step=0.03)


@pytest.mark.parametrize("bias", ["", "b", "DQ"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_float_output(kind: Any, bias: str, agree: Callable[..., Any]) -> None:
    """A MatMul without a pair behind it takes a bias along."""
    rng = np.random.default_rng(3)
    constants = pairs(kind, kind, w=rng.integers(-128, 128, (8, 4)).astype(np.int8), wz=np.zeros(4, np.int8))
    constants |= {
        "ws": rng.uniform(0.01, 0.05, 4).astype(np.float32),
        "b": noise(4),
        "bs": np.full(4, 1e-3, np.float32),
    }
    text = READ + "v = DequantizeLinear<axis=1>(w, ws, wz) m = MatMul(d, v) "
    if bias == "DQ":
        constants["b"] = rng.integers(-3000, 3000, 4).astype(np.int32)
        text += "c = DequantizeLinear<axis=0>(b, bs) "
    text += {"": "y = Identity(m)", "b": "y = Add(b, m)", "DQ": "y = Add(m, c)"}[bias]
    feeds = {"x": noise(5, 8)}
    rest = [] if bias else ["Identity"]
    agree(build(text, constants, feeds), feeds, ["MatMulIntegerToFloat", *rest], step=1e-3)


@pytest.mark.parametrize("domain", ["all", "onnx"])
def test_dynamic(domain: str, agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(4)
    constants = {"w": rng.integers(-128, 128, (8, 4)).astype(np.int8), "wz": np.zeros(4, np.int8), "b": noise(4)}
    constants["ws"] = rng.uniform(0.01, 0.05, 4).astype(np.float32)
    text = "q, e, f = DynamicQuantizeLinear(x) d = DequantizeLinear(q, e, f) "
    text += "v = DequantizeLinear<axis=1>(w, ws, wz) m = MatMul(d, v) y = Add(m, b)"
    feeds = {"x": noise(5, 8)}
    whole, parts = ["DynamicQuantizeMatMul"], ["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul", "Add"]
    made = agree(build(text, constants, feeds), feeds, whole if domain == "all" else parts, step=1e-3, domain=domain)
    assert all(n.domain == "" for n in made.proto.graph.node) is (domain == "onnx")


@pytest.mark.parametrize("channels", [False, True])
def test_dynamic_conv(channels: bool, agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(4)
    scale = rng.uniform(0.01, 0.05, 6).astype(np.float32) if channels else np.float32(0.02)
    constants = {"w": rng.integers(-128, 128, (6, 2, 3, 3)).astype(np.int8), "ws": scale, "b": noise(6)}
    constants["wz"] = np.zeros(np.shape(scale), np.int8)
    axis = "<axis=0>" if channels else ""
    text = f"q, e, f = DynamicQuantizeLinear(x) d = DequantizeLinear(q, e, f) v = DequantizeLinear{axis}(w, ws, wz) "
    text += "y = Conv<group=2, pads=[1,1,0,1], strides=[2,1]>(d, v, b)"
    feeds = {"x": noise(2, 4, 9, 8)}
    parts = ["DynamicQuantizeLinear", "ConvInteger", "Cast", "Mul", "Mul", "Add"]
    agree(build(text, constants, feeds), feeds, parts, step=1e-2)


FOLDS = [
    ("Relu(c)", 0, 0.02, True),
    ("Relu(c)", 3, 0.02, False),
    ("Clip(c, zero, six)", 0, 6 / 255, True),
    ("Clip(c, zero, six)", 0, 6.01 / 255, True),
    ("Clip(c, zero, six)", 0, 7 / 255, False),
]


@pytest.mark.parametrize(("op", "zero", "scale", "folds"), FOLDS)
def test_relu_and_clip(op: str, zero: int, scale: float, folds: bool, agree: Callable[..., Any]) -> None:
    """They go where the saturation of the output does their work: their bounds quantize to the ends of the type."""
    rng = np.random.default_rng(5)
    constants = pairs(np.uint8, np.uint8, w=rng.integers(-128, 128, (4, 3, 1, 1)).astype(np.int8), wz=np.int8(0))
    constants |= {"ws": np.float32(0.02), "sy": np.float32(scale), "zy": np.uint8(zero)}
    constants |= {"zero": np.float32(0), "six": np.float32(6)}
    text = READ + f"v = DequantizeLinear(w, ws, wz) c = Conv(d, v) f = {op}" + WRITE
    feeds = {"x": noise(2, 3, 8, 8)}
    ops = ["QLinearConv"] if folds else ["Conv", op.partition("(")[0]]
    made = agree(build(text, constants, feeds), feeds, ops, step=scale, steps=1, share=0.01)
    if not folds:
        assert "cuts off more than the QuantizeLinear" in made.ctx.report.of("not-lowered")[0].message


@pytest.mark.parametrize("stored", ["float", "other scale"])
def test_bias_is_encoded_anew(stored: str, agree: Callable[..., Any]) -> None:
    rng = np.random.default_rng(6)
    constants = pairs(np.uint8, np.uint8, w=rng.integers(-128, 128, (4, 3, 1, 1)).astype(np.int8), wz=np.int8(0))
    constants |= {"ws": np.float32(0.02), "b": noise(4), "bs": np.float32(0.01)}
    text = READ + "v = DequantizeLinear(w, ws, wz) f = Conv(d, v, b)" + WRITE
    if stored != "float":
        constants["b"] = rng.integers(-300, 300, 4).astype(np.int32)
        text = text.replace("f = Conv(d, v, b)", "c = DequantizeLinear(b, bs) f = Conv(d, v, c)")
    feeds = {"x": noise(2, 3, 8, 8)}
    made = agree(build(text, constants, feeds), feeds, ["QLinearConv"], steps=1, share=0.01)
    (note,) = made.ctx.report.of("bias-encoded")
    assert 0 < note.numbers["max_error"] <= 0.03 * 0.02 / 2


STAYS = [
    ("f = Tanh(d)", {}, "no operator on integers computes it"),
    ("f = Add(d, x)", {}, "input 1 is float"),
    ("f = Sigmoid(d)", {"zy": np.int8(1)}, "no such mixture of int8 and uint8"),
    ("f = Sigmoid(d)", {"zy": np.uint16(1)}, "output is quantized to uint16"),
    ("f = AveragePool<kernel_shape=[2,2], dilations=[2,2]>(d)", {}, "no dilations"),
    ("f = AveragePool<kernel_shape=[2,2], ceil_mode=1, count_include_pad=1>(d)", {}, "divides wrongly"),
    ("f = MaxPool<kernel_shape=[2,2]>(d)", {}, "its encoding is another one behind it"),
    ("f = Sigmoid(d) g = Tanh(f)", {}, "its output is read as floats"),
    ("v = DequantizeLinear<axis=1>(w, w3, wz3) f = Conv(d, v)", {}, "along axis 1"),
    ("v = DequantizeLinear(w, ws) f = Conv(d, v, huge)", {}, "does not fit int32"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "given", "why"), STAYS)
def test_stays(op: str, given: dict[str, Any], why: str, run_passes: Callable[..., Any]) -> None:
    constants = pairs(np.uint8, np.uint8, w=np.ones((4, 3, 1, 1), np.int8), ws=np.float32(1e-6), **given)
    constants |= {"w3": np.ones(3, np.float32), "wz3": np.zeros(3, np.int8), "huge": np.full(4, 1e6, np.float32)}
    made = run_passes(build(READ + op + WRITE, constants, {"x": noise(2, 3, 4, 5)}), QdqToQoperator())
    assert why in made.ctx.report.of("not-lowered")[0].message and not made.changed


def test_only_operators_of_onnx(run_passes: Callable[..., Any]) -> None:
    before = build(READ + "f = Sigmoid(d)" + WRITE, pairs(np.uint8, np.uint8), {"x": noise(2, 3)})
    made = run_passes(before, QdqToQoperator(domain="onnx"))
    assert "no operator of ONNX" in made.ctx.report.of("not-lowered")[0].message


def test_several_quantizers_of_one_output(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """A pair for each reader, all alike, is one output of integers; an output of the model keeps its name."""
    write = WRITE + " p = QuantizeLinear(f, sy, zy) e = DequantizeLinear(p, sy, zy) n = Neg(e)"
    before = build(READ + "f = Sigmoid(d)" + write, pairs(np.uint8, np.uint8), {"x": noise(2, 3)})
    before.graph.output.append(helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, [2, 3]))
    before.graph.output.append(helper.make_tensor_value_info("o", onnx.TensorProto.UINT8, [2, 3]))
    made = run_passes(before, QdqToQoperator())
    assert made.ops().count("QLinearSigmoid") == 1 and "Sigmoid" not in made.ops()
    feeds = {"x": noise(2, 3)}
    for a, b in zip(run_model(before, feeds, true=True), run_model(made.proto, feeds), strict=True):
        np.testing.assert_array_equal(a, b)
