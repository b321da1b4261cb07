"""normalize-gemm: factors and odd biases go, the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxq.passes.normalize_gemm import NormalizeGemm

RNG = np.random.default_rng(0)


def w(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(dtype)


def gemm(
    body: str, weights: dict[str, Any], signature: str = "(float[6,16] x) => (float[a,b] y)", ir: int = 8
) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : 17]> g {signature} {{ {body} }}')
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return proto


# body, weights, ops afterwards
FORMS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "alpha": ("y = Gemm<alpha=0.3>(x, w, b)", {"w": w(16, 8), "b": w(8)}, ["Gemm"]),
    "beta": ("y = Gemm<beta=0.3>(x, w, b)", {"w": w(16, 8), "b": w(1, 8)}, ["Gemm"]),
    "both": ("y = Gemm<alpha=-2.0, beta=0.3, transB=1>(x, w, b)", {"w": w(8, 16), "b": np.float32(2)}, ["Gemm"]),
    "no-bias": ("y = Gemm<alpha=0.3, beta=7.0>(x, w)", {"w": w(16, 8)}, ["Gemm"]),
    "beta-zero": ("y = Gemm<beta=0.0>(x, w, b)", {"w": w(16, 8), "b": w(8)}, ["Gemm"]),
    "a-row": ("y = Gemm(x, w, b)", {"w": w(16, 8), "b": w(6, 1)}, ["Gemm", "Add"]),
    "matrix": ("c = Gemm<beta=2.0>(x, w, b) y = Relu(c)", {"w": w(16, 8), "b": w(6, 8)}, ["Gemm", "Add", "Relu"]),
    "one-channel": ("y = Gemm(x, w, b)", {"w": w(16, 1), "b": w(6, 1)}, ["Gemm", "Add"]),
    "computed": ("z = Exp(x) y = Gemm(x, w, z)", {"w": w(16, 16)}, ["Exp", "Gemm", "Add"]),
    "computed-beta": (
        "z = Exp(x) y = Gemm<alpha=0.5, beta=0.25>(x, w, z)", {"w": w(16, 16)}, ["Exp", "Gemm", "Mul", "Add"]
    ),
    "read-twice": ("c = Gemm<alpha=2.0>(x, w, b) d = Gemm<beta=3.0>(x, w, b) y = Sub(c, d)",
                   {"w": w(16, 8), "b": w(8)}, ["Gemm", "Gemm", "Sub"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
def test_forms(case: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    body, weights, ops = FORMS[case]
    proto = gemm(body, weights)
    out = run_passes(proto, NormalizeGemm())
    assert out.ops() == ops and out.codes() == ["gemm-normalized"]
    for node in out.proto.graph.node:
        assert not {"alpha", "beta"} & {a.name for a in node.attribute}
        if node.op_type == "Gemm" and len(node.input) > 2:
            shape = out.initializers()[node.input[2]].shape
            assert shape in ((), (1,)) or shape[-1] == out.initializers()[node.input[1]].shape[-1] or "T" in body
    same_numbers(proto, out.proto)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("y = Gemm(x, w, b)", {"w": w(16, 8), "b": w(8)}),
        ("y = Gemm<alpha=1.0, beta=1.0>(x, w, b)", {"w": w(16, 8), "b": w(1, 8)}),
        ("y = Gemm<alpha=0.0>(x, w, b)", {"w": w(16, 8), "b": w(8)}),
        ("y = Gemm<alpha=2.0>(w, x, b)", {"w": w(8, 6), "b": w(16)}),
        ("z = Exp(x) y = Gemm<alpha=2.0, transB=1>(x, z)", {}),
    ],
)
def test_what_stays(body: str, weights: dict[str, Any], run_passes: Callable[..., Any]) -> None:
    assert not run_passes(gemm(body, weights), NormalizeGemm()).changed


def test_constants_of_other_readers_stay(run_passes: Callable[..., Any]) -> None:
    weights = {"w": w(16, 16), "b": w(16)}
    proto = gemm("c = Gemm<alpha=0.5, beta=2.0>(x, w, b) d = MatMul(c, w) y = Add(d, b)", weights)
    out = run_passes(proto, NormalizeGemm())
    found = out.initializers()
    np.testing.assert_array_equal(found["w"], weights["w"])
    np.testing.assert_array_equal(found["b"], weights["b"])
    np.testing.assert_array_equal(found["w_1"], weights["w"] * np.float32(0.5))
    np.testing.assert_array_equal(found["b_1"], weights["b"] * 2)


def test_a_large_weight_is_scaled_when_it_is_read(run_passes: Callable[..., Any]) -> None:
    """One rounding, the product in float64."""
    weights = {"w": w(600, 500)}
    out = run_passes(gemm("y = Gemm<alpha=0.1>(x, w)", weights, "(float[2,600] x) => (float[a,b] y)"), NormalizeGemm())
    (value,) = out.model.graph.initializers.values()
    assert type(value.const_value).__name__ == "LazyTensor"
    exact = (weights["w"].astype(np.float64) * np.float64(np.float32(0.1))).astype(np.float32)
    np.testing.assert_array_equal(value.const_value.numpy(), exact)


def test_half_floats(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    signature = "(float16[6,16] x) => (float16[a,b] y)"
    proto = gemm("y = Gemm<alpha=0.5>(x, w, b)", {"w": w(16, 8, dtype="e"), "b": w(6, 8, dtype="e")}, signature)
    out = run_passes(proto, NormalizeGemm())
    assert out.ops() == ["Gemm", "Add"]
    same_numbers(proto, out.proto, rtol=1e-2, atol=1e-2)
    huge = gemm("y = Gemm<alpha=100.0>(x, w)", {"w": np.full((16, 8), 1000, np.float16)}, signature)
    out = run_passes(huge, NormalizeGemm())
    assert not out.changed and out.codes() == ["gemm-kept"]
    assert "the constant 'w' would leave the range of FLOAT16" in out.ctx.report.notes[0].message


def test_outputs_and_bodies(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """A Gemm that makes an output which is also read, in the main graph and in a branch."""
    signature = "(bool f, float[6,16] x, float[6,8] z) => (float[a,b] c, float[d,e] y)"
    body = """c = Gemm(x, w, z) d = Relu(c)
    y = If(f) < then_branch = t () => (float[a,b] p) { p = Gemm<alpha=0.5, beta=0.5>(x, w, z) },
                else_branch = e () => (float[a,b] q) { q = Add(c, d) } >"""
    proto = gemm(body, {"w": w(16, 8)}, signature)
    out = run_passes(proto, NormalizeGemm())
    assert out.ops() == ["Gemm", "Add", "Relu", "If"] and list(out.proto.graph.node[1].output) == ["c"]
    for flag in (True, False):
        same_numbers(proto, out.proto, {"f": np.array(flag), "x": w(6, 16), "z": w(6, 8)})


def test_ir_version_3(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """What IR version 3 lists among the inputs are constants."""
    proto = gemm("y = Gemm<alpha=0.5>(x, w)", {"w": w(16, 8)}, "(float[6,16] x, float[16,8] w) => (float[a,b] y)", ir=3)
    out = run_passes(proto, NormalizeGemm())
    assert [i.name for i in out.proto.graph.input] == ["x"]
    same_numbers(proto, out.proto)
