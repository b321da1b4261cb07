"""Weight-only models end to end: the integers and scales in the file give what NumPy computes, on both sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq import api

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]
X = RNG.standard_normal((5, 64)).astype(np.float32)


def model(text: str, weights: dict[str, tuple[int, ...]], opset: int = 21) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')
    for name, shape in weights.items():
        array = (RNG.standard_normal(shape) * 0.2 + 0.05).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def initializers(proto: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def dequantized(proto: onnx.ModelProto, node: onnx.NodeProto) -> Array:
    """What a DequantizeLinear of a constant stands for, by the operator text alone, in float64."""
    found = initializers(proto)
    q, scale, *zero = (found[name].astype(np.float64) for name in node.input)
    given = {a.name: a.i for a in node.attribute}
    if "block_size" in given:
        axis, size = given["axis"], given["block_size"]
        scale, *zero = (np.repeat(p, size, axis=axis).take(np.arange(q.shape[axis]), axis=axis) for p in (scale, *zero))
    elif scale.ndim:
        shape = [-1 if i == given["axis"] else 1 for i in range(q.ndim)]
        scale, *zero = (p.reshape(shape) for p in (scale, *zero))
    return np.asarray((q - (zero[0] if zero else 0)) * scale)


def dq_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in proto.graph.node if n.op_type == "DequantizeLinear"]


@pytest.mark.parametrize("symmetric", ["yes", "no"])
@pytest.mark.parametrize("weights", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("columns", [48, 33])
def test_a_product_on_both_sessions(
    weights: str, symmetric: str, block: int, columns: int, run_model: Callable[..., Any], fused: Callable[..., Any]
) -> None:
    source = model("(float[5,64] x) => (float[5,n] y) { m = MatMul(x, w) y = Add(m, b) }", {"w": (64, columns)})
    source.graph.initializer.append(numpy_helper.from_array(np.ones(columns, np.float32), "b"))
    options: dict[str, Any] = {"weights": weights, "symmetric": symmetric, "block-size": block}
    made = api.quantize(source, recipe="w8", **options)
    (dq,) = dq_nodes(made.model)
    given = {a.name: a.i for a in dq.attribute}
    assert given == ({"axis": 0, "block_size": block} if block else {"axis": 1}), "never a negative axis"
    q = initializers(made.model)[dq.input[0]]
    assert q.dtype.name == weights and q.shape == (64, columns)
    weight = dequantized(made.model, dq)
    step = initializers(made.model)[dq.input[1]].max()
    assert np.abs(weight - initializers(source)["w"]).max() <= step * 0.5001
    wanted = X @ weight + 1
    np.testing.assert_allclose(run_model(made.model, {"x": X}, true=True)[0], wanted, rtol=1e-5, atol=1e-5)
    # MatMulNBits quantizes its activations at run time to 8 bits (accuracy level 4).
    np.testing.assert_allclose(run_model(made.model, {"x": X})[0], wanted, atol=0.02 * np.abs(wanted).max())
    assert fused(made.model).count("MatMulNBits") == 1


def test_one_weight_of_two_layers_is_copied(run_model: Callable[..., Any], fused: Callable[..., Any]) -> None:
    source = model(
        "(float[5,64] x) => (float[5,64] y) { m = MatMul(x, w) r = Tanh(m) y = MatMul(r, w) }", {"w": (64, 64)}
    )
    made = api.quantize(source, recipe="w4-blocked")
    first, second = dq_nodes(made.model)
    assert not set(first.input) & set(second.input), "integers of its own"
    assert fused(made.model).count("MatMulNBits") == 2
    (note,) = [n for n in made.report.notes if n.code == "weight-copied"]
    assert note.numbers["bytes"] == 64 * 64 // 2 + 64 * 2 * 4
    weight = dequantized(made.model, first)
    np.testing.assert_array_equal(weight, dequantized(made.model, second))
    wanted = np.tanh(X @ weight) @ weight
    np.testing.assert_allclose(run_model(made.model, {"x": X}, true=True)[0], wanted, rtol=1e-4, atol=1e-4)
    other = api.quantize(source, recipe="w4-blocked", target="onnx")
    assert len({n.input[0] for n in dq_nodes(other.model)}) == 1, "the specification has no use for copies"


def test_an_embedding_that_is_the_output_layer_too(run_model: Callable[..., Any], fused: Callable[..., Any]) -> None:
    text = """(int64[5] i) => (float[5,n] y) {
      e = Gather(t, i) h = Tanh(e) u = Transpose<perm=[1,0]>(t) y = MatMul(h, u) }"""
    source = model(text, {"t": (130, 64)})
    made = api.quantize(source, recipe="w4-blocked")
    codes = [n.code for n in made.report.notes]
    assert "embedding-type" in codes and "embeddings" in codes
    kinds = {t.name: onnx.TensorProto.DataType.Name(t.data_type) for t in made.model.graph.initializer}
    assert sorted(set(kinds.values())) == ["FLOAT", "INT4", "INT8"], kinds
    assert not any(t.dims == [130, 64] and t.data_type == 1 for t in made.model.graph.initializer), (
        "no float table left"
    )
    assert "MatMulNBits" in fused(made.model)
    feeds = {"i": np.array([0, 5, 129, 7, 7])}
    exact, (true,), (default,) = (
        run_model(source, feeds)[0],
        run_model(made.model, feeds, true=True),
        run_model(made.model, feeds),
    )
    size = np.abs(exact).max()
    assert np.abs(true - exact).max() < 0.12 * size and np.abs(default - true).max() < 0.02 * size


def test_tables_stay_float_where_asked() -> None:
    source = model("(int64[5] i) => (float[5,64] y) { y = Gather(t, i) }", {"t": (130, 64)})
    made = api.quantize(source, recipe="w8", embeddings="float")
    assert made.plan["nodes"]["Gather_y"]["code"] == "embedding" and not dq_nodes(made.model)
    assert "nothing-to-quantize" in [n.code for n in made.report.notes]


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers(op: str, gates: int, weights: str, directions: int, run_model: Callable[..., Any]) -> None:
    """Both weights become integers; bias and initial state stay float."""
    way = ', direction="bidirectional"' if directions == 2 else ""
    text = f"(float[4,2,6] x) => (float[a,b,c,d] y) {{ y = {op}<hidden_size=7{way}>(x, w, r, b, , h) }}"
    source = model(text, {
        "w": (directions, gates * 7, 6), "r": (directions, gates * 7, 7), "b": (directions, 2 * gates * 7),
        "h": (directions, 2, 7),
    })  # fmt: skip
    made = api.quantize(source, recipe="w8", target="onnx", weights=weights)
    found = initializers(made.model)
    assert {found[n.input[0]].dtype.name for n in dq_nodes(made.model)} == {weights} and len(dq_nodes(made.model)) == 2
    assert {"b", "h"} <= set(found) and not {"w", "r"} & set(found)
    decoded = onnx.ModelProto.FromString(source.SerializeToString())
    by_name = {n.input[0].removesuffix("_quantized"): dequantized(made.model, n) for n in dq_nodes(made.model)}
    for tensor in decoded.graph.initializer:
        if tensor.name in by_name:
            tensor.CopyFrom(numpy_helper.from_array(by_name[tensor.name].astype(np.float32), tensor.name))
    feeds = {"x": RNG.standard_normal((4, 2, 6)).astype(np.float32)}
    (wanted,) = run_model(decoded, feeds, optimised=False)
    for true in (False, True):
        np.testing.assert_allclose(run_model(made.model, feeds, true=true)[0], wanted, rtol=1e-5, atol=1e-6)


def test_convolutions_when_forced(run_model: Callable[..., Any]) -> None:
    source = model("(float[1,4,8,8] x) => (float[a,b,c,d] y) { y = Conv(x, k) }", {"k": (6, 4, 3, 3)})
    plain = api.quantize(source, recipe="w8")
    assert plain.plan["nodes"]["Conv_y"]["code"] == "not-weight-only"
    made = api.quantize(source, recipe="w8", force=["op:Conv"])
    (dq,) = dq_nodes(made.model)
    assert [a.i for a in dq.attribute] == [0]
    feeds = {"x": RNG.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    exact = run_model(source, feeds)[0]
    for true in (False, True):
        assert np.abs(run_model(made.model, feeds, true=true)[0] - exact).max() < 0.01 * np.abs(exact).max()


def test_branches(run_model: Callable[..., Any]) -> None:
    text = """(bool f, float[5,64] x) => (float[5,32] y) { y = If(f) <
      then_branch = t () => (float[5,32] p) { p = MatMul(x, w) },
      else_branch = e () => (float[5,32] q) { q = MatMul(x, v) } > }"""
    source = model(text, {"w": (64, 32), "v": (64, 32)})
    made = api.quantize(source, recipe="w4-blocked")
    assert all(entry["status"] == "weight-only" for entry in made.plan["nodes"].values() if entry.get("layer"))
    nested = ir.from_proto(made.model)
    assert [n.op_type for n in nested.graph.all_nodes()].count("DequantizeLinear") == 2
    for flag in (True, False):
        feeds = {"f": np.array(flag), "x": X}
        exact, got = run_model(source, feeds)[0], run_model(made.model, feeds, true=True)[0]
        assert 0 < np.abs(got - exact).max() < 0.15 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("body", "slow"),
    [
        ("m = MatMul(x, w) r = Relu(m) y = MatMul(r, v)", ["MatMul_m"]),
        ("m = Gemm<transB=1>(x, w, b) r = Relu(m) y = MatMul(r, v)", ["Gemm_m"]),
        ("m = MatMul(x, w) a = Add(m, b) r = Relu(a) y = MatMul(r, v)", ["MatMul_m"]),
        ("m = MatMul(x, w) r = LeakyRelu(m) y = MatMul(r, v)", []),
        ("m = MatMul(x, w) h = Tanh(m) u = MatMul(h, v) y = Relu(u)", []),
        ("e = Gather(t, i) m = MatMul(e, w) h = Tanh(m) y = MatMul(h, v)", ["MatMul_m"]),
    ],
)
def test_layers_that_onnxruntime_does_not_fuse(body: str, slow: list[str], fused: Callable[..., Any]) -> None:
    """The notes say what the optimized model shows, and their remedies help."""
    sizes = {"w": (64, 64), "v": (64, 64), "b": (64,), "t": (100, 64)}
    text = f"(float[5,64] x, int64[3] i) => (float[r,n] y) {{ {body} }}"
    source = model(text, {k: v for k, v in sizes.items() if f"{k})" in body or f"({k}," in body or f" {k}," in body})
    made = api.quantize(source, recipe="w4-blocked")
    assert [n.place.node for n in made.report.notes if n.code == "not-fused"] == slow
    assert fused(made.model).count("MatMulNBits") == 2 - len(slow)
    remedy: dict[str, Any] = {"embeddings": "float"} if "Gather" in body else {"matmulnbits": True}
    lowered = api.quantize(source, recipe="w4-blocked", **remedy)
    assert fused(lowered.model).count("MatMulNBits") == 2


@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize("recipe", ["w8", "w4-blocked"])
def test_weights_around_a_body(
    recipe: str, target: str, run_model: Callable[..., Any], fused: Callable[..., Any]
) -> None:
    """onnxruntime fuses a product in a body, and then finds its integers in that body alone."""
    text = """(bool c, float[5,64] x, int64 n) => (float[5,64] y) {
      g = If(c) < then_branch = t () => (float[5,64] p) { p = MatMul(x, w) },
                  else_branch = e () => (float[5,64] q) { k = Gemm(x, w, b) r = Tanh(k) q = MatMul(r, w) } >
      y = Loop(n, , g) < body = l (int64 i, bool go, float[5,64] s) => (bool on, float[5,64] o) {
        on = Identity(go) m = MatMul(s, v) o = Tanh(m) } > }"""
    source = model(text, {"w": (64, 64), "v": (64, 64), "b": (64,)})
    made = api.quantize(source, recipe=recipe, target=target)
    assert [n["status"] for n in made.plan["nodes"].values()].count("weight-only") == 4
    copied = [str(n) for n in made.report.notes if n.code == "weight-copied"]
    assert len(copied) == (2 if target == "ort-cpu" else 1) and all("'w'" in note for note in copied)
    assert not {"w", "v"} & set(initializers(made.model)) and "MatMulNBits" in fused(made.model)
    bodies = [a.g for n in made.model.graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    parts = {g.name: onnx.ModelProto(graph=g) for g in bodies}
    (p,), (k, *more), (v,) = ([dequantized(m, n) for n in dq_nodes(m)] for m in (parts["t"], parts["e"], parts["l"]))
    b = initializers(source)["b"]
    for branch, g in {True: X @ p, False: np.tanh(X @ k + b) @ (more or [k])[0]}.items():
        feeds = {"c": np.array(branch), "x": X, "n": np.array(2)}
        true, default = run_model(made.model, feeds, true=True)[0], run_model(made.model, feeds)[0]
        np.testing.assert_allclose(true, np.tanh(np.tanh(g @ v) @ v), rtol=1e-4, atol=1e-4)
        assert np.linalg.norm(default - true) < 0.05 * np.linalg.norm(true)  # fused: activations in 8 bits
