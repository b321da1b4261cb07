"""insert-dynamic: layers between float ops quantize their input at run time, and onnxruntime fuses what is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq.api import run

RNG = np.random.default_rng(0)
X2, X3 = "(float[6,16] x) => (float[a,b] y)", "(float[2,6,16] x) => (float[a,b,c] y)"


def w(*shape: int, scale: float = 0.3) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def model(signature: str, body: str) -> str:
    return f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}'


# (signature, body, weights, float ops left)
FORMS: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "matmul": (X2, "c = MatMul(x, w) y = Tanh(c)", {"w": w(16, 8)}, ["Tanh"]),
    "rank-3": (X3, "c = MatMul(x, w) y = Tanh(c)", {"w": w(16, 8)}, ["Tanh"]),
    "symbolic": ("(float[n,m,16] x) => (float[a,b,c] y)", "y = MatMul(x, w)", {"w": w(16, 8)}, []),
    "bias": (X2, "c = MatMul(x, w) d = Add(b, c) y = Tanh(d)", {"w": w(16, 8), "b": w(8)}, ["Tanh"]),
    "bias-rank-3": (X3, "c = MatMul(x, w) y = Add(c, b)", {"w": w(16, 8), "b": w(1, 1, 8)}, []),
    "bias-relu": (X2, "c = MatMul(x, w) d = Add(c, b) y = Relu(d)", {"w": w(16, 8), "b": w(8)}, ["Relu"]),
    "bias-scalar": (X2, "c = MatMul(x, w) y = Add(c, b)", {"w": w(16, 8), "b": np.float32(0.5)}, ["Add"]),
    "bias-a-row": (X2, "c = MatMul(x, w) y = Add(c, b)", {"w": w(16, 8), "b": w(6, 8)}, ["Add"]),
    "residual": (X2, "c = MatMul(x, w) y = Add(c, x)", {"w": w(16, 16)}, ["Add"]),
    "vector-weight": (X2.replace("a,b", "a"), "y = MatMul(x, w)", {"w": w(16)}, []),
    "vector-input": ("(float[16] x) => (float[a] y)", "c = MatMul(x, w) y = Add(c, b)", {"w": w(16, 8), "b": w(8)}, []),
    "weight-rank-3": (X3, "c = MatMul(x, w) y = Add(c, b)", {"w": w(2, 16, 8), "b": w(8)}, []),
    "one-channel": (X2, "c = MatMul(x, w) y = Add(c, b)", {"w": w(16, 1), "b": w(1)}, ["Add"]),
    "gemm": (X2, "y = Gemm(x, w, b)", {"w": w(16, 8), "b": w(8)}, []),
    "gemm-bare": (X2, "y = Gemm(x, w)", {"w": w(16, 8)}, []),
    "gemm-transposed": (X2, "c = Gemm<transB=1>(x, w, b) y = Tanh(c)", {"w": w(8, 16), "b": w(1, 8)}, ["Tanh"]),
    "gemm-square": (X2, "y = Gemm<transB=1>(x, w, b)", {"w": w(16, 16), "b": w(16)}, []),
    "gemm-factors": (X2, "y = Gemm<alpha=0.5, beta=3.0>(x, w, b)", {"w": w(16, 8), "b": w(8)}, []),
    "gemm-bias-a-row": (X2, "y = Gemm(x, w, b)", {"w": w(16, 8), "b": w(6, 8)}, ["Add"]),
}


@pytest.mark.parametrize("case", FORMS)
def test_one_fused_kernel(case: str, quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    signature, body, weights, left = FORMS[case]
    made = quantized(model(signature, body), weights)
    assert made.count("MatMulInteger") == made.count("DynamicQuantizeLinear") == 1
    assert fused(made.proto) == ["DynamicQuantizeMatMul", *left]
    assert "dynamic-layers" in made.codes()
    close(made)


def oracle(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """MatMul with its input quantized over its own range, weights symmetric per column; as the ONNX texts say."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    s_x = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / s_x), 0, 255)
    x_q = np.clip(np.rint(x / s_x) + zero, 0, 255) - zero
    s_w = np.abs(weight).max(axis=0) / np.float32(127)
    return np.asarray((x_q @ np.rint(weight / s_w)) * (s_x * s_w))


