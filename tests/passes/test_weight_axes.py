"""Weights of every op in the operator table as integers, through the passes: axes, numbers, both sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxq.numerics.spec import Blocked, PerAxis, QType, TensorSpec
from onnxq.passes.canonical_axis import CanonicalAxis

Array = np.ndarray[Any, Any]
Make = Callable[..., tuple[onnx.ModelProto, Any]]
Run = Callable[..., list[Array]]
Axis = dict[str, tuple[int, ...]]  # weight to the axes that keep their length in its scale

X3, X4 = "float[5,2,32] x", "float[2,32,6,6] x"
HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g '


def lstm(op: str, gates: int, directions: int) -> tuple[str, str, dict[str, tuple[int, ...]], Axis]:
    side = "bidirectional" if directions == 2 else "forward"
    call = f'h, y = {op}<hidden_size=16, direction="{side}">(x, w, r, b)'
    shapes = {"w": (directions, gates * 16, 32), "r": (directions, gates * 16, 16), "b": (directions, 2 * gates * 16)}
    kept = (0, 1) if directions == 2 else (1,)
    return X3, call, shapes, {"w": kept, "r": kept}


# signature, call, shapes, axes of one scale per channel
CASES: dict[str, tuple[str, str, dict[str, tuple[int, ...]], Axis]] = {
    "conv": (X4, "y = Conv(x, w)", {"w": (5, 32, 3, 3)}, {"w": (0,)}),
    "conv-1d": ("float[2,32,9] x", "y = Conv(x, w)", {"w": (5, 32, 3)}, {"w": (0,)}),
    "conv-3d": ("float[1,4,5,5,5] x", "y = Conv(x, w)", {"w": (3, 4, 2, 2, 2)}, {"w": (0,)}),
    "conv-1x1": (X4, "y = Conv(x, w)", {"w": (5, 32, 1, 1)}, {"w": (0,)}),
    "conv-grouped": (X4, "y = Conv<group=4>(x, w)", {"w": (12, 8, 3, 3)}, {"w": (0,)}),
    "depthwise": (X4, "y = Conv<group=32>(x, w)", {"w": (32, 1, 3, 3)}, {"w": (0,)}),
    "transposed": (X4, "y = ConvTranspose<strides=[2,2]>(x, w)", {"w": (32, 6, 3, 3)}, {"w": (1,)}),
    "transposed-1x1": (X4, "y = ConvTranspose(x, w)", {"w": (32, 6, 1, 1)}, {"w": (1,)}),
    "transposed-grouped": (X4, "y = ConvTranspose<group=4>(x, w, b)", {"w": (32, 3, 3, 3), "b": (12,)}, {"w": (1,)}),
    "gemm": ("float[3,32] x", "y = Gemm(x, w)", {"w": (32, 7)}, {"w": (1,)}),
    "gemm-trans-b": ("float[3,32] x", "y = Gemm<transB=1>(x, w)", {"w": (7, 32)}, {"w": (0,)}),
    "gemm-left": ("float[32,3] x", "y = Gemm<transA=1>(w, x)", {"w": (32, 7)}, {"w": (1,)}),
    "matmul": ("float[3,32] x", "y = MatMul(x, w)", {"w": (32, 7)}, {"w": (1,)}),
    "matmul-3": (X3, "y = MatMul(x, w)", {"w": (5, 32, 7)}, {"w": (2,)}),
    "matmul-4": ("float[2,3,4,32] x", "y = MatMul(x, w)", {"w": (2, 3, 32, 7)}, {"w": (3,)}),
    "matmul-left": ("float[32,3] x", "y = MatMul(w, x)", {"w": (7, 32)}, {"w": (0,)}),
    "gather": ("int64[4] x", "y = Gather(w, x)", {"w": (9, 32)}, {"w": (0,)}),
    "gather-axis-1": ("int64[4] x", "y = Gather<axis=1>(w, x)", {"w": (32, 9)}, {"w": (1,)}),
    "einsum": (X3, 'y = Einsum<equation="tbi,oi->tbo">(x, w)', {"w": (7, 32)}, {"w": (0,)}),
    "fused-matmul": (X3, "y = com.microsoft.FusedMatMul<transB=1>(x, w)", {"w": (7, 32)}, {"w": (0,)}),
    "attention": ("float[2,5,32] x", "y = com.microsoft.Attention<num_heads=2>(x, w, b)",
                  {"w": (32, 96), "b": (96,)}, {"w": (1,)}),
    **{f"{op.lower()}-{d}": lstm(op, gates, d) for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)) for d in (1, 2)},
    "behind-transpose": ("float[3,32] x", "t = Transpose(w) y = MatMul(x, t)", {"w": (7, 32)}, {"t": (1,)}),
}  # fmt: skip

# block axis where there is one
BLOCKS = {
    "conv-1x1": {"w": 1}, "transposed-1x1": {"w": 0}, "gemm": {"w": 0}, "gemm-trans-b": {"w": 1}, "gemm-left": {"w": 0},
    "matmul": {"w": 0}, "matmul-3": {"w": 1}, "matmul-4": {"w": 2}, "matmul-left": {"w": 1}, "gather": {"w": 1},
    "gather-axis-1": {"w": 0}, "einsum": {"w": 1}, "fused-matmul": {"w": 1}, "attention": {"w": 0},
    "behind-transpose": {"t": 0},
    **{f"{op}-{d}": {"w": 2, "r": 2} for op in ("lstm", "gru", "rnn") for d in (1, 2)},
}  # fmt: skip


def build(case: str) -> onnx.ModelProto:
    """The float model; its weights grow along every axis, so that a wrong axis is a large error."""
    signature, call, shapes, _ = CASES[case]
    rng = np.random.default_rng(0)
    proto = parser.parse_model(f"{HEAD} ({signature}) => (float y) {{ {call} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, shape in shapes.items():
        array = rng.standard_normal(shape)
        for axis, n in enumerate(shape):
            array *= np.geomspace(0.2, 1, n).reshape(-1, *[1] * (len(shape) - axis - 1))
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return proto


def feeds_of(case: str) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shape = [int(d) for d in CASES[case][0].split("[")[1].split("]")[0].split(",")]
    integer = CASES[case][0].startswith("int64")
    return {"x": rng.integers(0, 9, shape) if integer else rng.standard_normal(shape).astype(np.float32)}


def arrays(proto: onnx.ModelProto) -> dict[str, Array]:
    found = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    return found | ({"t": found["w"].T} if "w" in found else {})


def check(case: str, made: onnx.ModelProto, run_model: Run, scales: dict[str, Array], block: int = 0) -> None:
    """The scales are ``scales`` but for one factor; decoded here, the integers give what the file gives, both ways.

    Args:
        scales: Largest magnitude of the values behind each scale, with as many axes as the weight.
        block: Values of a block; 0 where no axis is cut.
    """
    source, stored = build(case), arrays(made)
    for name, largest in scales.items():
        q, scale, weight = stored[f"{name}_quantized"], stored[f"{name}_scale"], arrays(source)[name]
        assert scale.size == largest.size and scale.ndim in (1, q.ndim)
        np.testing.assert_allclose(
            scale.reshape(-1) * (largest.flat[0] / scale.flat[0]), largest.reshape(-1), rtol=1e-5
        )
        full = scale.reshape(largest.shape)
        for axis, n in enumerate(q.shape):
            full = full if full.shape[axis] == n else np.repeat(full, block or n, axis=axis).take(range(n), axis=axis)
        decoded = q.astype(np.float32) * full
        assert np.abs(decoded - weight).max() <= full.max() * 0.51
        target = next(t for t in source.graph.initializer if t.name == ("w" if name == "t" else name))
        target.CopyFrom(
            numpy_helper.from_array(np.ascontiguousarray(decoded.T if name == "t" else decoded), target.name)
        )
    (wanted,) = run_model(source, feeds_of(case), optimised=False)
    for true, bound in ((True, 1e-5), (False, 0.02)):  # MatMulNBits rounds activations to int8
        (got,) = run_model(made, feeds_of(case), true=true)
        assert np.abs(got - wanted).max() <= bound * np.abs(wanted).max(), f"true={true}"


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("case", CASES)
def test_per_channel(case: str, kind: str, weight_pairs: Make, run_model: Run) -> None:
    made, ctx = weight_pairs(build(case), TensorSpec(QType.named(kind), True, PerAxis()))
    weights, scales = arrays(build(case)), {}
    for name, kept in CASES[case][3].items():
        w = np.abs(weights[name])
        scales[name] = w.max(axis=tuple(i for i in range(w.ndim) if i not in kept), keepdims=True)
    check(case, made, run_model, scales)
    shared = ctx.report.of("group-shared-scale")
    assert [n.numbers for n in shared] == ([{"scales": 3, "groups": 4}] if case == "transposed-grouped" else [])


@pytest.mark.parametrize("size", [16, 24])
@pytest.mark.parametrize("case", BLOCKS)
def test_blocked(case: str, size: int, weight_pairs: Make, run_model: Run) -> None:
    """Blocks of 16, and of 24 with a short last one of 8; R of a recurrent op, 16 long, is a single block."""
    made, ctx = weight_pairs(build(case), TensorSpec(QType.named("int4"), True, Blocked(size)))
    scales = {}
    for name, axis in BLOCKS[case].items():
        w = np.abs(arrays(build(case))[name])
        starts = range(0, w.shape[axis], size)
        scales[name] = np.maximum.reduceat(w, list(starts), axis=axis)
    check(case, made, run_model, scales, size)
    notes = ctx.report.of("short-block")
    assert [n.numbers for n in notes] == ([{"length": 32, "block": 24, "last": 8}] if size == 24 else [])
    one_block = sum(n.op_type == "DequantizeLinear" and any(a.name == "block_size" for a in n.attribute)
                    for n in made.graph.node)  # fmt: skip
    assert one_block == (1 if case in ("lstm-1", "gru-1", "rnn-1") else len(scales)), "one block: per-channel form"


@pytest.mark.parametrize("case", CASES)
def test_canonical(case: str, weight_pairs: Make, run_model: Run) -> None:
    """Transposes around the pair: the same numbers, bit for bit, and still healthy."""
    spec = TensorSpec(QType.named("int4"), True, PerAxis())
    plain, _ = weight_pairs(build(case), spec)
    made, _ = weight_pairs(build(case), spec, (CanonicalAxis(axis_form="canonical"),))
    axes = [a.i for n in made.graph.node if n.op_type == "DequantizeLinear" for a in n.attribute if a.name == "axis"]
    if case not in ("lstm-2", "gru-2", "rnn-2"):  # in blocks
        assert axes and set(axes) == {1}
    wanted = run_model(plain, feeds_of(case), true=True)[0]
    np.testing.assert_array_equal(run_model(made, feeds_of(case), true=True)[0], wanted)
    got = run_model(made, feeds_of(case))[0]
    assert np.abs(got - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_two_axes_two_encodings(weight_pairs: Make, run_model: Run) -> None:
    """Tied weights: a table that is looked up by row and multiplied by, and a Gemm both ways round."""
    text = f"""{HEAD} (int64[4] i, float[3,16] x) => (float y, float v) {{
      e = Gather(w, i) y = MatMul(e, w) a = Gemm(x, w) v = Gemm<transB=1>(a, w) }}"""
    proto = parser.parse_model(text)
    array = np.random.default_rng(2).standard_normal((16, 16)) * np.geomspace(0.1, 1, 16)[:, None]
    proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), "w"))
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    made, _ = weight_pairs(proto, TensorSpec(QType.named("int8"), True, PerAxis()))
    stored = arrays(made)
    rows, columns = (np.abs(array).max(axis=i) / 127 for i in (1, 0))
    np.testing.assert_allclose(stored["w_scale"], rows, rtol=1e-5)
    np.testing.assert_allclose(stored["w_scale_1"], columns, rtol=1e-5)
    assert sorted(k for k in stored if k.startswith("w_quantized")) == ["w_quantized", "w_quantized_1"]
    axes = {n.output[0]: next(a.i for a in n.attribute) for n in made.graph.node if n.op_type == "DequantizeLinear"}
    read = {
        (n.op_type, n.input[0 if n.op_type == "Gather" else 1])
        for n in made.graph.node
        if n.op_type != "DequantizeLinear"
    }
    assert {(op, axes[value]) for op, value in read} == {("Gather", 0), ("MatMul", 1), ("Gemm", 1), ("Gemm", 0)}
    feeds = {"i": np.array([3, 0, 15, 7]), "x": np.ones((3, 16), np.float32)}
    for true in (False, True):
        for got, wanted in zip(run_model(made, feeds, true=true), run_model(proto, feeds), strict=True):
            assert np.abs(got - wanted).max() <= 0.02 * np.abs(wanted).max()
