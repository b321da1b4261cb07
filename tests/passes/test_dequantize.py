"""dequantize: what becomes float, what stays, and that nothing but rounding goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from onnxq.passes.dequantize import Dequantize
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from onnxq.passes.to_matmulnbits import ToMatmulnbits

LENET = Path(__file__).parent.parent.parent / "models" / "lenet"
HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
CONSTANTS = "float s = {0.5}, uint8 z = {8}, uint8 n = {0}"

# The same model twice: with rounding of activations, and without.
QUANTIZED = (
    HEAD
    + """
g (float[2,4] x, bool c) => (float[2,3] y, float[2,3] b)
  <float xs = {0.1}, uint8 xz = {8}, float[3] ws = {0.5, 0.25, 1}, int8[3] wz = {0, 1, 0}, float s = {0.5},
   int8 n = {0}, int8[4,3] w = {1,2,3,4,5,6,7,8,-9,-10,-11,127}, int32[3] v = {10,20,30},
   float[3] vs = {0.05, 0.025, 0.1},
   float[4,3] f = {1.1,1.9,3.2,4,5,6,7,8,-9,-10,-11,12}> {
  xq = QuantizeLinear(x, xs, xz)
  xd = DequantizeLinear(xq, xs, xz)
  wd = DequantizeLinear<axis=-1>(w, ws, wz)
  vd = DequantizeLinear<axis=0>(v, vs)
  y = Gemm(xd, wd, vd)
  b = If(c) <
    then_branch = yes () => (float[2,3] p) {
      fq = QuantizeLinear(f, s, n) fd = DequantizeLinear(fq, s, n) hq = QuantizeLinear(x, s, n)
      hd = DequantizeLinear(hq, s, n) p = MatMul(hd, fd) },
    else_branch = no () => (float[2,3] q) { q = MatMul(xd, wd) }>
}"""
)
FLOAT = (
    HEAD
    + """