@pytest.mark.parametrize("transposed", [False, True])
def test_numbers(transposed: bool, quantized: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    weight, x = w(16, 16) * np.linspace(0.1, 3, 16, dtype=np.float32), w(6, 16, scale=5) + 2
    body = f"y = Gemm<transB={int(transposed)}>(x, w)"
    made = quantized(model(X2, body), {"w": weight.T.copy() if transposed else weight})
    for optimised in (True, False):
        (y,) = run_model(made.proto, {"x": x}, optimised=optimised)
        np.testing.assert_allclose(y, oracle(x, weight), rtol=1e-4, atol=1e-4)


def test_one_quantize_for_many_readers(quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    body = "t = Tanh(x) a = MatMul(t, w) b = MatMul(t, u) c = Gemm<transB=1>(t, w, d) e = Sum(a, b, c, t) y = Tanh(e)"
    made = quantized(model(X2, body), {"w": w(16, 16), "u": w(16, 16), "d": w(16)})
    assert made.count("DynamicQuantizeLinear") == 1 and made.count("MatMulInteger") == 3
    names = [k for k in made.initializers() if k.endswith("_quantized") or "_quantized_" in k]
    assert names == ["w_quantized", "u_quantized", "w_quantized_1"], "one copy a layout"
    assert fused(made.proto).count("MatMulIntegerToFloat") == 3
    close(made)


def test_a_static_reader_of_the_same_value(quantized: Callable[..., Any], close: Any) -> None:
    """A Conv reads the value from a pair, a MatMul between float ops quantizes it itself, an Exp keeps the float."""
    body = "t = Tanh(x) a = Conv(t, k) b = MatMul(t, w) e = Exp(t) s = ReduceMean(a) z = Sum(b, e) y = Add(z, s)"
    made = quantized(model("(float[1,8,16,16] x) => (float[a,b,c,d] y)", body), {"k": w(8, 8, 3, 3), "w": w(16, 16)})
    assert sorted(made.readers("t")) == ["DynamicQuantizeLinear", "Exp", "QuantizeLinear"]
    assert made.readers("t_dequantized") == ["Conv"]
    close(made)


# An Add that makes the product wider, or gives it more axes: onnxruntime takes its constant for a bias, and then fails,
# or drops the axes. Such layers get a calibrated range instead.
WIDER: dict[str, tuple[str, dict[str, Any]]] = {
    "more-columns": (X2, {"w": w(16, 1), "b": w(5)}),
    "more-columns-2": (X2, {"w": w(16, 1), "b": w(1, 5)}),
    "more-axes": (X2.replace("a,b", "a,b,c"), {"w": w(16, 8), "b": w(1, 1, 8)}),
    "vector-weight": (X2.replace("a,b", "a"), {"w": w(16), "b": w(6)}),
    "vector-input": ("(float[16] x) => (float[a,b] y)", {"w": w(16, 8), "b": w(1, 8)}),
}


@pytest.mark.parametrize("case", WIDER)
def test_no_bias_that_changes_the_shape(case: str, quantized: Callable[..., Any], close: Any) -> None:
    signature, weights = WIDER[case]
    made = quantized(model(signature, "c = MatMul(x, w) d = Add(c, b) y = Tanh(d)"), weights)
    assert made.status("MatMul_c") == "integer/layer" and made.count("DynamicQuantizeLinear") == 0
    close(made)


def test_no_dynamic_form_for_a_transposed_input(quantized: Callable[..., Any], close: Any) -> None:
    made = quantized(model("(float[16,6] x) => (float[a,b] y)", "y = Gemm<transA=1>(x, w)"), {"w": w(16, 8)})
    assert made.status("Gemm_y") == "integer/layer"
    close(made)


def test_names_metadata_and_types(quantized: Callable[..., Any]) -> None:
    """The layer's output keeps its name, nodes say where they come from, and taken names are left alone."""
    proto = onnx.parser.parse_model(
        model(X2, "x_quantized = MatMul(x, w) fc_Mul = Add(x_quantized, b) y = Gemm(fc_Mul, v, c)")
    )
    first, _, last = proto.graph.node
    first.name, last.name, last.doc_string = "fc", "out", "the head"
    last.metadata_props.add(key="namespace", value="model/head")
    made = quantized(proto, {"w": w(16, 8), "b": w(8), "v": w(8, 4), "c": w(4)}, exclude=["op:Add"])
    graph = made.proto.graph
    values = [*(t.name for t in graph.initializer), *(n for node in graph.node for n in node.output), "x"]
    assert len(set(values)) == len(values) and len({n.name for n in graph.node}) == len(graph.node)
    assert "x_quantized" in values and made.maker("x_quantized").op_type == "Mul"
    add = made.maker("y")
    assert add.op_type == "Add" and add.doc_string == "the head"
    props = {p.key: p.value for p in add.metadata_props}
    assert props["namespace"] == "model/head" and props["onnxq.pass"] == "insert-dynamic"


BODIES = {
    "if": (
        "(bool c, float[6,16] x) => (float[a,b] y)",
        """e = Exp(x) y = If(c) < then_branch = t () => (float[a,b] p) { m = MatMul(e, w) p = Add(m, b) },
        else_branch = e () => (float[a,b] q) { k = MatMul(x, w) z = Sigmoid(k) q = Gemm<transB=1>(z, u, b) } >""",
        {"w": w(16, 8), "b": w(8), "u": w(8, 8)},
        3,
    ),
    "nested": (
        "(bool c, float[6,16] x) => (float[a,b] y)",
        """e = Tanh(x) y = If(c) < then_branch = t () => (float[a,b] p) { m = MatMul(e, w)
        p = If(c) < then_branch = t2 () => (float[a,b] p2) { p2 = MatMul(m, w) },
        else_branch = e2 () => (float[a,b] q2) { q2 = MatMul(e, w) } > },
        else_branch = e () => (float[a,b] q) { q = MatMul(x, w) } >""",
        {"w": w(16, 16)},
        4,
    ),
    "loop": (
        "(float[6,16] x) => (float[a,b] y, float[k,l,m] s)",
        """y, s = Loop(n, cond, x) < body = t (int64 i, bool go, float[6,16] st)
        => (bool co, float[6,16] so, float[6,16] sc) {
          co = Identity(go) m = MatMul(st, w) so = Tanh(m) sc = MatMul(x, w) } >""",
        {"w": w(16, 16), "n": np.array(3), "cond": np.array(True)},
        2,
    ),
    "scan": (
        "(float[6,16] x, float[16] h) => (float[a] y, float[k,l] s)",
        """e = MatMul(x, v) y, s = Scan<num_scan_inputs=1, body = t (float[16] st, float[16] xt)
        => (float[16] so, float[16] sc) { m = MatMul(st, w) a = Add(m, xt) so = Tanh(a) sc = Identity(so) } >(h, e)""",
        {"w": w(16, 16), "v": w(16, 16)},
        2,
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_bodies(case: str, quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """Layers inside bodies, with captured values and shared weights; every node is listed with its reason."""
    signature, body, weights, layers = BODIES[case]
    made = quantized(model(signature, body), weights)
    statuses = [entry["status"] for entry in made.plan["nodes"].values()]
    assert statuses.count("dynamic") == layers and all(entry["reason"] for entry in made.plan["nodes"].values())
    assert fused(made.proto).count("DynamicQuantizeMatMul") == layers
    assert sum("w_quantized" in k for k in made.initializers()) == 1
    close(made, 0.08)


def test_a_body_that_reads_an_integer_value(quantized: Callable[..., Any], fused: Any, close: Any) -> None:
    """DynamicQuantizeLinear reads what comes out of the pair, or the layer in front of the pair would not be fused."""
    body = """h = Gemm(x, w, b) r = Relu(h) g = MatMul(r, w)
    y = If(f) < then_branch = t () => (float[a,b] p) { m = MatMul(r, w) n = Relu(m) p = Exp(n) },
                else_branch = e () => (float[a,b] q) { k = MatMul(r, w) l = Relu(k) q = Add(l, g) } >"""
    feeds = [{"f": np.array(flag), "x": w(6, 16, scale=1)} for flag in (True, False)]
    made = quantized(
        model("(bool f, float[6,16] x) => (float[a,b] y)", body), {"w": w(16, 16), "b": w(16)}, feeds=feeds
    )
    assert made.status("MatMul_m") == made.status("MatMul_k") == "dynamic/in-subgraph"
    assert made.readers("r") == ["QuantizeLinear"]
    assert fused(made.proto).count("QGemm") == 1 and not {"Gemm", "FusedGemm", "MatMul"} & set(fused(made.proto))
    close(made, 0.1)


def test_weights_of_a_body(quantized: Callable[..., Any], close: Any) -> None:
    """A weight that belongs to a branch stays in that branch."""
    numbers = ",".join(f"{v:.3f}" for v in w(32).tolist())
    text = model(
        "(bool c, float[6,16] x) => (float[a,b] y)",
        f"""y = If(c) < then_branch = t () => (float[a,b] p) <float[16,2] k = {{{numbers}}}> {{ p = MatMul(x, k) }},
        else_branch = e () => (float[a,b] q) <float[16,2] k2 = {{{numbers}}}> {{ q = MatMul(x, k2) }} >""",
    )
    made = quantized(text, feeds=[{"c": np.array(flag), "x": w(6, 16, scale=1)} for flag in (True, False)])
    (node,) = [n for n in made.proto.graph.node if n.op_type == "If"]
    stored = {a.name: sorted(t.name for t in a.g.initializer) for a in node.attribute}
    assert stored["then_branch"] == ["k_quantized", "k_scale", "k_zero_point"]
    assert not made.proto.graph.initializer
    close(made)


def test_recipe_without_samples(run_model: Callable[..., Any]) -> None:
    """The recipe dynamic needs no data, so custom ops pass through; ops that need ranges stay float and say so."""
    text = """<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]> g (float[1,4,8,8] x) => (float[a,b] y) {
      c = Conv(x, k) f = my.domain.Foo(c) r = Flatten(f) y = Gemm(r, w, b) }"""
    proto = onnx.parser.parse_model(text)
    for name, array in {"k": w(4, 4, 3, 3), "w": w(144, 8), "b": w(8)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result = run("dynamic", proto)
    nodes = result.plan["nodes"]
    assert nodes["Conv_c"]["code"] == "no-ranges" and nodes["Gemm_y"]["status"] == "dynamic"
    assert nodes["Foo_f"]["reason"] == "ort-cpu has no integer kernel for my.domain.Foo"
    ops = [n.op_type for n in result.model.graph.node]
    assert ops == ["Conv", "Foo", "Flatten", "DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul", "Add"]
    assert {o.domain: o.version for o in result.model.opset_import} == {"": 21, "my.domain": 1}
