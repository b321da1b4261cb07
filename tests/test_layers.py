"""Layers: what belongs to a matmul-like op, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.layers import Layer, clip_bounds, clip_limit, folds, merges_into_gemm, read_layer, widened_behind

RNG = np.random.default_rng(0)
X2 = "(float[6,16] x) => (float[a,b] y)"
C4 = "(float[1,8,8,8] x) => (float[a,b,c,d] y)"


def w(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def load(signature: str, body: str, weights: dict[str, Any], opset: int = 17, infer: bool = True) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {{ {body} }}')
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto) if infer else proto)


def first(model: ir.Model, apart: tuple[str, ...] = ()) -> Layer:
    layer = read_layer(model.graph[0], [n for n in model.graph if n.op_type in apart])
    assert isinstance(layer, Layer), layer
    return layer


def shape_of(layer: Layer) -> tuple[list[str], str | None, str | None]:
    bias = layer.bias.value.name if layer.bias else None
    return [n.op_type for n in layer.body], layer.tail.name, bias


# signature, body, weights -> body of the layer, tail, bias, channels, terms
SHAPES: dict[str, tuple[str, str, dict[str, Any], list[str], str, str | None, int | None, int]] = {
    "conv": (C4, "c = Conv(x, k, b) r = Relu(c) y = Exp(r)", {"k": w(4, 8, 3, 3), "b": w(4)}, ["Relu"], "r", "b", 4,
             72),
    "grouped": (C4, "y = Conv<group=4>(x, k)", {"k": w(12, 2, 3, 3)}, [], "y", None, 12, 18),
    "transposed": (C4, "y = ConvTranspose(x, k, b)", {"k": w(8, 5, 2, 2), "b": w(5)}, [], "y", "b", 5, 32),
    "transposed-grouped": (C4, "y = ConvTranspose<group=2>(x, k)", {"k": w(8, 3, 2, 2)}, [], "y", None, 6, 16),
    "gemm": (X2, "y = Gemm(x, k, b)", {"k": w(16, 4), "b": w(1, 4)}, [], "y", "b", 4, 16),
    "gemm-t": (X2, "y = Gemm<transB=1>(x, k)", {"k": w(4, 16)}, [], "y", None, 4, 16),
    "matmul": (X2, "c = MatMul(x, k) d = Add(b, c) y = Relu(d)", {"k": w(16, 4), "b": w(4)}, ["Add", "Relu"], "y", "b",
               4, 16),
    "scalar-bias": (X2, "c = MatMul(x, k) y = Add(c, b)", {"k": w(16, 4), "b": np.float32(1)}, ["Add"], "y", "b", 4,
                    16),
    "rank-3": ("(float[2,6,16] x) => (float[a,b,c] y)", "c = MatMul(x, k) y = Add(c, b)",
               {"k": w(2, 16, 4), "b": w(1, 1, 4)}, ["Add"], "y", "b", 4, 16),
    "vector": (X2.replace("a,b", "a"), "c = MatMul(x, k) y = Add(c, b)", {"k": w(16), "b": w(6)}, [], "c", None, None,
               16),
    "left": (X2, "y = MatMul(k, x)", {"k": w(4, 6)}, [], "y", None, 4, 6),
    "activations": ("(float[4,4] x) => (float[a,b] y)", "c = MatMul(x, x) y = Relu(c)", {}, ["Relu"], "y", None, None,
                    0),
    "behind-transpose": (X2, "y = MatMul(x, t)", {}, [], "y", None, 4, 16),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_what_belongs_to_a_layer(case: str) -> None:
    signature, body, weights, *expected = SHAPES[case]
    model = load(signature, body, weights, infer=case != "behind-transpose")
    if case == "behind-transpose":
        model = load(signature, "t = Transpose(k) " + body, {"k": w(4, 16)})
        model.graph.append(model.graph[0])  # the layer comes first for `first`
    layer = first(model)
    assert [*shape_of(layer), layer.channels, layer.terms] == expected
    assert layer.folded == ("Relu" in expected[0])


# signature, body, weights: the layer ends at `c`.
ENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "two-readers": (X2, "c = MatMul(x, k) d = Relu(c) e = Tanh(c) y = Add(d, e)", {}),
    "output": (X2.replace("(float[a,b] y)", "(float[a,b] c, float[a,b] y)"), "c = MatMul(x, k) y = Relu(c)", {}),
    "bias-a-row": (X2, "c = MatMul(x, k) y = Add(c, b)", {"b": w(6, 4)}),
    "bias-of-rows": (X2, "c = MatMul(x, k) y = Add(c, b)", {"b": w(6, 1)}),
    "more-axes": (X2.replace("a,b", "a,b,c"), "c = MatMul(x, k) y = Add(c, b)", {"b": w(1, 1, 4)}),
    "computed": (X2, "c = MatMul(x, k) e = Exp(c) y = Add(c, e)", {}),
    "itself": (X2, "c = MatMul(x, k) y = Add(c, c)", {}),
    "clip": (X2, "c = MatMul(x, k) y = Clip(c, b)", {"b": np.float32(-1)}),
    "other-act": (X2, "c = MatMul(x, k) y = Tanh(c)", {}),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_does_not(case: str) -> None:
    signature, body, weights = ENDS[case]
    assert shape_of(first(load(signature, body, {"k": w(16, 4), **weights}))) == ([], "c", None)


def test_apart() -> None:
    model = load(X2, "c = MatMul(x, k) d = Add(c, b) y = Relu(d)", {"k": w(16, 4), "b": w(4)})
    assert shape_of(first(model, ("Add",))) == ([], "c", None)
    assert shape_of(first(model, ("Relu",))) == (["Add"], "d", "b")
    assert shape_of(first(model, ("Add", "Relu"))) == ([], "c", None)


def test_bias_in_another_scope() -> None:
    """The Add in a branch is no part of a layer of the main graph."""
    text = """c = MatMul(x, k)
    y = If(f) < then_branch = t () => (float[a,b] p) { p = Add(c, b) },
                else_branch = e () => (float[a,b] q) { q = Neg(x) } >"""
    model = load("(bool f, float[6,16] x) => (float[a,b] y)", text, {"k": w(16, 4), "b": w(4)})
    assert shape_of(first(model)) == ([], "c", None)


@pytest.mark.parametrize(
    ("body", "weights", "words"),
    [
        ("y = Conv(x, x)", {}, "its weight is computed at run time"),
        ("y = Conv(k, k)", {"k": w(8, 8, 1, 1)}, None),
        ("y = Gemm(k, k)", {"k": w(8, 8)}, "all its operands are constant"),
        ("y = Conv(x, k, x)", {"k": w(8, 8, 1, 1)}, "its bias is computed at run time"),
        ("y = Gemm(x, k, b)", {"k": w(8, 4), "b": w(8, 1)}, r"its bias of shape \[8, 1\]"),
        ("y = MatMul(x, k)", {"k": np.ones((8, 4), np.int32)}, "its weight is int32, not a float type"),
        ("y = Exp(x)", {}, "Exp carries no weights"),
    ],
)
def test_what_is_no_layer(body: str, weights: dict[str, Any], words: str | None) -> None:
    import re

    found = read_layer(load("(float[8,8,8,8] x) => (float[8] y)", body, weights, infer=False).graph[0])
    assert isinstance(found, Layer) if words is None else re.search(words, str(found))


@pytest.mark.parametrize(
    ("text", "opset", "constants", "bounds", "does"),
    [
        ("Clip<min=0.0, max=6.0>(x)", 6, {}, (0.0, 6.0), True),
        ("Clip<max=6.0>(x)", 6, {}, (None, 6.0), False),
        ("Clip(x, lo, hi)", 13, {"lo": np.float32(0), "hi": np.float32(6)}, (0.0, 6.0), True),
        ("Clip(x, lo)", 13, {"lo": np.float32(0)}, (0.0, None), True),
        ("Clip(x, , hi)", 13, {"hi": np.float32(6)}, (None, 6.0), False),
        ("Clip(x, lo, x)", 13, {"lo": np.zeros(1, "f")}, (0.0, None), True),
        ("Clip(x)", 13, {}, (None, None), False),
        ("Clip(x, lo)", 13, {"lo": np.float32(0.5)}, (0.5, None), False),
        ("Relu(x)", 13, {}, (None, None), True),
        ("LeakyRelu(x)", 13, {}, (None, None), False),
    ],
)
def test_what_folds(text: str, opset: int, constants: dict[str, Any], bounds: Any, does: bool) -> None:
    model = load("(float[4] x) => (float[4] y)", f"y = {text}", constants, opset, infer=False)
    node = model.graph[0]
    assert folds(node) == does
    if node.op_type == "Clip":
        assert clip_bounds(node) == bounds and clip_limit(node.outputs[0]) == bounds[1]
    assert clip_limit(model.graph.inputs[0]) is None


@pytest.mark.parametrize(
    ("signature", "body", "weights", "does"),
    [
        (X2, "c = MatMul(x, k) y = Add(c, x)", {"k": w(16, 16)}, True),
        (X2, "c = MatMul(x, k) y = Add(c, z)", {"k": w(16, 16), "z": w(6, 16)}, True),
        (X2, "c = MatMul(x, k) d = Add(c, x) y = Add(d, c)", {"k": w(16, 16)}, True),
        (X2, "c = MatMul(x, k) y = Add(c, b)", {"k": w(16, 16), "b": w(16)}, False),
        (X2, "c = MatMul(x, k) y = Mul(c, x)", {"k": w(16, 16)}, False),
        (X2, "c = Gemm(x, k) y = Add(c, x)", {"k": w(16, 16)}, False),
        ("(float[2,6,16] x) => (float[a] y)", "c = MatMul(x, k) y = Add(c, x)", {"k": w(16, 16)}, False),
    ],
)
def test_what_merges_into_a_gemm(signature: str, body: str, weights: dict[str, Any], does: bool) -> None:
    assert merges_into_gemm(first(load(signature, body, weights))) == does


def test_an_excluded_bias_merges_at_any_rank() -> None:
    signature = "(float[2,6,16] x) => (float[a,b,c] y)"
    model = load(signature, "c = MatMul(x, k) y = Add(c, b)", {"k": w(16, 16), "b": w(16)})
    assert merges_into_gemm(first(model, ("Add",)))


@pytest.mark.parametrize(
    ("weight", "constant", "does"),
    [
        ((16, 4), (4,), False),
        ((16, 4), (1, 4), False),
        ((16, 4), (6, 4), False),
        ((16, 4), (1,), False),
        ((16, 4), (), False),
        ((16, 4), (1, 1, 4), True),
        ((16, 4), (3, 1, 4), False),
        ((16, 1), (5,), True),
        ((16, 1), (1, 5), True),
        ((16, 1), (6, 5), False),
        ((16,), (6,), True),
        ((16,), (1,), False),
    ],
)
def test_what_widens_a_product(weight: tuple[int, ...], constant: tuple[int, ...], does: bool) -> None:
    model = load(X2.replace("a,b", "a"), "c = MatMul(x, k) y = Add(c, b)", {"k": w(*weight), "b": w(*constant)})
    assert widened_behind(first(model, ("Add",))) == does