g (float[2,4] x, bool c) => (float[2,3] y, float[2,3] b)
  <float[4,3] w = {0.5,0.25,3,2,1,6,3.5,1.75,-9,-5,-3,127}, float[3] v = {0.5,0.5,3},
   float[4,3] f = {1,2,3,4,5,6,7,8,-9,-10,-11,12}> {
  y = Gemm(x, w, v)
  b = If(c) <then_branch = yes () => (float[2,3] p) { p = MatMul(x, f) },
             else_branch = no () => (float[2,3] q) { q = MatMul(x, w) }>
}"""
)


@pytest.mark.parametrize("branch", [True, False])
def test_weights_biases_pairs_and_bodies(
    branch: bool, run_passes: Callable[..., Any], same_numbers: Callable[..., None], run_model: Callable[..., Any]
) -> None:
    made = run_passes(QUANTIZED, Dequantize())
    assert made.ops() == ["Gemm", "If"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32) * 9, "c": np.array(branch)}
    same_numbers(FLOAT, made.proto, feeds)
    # What is exact in both is the same: multiples of 0.5 are on either grid.
    exact = {"x": np.array([[1, 0.5, 2, -0.5], [0, 1.5, -0.5, 3]], np.float32), "c": np.array(branch)}
    wanted, got = run_model(onnx.parser.parse_model(QUANTIZED), exact, true=True), run_model(made.proto, exact)
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert made.codes() == ["frozen", "dequantized"]
    assert made.ctx.report.of("dequantized")[0].numbers == {"pairs": 5, "weights": 3}


def test_dynamic(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = """g (float[2,4] x) => (float[2,4] y)
      <float[4,4] w = {{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}}> {{ {body} }}"""
    quantized = "q, s, z = DynamicQuantizeLinear(x) r = Reshape<allowzero=0>(q, t) d = DequantizeLinear(r, s, z)"
    quantized = "t = Constant<value_ints=[2,4]>() " + quantized + " y = MatMul(d, w)"
    made = run_passes(HEAD + text.format(body=quantized), Dequantize())
    assert made.ops() == ["Constant", "Reshape", "MatMul"]
    same_numbers(HEAD + text.format(body="y = MatMul(x, w)"), made.proto)


MOVED = [
    ("r = Transpose<perm=[0,2,1]>(q)", "r = Transpose<perm=[0,2,1]>(x)"),
    ("r = MaxPool<kernel_shape=[2], pads=[1,0]>(q)", "r = MaxPool<kernel_shape=[2], pads=[1,0]>(x)"),
    ("r = Concat<axis=1>(q, k)", "r = Concat<axis=1>(x, kf)"),
    ("r = Pad(q, a, zz)", "r = Pad(x, a)"),
    (
        "o, p = Split<axis=1, num_outputs=2>(q) r = Concat<axis=1>(p, o)",
        "o, p = Split<axis=1, num_outputs=2>(x) r = Concat<axis=1>(p, o)",
    ),
]


@pytest.mark.parametrize(("integers", "floats"), MOVED)
def test_data_movement(
    integers: str, floats: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    text = (
        HEAD
        + """g (float[2,4,6] x) => (float[a,b,c] y)
      <float s = {{0.5}}, uint8 z = {{8}}, uint8 zz = {{8}}, int64[6] a = {{0,0,1,0,1,0}},
       uint8[2,1,6] k = {{8,10,12,14,16,18,20,22,24,26,28,30}}, float[2,1,6] kf = {{0,1,2,3,4,5,6,7,8,9,10,11}}>
      {{ {body} }}"""
    )
    before = f"q = QuantizeLinear(x, s, z) {integers} d = DequantizeLinear(r, s, z) y = Abs(d)"
    made = run_passes(text.format(body=before), Dequantize())
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(made.ops())
    same_numbers(text.format(body=f"{floats} y = Abs(r)"), made.proto)


FLOATS = "float[2,4] x", "float[2,4] y"
STAYS = [
    ("uint8[2,4] x", "float[2,4] y", "y = DequantizeLinear(x, s, z)", "'x' comes in as integers", 1),
    ("float[2,4] x", "uint8[2,4] y", "y = QuantizeLinear(x, s, z)", "its integers are a graph output", 1),
    (*FLOATS, "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, t, z)", "differs from", 2),
    (*FLOATS, "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, n)", "differs from", 2),
    (*FLOATS, "q, e, b = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, b)", "not that of", 2),
    (*FLOATS, "q = Cast<to=2>(x) y = DequantizeLinear(q, s, z)", "Cast '' makes its integers", 1),
    (
        *FLOATS,
        "q = QuantizeLinear(x, s, z) p = Pad(q, a) y = DequantizeLinear(p, s, z)",
        "Pad '' makes its integers",
        2,
    ),
]


@pytest.mark.parametrize(("given", "out", "body", "why", "notes"), STAYS)
def test_stays(given: str, out: str, body: str, why: str, notes: int, run_passes: Callable[..., Any]) -> None:
    text = f"g ({given}) => ({out}) <{CONSTANTS}, float t = {{0.25}}, int64[4] a = {{0,0,0,0}}> {{ {body} }}"
    made = run_passes(HEAD + text, Dequantize())
    found = made.ctx.report.of("not-dequantized")
    assert why in found[0].message and len(found) == notes and not made.changed


RELUS = [
    ("h = Identity(m)", "zero", 8, ["MatMul", "Identity", "Abs"]),
    ("h = Identity(m)", "zero", 0, ["MatMul", "Identity", "Clip", "Abs"]),
    ("h = Identity(m)", "zero", 255, ["MatMul", "Identity", "Clip", "Abs"]),
    ("h = Identity(m)", "none", 0, ["MatMul", "Identity", "Abs"]),
    ("h = Identity(m)", "all", 8, ["Clip", "MatMul", "Identity", "Clip", "Abs"]),
    ("h = Relu(m)", "zero", 0, ["MatMul", "Relu", "Abs"]),
    ("h = Relu(m)", "all", 0, ["Clip", "MatMul", "Relu", "Clip", "Abs"]),
    ("h = Sigmoid(m)", "all", 0, ["Clip", "MatMul", "Sigmoid", "Abs"]),
    ("r = Relu(m) a = Add(r, r) h = Reshape(a, shape)", "zero", 0, ["MatMul", "Relu", "Add", "Reshape", "Abs"]),
]


@pytest.mark.parametrize(("between", "saturation", "zero", "ops"), RELUS)
def test_limits_that_a_pair_keeps(
    between: str,
    saturation: Any,
    zero: int,
    ops: list[str],
    run_passes: Callable[..., Any],
    run_model: Callable[..., Any],
) -> None:
    """Quantizers leave a Relu out where the pair behind it cuts off at zero anyway: it has to come back."""
    text = (
        HEAD
        + f"""g (float[2,2] x) => (float[2,2] y) <float s = {{0.5}}, uint8 z = {{{zero}}}, uint8 n = {{0}},
        int64[2] shape = {{2,2}}, float[2,2] w = {{1,-1,2,-2}}> {{
        xq = QuantizeLinear(x, s, n) xd = DequantizeLinear(xq, s, n) m = MatMul(xd, w) {between}
        q = QuantizeLinear(h, s, z) d = DequantizeLinear(q, s, z) y = Abs(d) }}"""
    )
    made = run_passes(text, Dequantize(saturation=saturation))
    assert made.ops() == ops
    feeds = {"x": np.array([[1, 2], [0, 200]], np.float32)}
    if saturation == "all" and "Sigmoid" not in between:
        wanted = run_model(onnx.parser.parse_model(text), feeds, true=True)[0]
        np.testing.assert_array_equal(run_model(made.proto, feeds)[0], wanted)


def test_old_clip(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Below opset 11 the limits of a Clip are attributes."""
    text = f"""<ir_version: 7, opset_import: ["" : 10]> g (float[2] x) => (float[2] y) <{CONSTANTS}> {{
      m = Neg(x) q = QuantizeLinear(m, s, n) d = DequantizeLinear(q, s, n) y = Neg(d) }}"""
    made = run_passes(text, Dequantize())
    assert made.ops() == ["Neg", "Clip", "Neg"]
    np.testing.assert_array_equal(run_model(made.proto, {"x": np.float32([3, -400])})[0], [0, -127.5])


def test_other_float_types(run_passes: Callable[..., Any]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 23]> g (float[2] x) => (float16[2] y)
      <float s = {0.5}, uint8 z = {8}> {
      q = QuantizeLinear(x, s, z) d = DequantizeLinear<output_dtype=10>(q, s, z) y = Abs(d) }"""
    assert run_passes(text, Dequantize()).ops() == ["Cast", "Abs"]


def test_outputs_and_shared_weights(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """An output keeps its name whatever makes it; one weight behind two equal pairs is stored once."""
    text = HEAD + """g (float[2,2] x) => (float[2,2] y, float[2,2] w2, float[2,2] z)
      <float s = {0.5}, uint8 n = {0}, float[1] t = {0.5}, uint8[2,2] w = {1,2,3,4}> {
      q = QuantizeLinear(x, s, n) z = DequantizeLinear(q, s, n) w1 = DequantizeLinear(w, s, n)
      w2 = DequantizeLinear(w, s, n) y = MatMul(x, w1) }"""  # fmt: skip
    made = run_passes(text, Dequantize())
    floats = (
        HEAD
        + """g (float[2,2] x) => (float[2,2] y, float[2,2] w2, float[2,2] z)
      <float[2,2] w = {0.5,1,1.5,2}> { z = Identity(x) y = MatMul(x, w) w2 = Identity(w) }"""
    )
    same_numbers(floats, made.proto)
    assert sorted(made.ops()) == ["Identity", "Identity", "MatMul"]
    assert len(made.proto.graph.initializer) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_tables_and_blocks(packed: bool, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """Weight-only files: blocks behind a MatMul, tables behind a Gather, MatMulNBits."""
    rng = np.random.default_rng(0)
    q, t = rng.integers(0, 256, (64, 8)).astype(np.uint8), rng.integers(-128, 128, (10, 64)).astype(np.int8)
    qs, ts = rng.uniform(0.1, 1, (2, 8)).astype(np.float32), rng.uniform(0.1, 1, 10).astype(np.float32)
    text = HEAD + "g (int64[a] i) => (float[a,8] y) { y = MatMul(r, w) }"
    body = "td = DequantizeLinear<axis=0>(t, ts, tz) r = Gather(td, i) "
    body += "w = DequantizeLinear<axis=0, block_size=32>(q, qs, qz)"
    quantized = onnx.parser.parse_model(text.replace("{ y", "{ " + body + " y"))
    floats = onnx.parser.parse_model(text.replace("{ y", "{ r = Gather(t, i) y"))
    zeros = {"tz": np.zeros(10, np.int8), "qz": rng.integers(0, 256, (2, 8)).astype(np.uint8)}
    for name, array in {"q": q, "qs": qs, "t": t, "ts": ts, **zeros}.items():
        quantized.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    weight = (q.astype(np.float32) - np.repeat(zeros["qz"], 32, 0)) * np.repeat(qs, 32, 0)
    for name, array in {"w": weight, "t": t * ts[:, None]}.items():
        floats.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    steps = (ToMatmulnbits(),) if packed else ()
    source = run_passes(quantized, *steps).proto
    assert ("MatMulNBits" in {n.op_type for n in source.graph.node}) is packed
    made = run_passes(source, Dequantize())
    assert made.ops() == ["Gather", "MatMul"]
    same_numbers(floats, made.proto, {"i": np.array([3, 0, 9])})


GATHERED = [
    ("s = Gather(ts, i) d = DequantizeLinear<axis=1, block_size=4>(g, s)", [[0.5], [1], [2]]),
    (
        "s = Gather(ts, i) z = Gather(tz, i) d = DequantizeLinear<axis=-1, block_size=2>(g, s, z)",
        [[0.5, 1], [1, 3], [2, 1]],
    ),
    ("d = DequantizeLinear<axis=1>(g, ts)", [0.5, 1, 2, 4]),
    ("d = DequantizeLinear<axis=-1>(g, ts)", [0.5, 1, 2, 4]),
    ("d = DequantizeLinear(g, ts)", 0.5),
]


@pytest.mark.parametrize(("body", "scales"), GATHERED)
def test_tables_dequantized_behind_the_look_up(
    body: str, scales: Any, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """What insert-embeddings writes: scales are looked up like the rows."""
    proto = onnx.parser.parse_model(
        HEAD + "g (int64[2] i) => (float[2,4] y) <int8[3,4] t = {1,2,3,4,5,6,7,8,-9,-10,-11,-12}> "
        "{ g = Gather(t, i) " + body + " y = Abs(d) }"
    )
    ts = np.array(scales, np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(ts, "ts"))
    if "tz" in body:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int8([[1, 2], [3, 4], [5, 6]]), "tz"))
    made = run_passes(proto, Dequantize())
    assert made.ops() == ["Gather", "Abs"]
    for i in ([0, 1], [2, 2]):
        np.testing.assert_array_equal(*(run_model(p, {"i": np.array(i)})[0] for p in (proto, made.proto)))


def test_functions(run_passes: Callable[..., Any]) -> None:
    """Pairs vanish there, too; weights stay, for a function holds no initializers."""
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]> g (float[2,4] x) => (float[2,4] y) { y = l.F(x) }
    <domain: "l", opset_import: ["" : 21]> F (x) => (y) {
      s = Constant<value = float {0.5}>() z = Constant<value = uint8 {8}>() w = Constant<value = uint8[4] {1,2,3,4}>()
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, z) y = Mul(d, v) }"""
    made = run_passes(text, Dequantize())
    (function,) = made.proto.functions
    assert [n.op_type for n in function.node if n.op_type != "Constant"] == ["DequantizeLinear", "Mul"]
    (note,) = made.ctx.report.of("not-dequantized")
    assert "run inline-functions first" in note.message


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    """LeNet as onnxruntime's own tool makes integer operators of it: without its Relus."""

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([{"image": np.load(LENET / "calibration.npz")["image"]}])

        def get_next(self) -> Any:
            return next(self.batches, None)

    path = tmp_path_factory.mktemp("lenet") / "integer.onnx"
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    source = onnx.load(LENET / "lenet.onnx")
    quantize_static(source, path, Reader(), quant_format=QuantFormat.QOperator, per_channel=True, **kinds)
    return onnx.load(path)


def test_lenet_of_integer_operators(
    lenet: onnx.ModelProto, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """Back to float it is as good as the float model; with every limit it is the integer model but for rounding."""
    with np.load(LENET / "digits.npz") as digits:
        image, labels = digits["pixels"][:200, None].astype(np.float32) / 255, digits["labels"][:200]
    first = run_model(onnx.load(LENET / "lenet.onnx"), {"image": image})[0]
    integer = run_model(lenet, {"image": image})[0]
    raised = run_passes(lenet, QoperatorToQdq())
    step = next(i for n, i in raised.initializers().items() if n.startswith("logits") and i.dtype == np.float32)
    assert np.abs(run_model(raised.proto, {"image": image}, true=True)[0] - integer).max() <= 1.01 * step
    back = run_passes(lenet, Dequantize())
    assert back.ops() == ["Conv", "Clip", "MaxPool", "Conv", "Clip", "MaxPool", "Flatten", "Gemm", "Clip", "Gemm"]
    got = run_model(back.proto, {"image": image})[0]
    assert np.abs(got - first).max() < 0.07 * np.abs(first).max()
    assert np.mean(got.argmax(1) == labels) >= np.mean(integer.argmax(1) == labels)
    kept = run_passes(lenet, Dequantize(saturation="all"))
    assert np.abs(run_model(kept.proto, {"image": image})[0] - integer).max() < 4 * step
    bare = run_passes(lenet, Dequantize(saturation="none"))
    assert np.mean(run_model(bare.proto, {"image": image})[0].argmax(1) == labels) < 0.5, "the Relus are gone"
