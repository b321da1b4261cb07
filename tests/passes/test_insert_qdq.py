"""insert-qdq: where pairs stand, how constants are stored, bodies. What gets fused: test_fused_kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.errors import OptionError
from onnxq.facts import Decision, Edge, Encodings, Plan, Wishes
from onnxq.numerics.encodings import from_range, from_values
from onnxq.numerics.spec import Encoding, PerAxis, QType, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.insert_qdq import InsertQdq

RNG = np.random.default_rng(0)


def w(*shape: int, scale: float = 0.3) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def model(signature: str, body: str, opset: int = 17) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {{ {body} }}'


def island(body: str, dims: str = "2,4,8,8", out: str = "a,b,c,d", opset: int = 17) -> str:
    """``a`` is made by a Conv, ``o`` is read by one."""
    return model(f"(float[{dims}] x) => (float[{out}] y)", f"a = Conv(x, w1, b1) {body} y = Conv(o, w2)", opset)


CONV = {"w1": w(8, 4, 3, 3), "b1": w(8), "w2": w(4, 8, 1, 1)}
X2 = "(float[6,16] x) => (float[a,b] y)"


# -- placement --------------------------------------------------------------------------------------------------------


def test_no_pair_inside_a_layer_and_one_q_behind(quantized: Callable[..., Any]) -> None:
    made = quantized(island("r = Relu(a) m = MaxPool<kernel_shape=[2,2]>(r) o = Add(m, m)"), CONV)
    assert made.readers("a") == ["Relu"] and made.readers("r") == ["QuantizeLinear"]
    params = made.initializers()
    assert params["r_zero_point"] == 0 and params["r_zero_point"].dtype == np.uint8
    q = made.maker(made.maker("r_dequantized").input[0])
    assert list(q.input) == ["r", "r_scale", "r_zero_point"] and q.metadata_props[0].value == "insert-qdq"
    assert list(made.maker("m_dequantized").input)[1:] == ["r_scale", "r_zero_point"], "data movement shares"
    assert "m_scale" not in params and made.count("QuantizeLinear") == 5


def test_every_parameter_is_written_out(quantized: Callable[..., Any]) -> None:
    """Scales of rank 0 per tensor, an axis that is never negative elsewhere, zero points everywhere."""
    made = quantized(island("o = Relu(a)"), CONV)
    params = made.initializers()
    for node in made.proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert len(node.input) == 3 and all(node.input)
            scale, zero = params[node.input[1]], params[node.input[2]]
            assert scale.shape == zero.shape and scale.dtype == np.float32
            axes = {a.name: a.i for a in node.attribute}
            assert axes == ({} if scale.ndim == 0 else {"axis": 0})
    assert params["w1_quantized"].dtype == np.int8 and params["w1_scale"].shape == (8,)
    s_b = (params["x_scale"].astype(np.float64) * params["w1_scale"].astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(params["b1_scale"], s_b)
    np.testing.assert_array_equal(params["b1_quantized"], np.rint(CONV["b1"] / s_b.astype(np.float64)).astype(np.int32))


def test_clip_bounds_the_encoding(quantized: Callable[..., Any], fused: Callable[..., Any]) -> None:
    """The range of a Q behind Clip(0, 6) may not reach beyond 6, or onnxruntime keeps the Clip."""
    six = {"low": np.float32(0), "six": np.float32(6)}
    made = quantized(island("o = Clip(a, low, six)"), {**CONV, "w1": CONV["w1"] * 9, **six})
    scale = made.initializers()["o_scale"]
    assert scale * np.float32(255) <= 6 < scale * 256 and "Clip" not in fused(made.proto)


def test_one_q_for_many_readers(quantized: Callable[..., Any], close: Any) -> None:
    body = "a = Conv(x, w1) b = Conv(x, w2) s = Add(a, b) t = Exp(x) u = Conv(s, w3) y = Add(u, s) z = Conv(t, w1)"
    text = model("(float[1,4,6,6] x) => (float[a,b,c,d] y, float[e,f,g,h] z)", body)
    made = quantized(text, {"w1": w(8, 4, 3, 3), "w2": w(8, 4, 3, 3), "w3": w(8, 8, 1, 1)})
    assert sorted(made.readers("x")) == ["Exp", "QuantizeLinear"], "a float op keeps the float value"
    assert made.readers("x_dequantized") == ["Conv", "Conv"] and made.readers("x_quantized") == ["DequantizeLinear"]
    assert made.readers("s") == ["QuantizeLinear"] and sorted(made.readers("s_dequantized")) == ["Add", "Conv"]
    close(made)


def test_graph_outputs_keep_their_names(quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """A Conv whose result is a graph output, and read on: the output delivers what the others read."""
    text = model("(float[1,4,8,8] x) => (float[a,b,c,d] c, float[e,f,g,h] y)", "c = Conv(x, w1, b1) y = Conv(c, w2)")
    made = quantized(text, CONV)
    assert [o.name for o in made.proto.graph.output] == ["c", "y"]
    assert made.maker("c").op_type == made.maker("y").op_type == "DequantizeLinear"
    assert fused(made.proto).count("QLinearConv") == 2
    close(made)


@pytest.mark.parametrize("both", [False, True])
def test_relu_and_conv_as_outputs(both: bool, quantized: Callable[..., Any], close: Any) -> None:
    outputs = "float[a,b,c,d] r, float[e,f,g,h] y" + (", float[i,j,k,l] c" if both else "")
    text = model(f"(float[1,4,8,8] x) => ({outputs})", "c = Conv(x, w1, b1) r = Relu(c) y = Conv(r, w2)")
    made = quantized(text, CONV)
    assert made.status("Relu_r") == ("integer/folds" if both else "integer/part-of-layer")
    close(made)


def test_names_that_are_taken(quantized: Callable[..., Any], close: Any) -> None:
    """Every name this pass would like to give is there already."""
    body = (
        "x_quantized = Conv(x, x_scale, b1) x_zero_point = Relu(x_quantized) "
        "x_dequantized = Conv(x_zero_point, w2) x_quantized_1 = Exp(x_dequantized) y = Conv(x_quantized_1, w3)"
    )
    made = quantized(
        model("(float[1,4,8,8] x) => (float[a,b,c,d] y)", body),
        {"x_scale": w(8, 4, 3, 3), "b1": w(8), "w2": w(8, 8, 3, 3), "w3": w(4, 8, 3, 3)},
    )
    graph = made.proto.graph
    values = [i.name for i in graph.input] + [t.name for t in graph.initializer]
    values += [name for node in graph.node for name in node.output]
    nodes = [n.name for n in graph.node]
    assert len(set(values)) == len(values) and len(set(nodes)) == len(nodes)
    close(made)


# -- tied constants ---------------------------------------------------------------------------------------------------


def test_one_weight_used_with_both_axes(quantized: Callable[..., Any], close: Any) -> None:
    body = "c = Gemm(x, w, b) r = Relu(c) d = Gemm<transB=1>(r, w, b2) s = Relu(d) y = Gemm(s, w)"
    weights = {"w": w(16, 8) * np.linspace(0.2, 2, 8, dtype=np.float32), "b": w(8), "b2": w(16)}
    made = quantized(model(X2, body), weights, dynamic="never")
    params = made.initializers()
    shapes = {k: v.shape for k, v in params.items() if k.startswith("w_scale")}
    assert shapes == {"w_scale": (8,), "w_scale_1": (16,)} and "w" not in params
    for k, axis in (("", 0), ("_1", 1)):
        scale = np.abs(weights["w"]).max(axis=axis) / np.float32(127)
        np.testing.assert_allclose(params[f"w_scale{k}"], scale, rtol=1e-6)
    assert made.readers("w_dequantized") == ["Gemm", "Gemm"], "same axis, same bits: one DQ"
    close(made)


def test_one_bias_behind_other_scales(quantized: Callable[..., Any], close: Any) -> None:
    body = "c = Conv(x, w1, b) r = Relu(c) d = Conv(r, w2, b) y = Conv(d, w2, b)"
    weights = {"w1": w(8, 4, 3, 3), "w2": w(8, 8, 1, 1, scale=2), "b": w(8)}
    made = quantized(model("(float[1,4,8,8] x) => (float[a,b,c,d] y)", body), weights)
    params = made.initializers()
    assert sum(k.startswith("w2_quantized") for k in params) == 1
    copies = [k for k in params if k.startswith("b_quantized")]
    assert len(copies) == 3
    for name in copies:
        scale = params[name.replace("quantized", "scale")].astype(np.float64)
        assert (np.abs(params[name] * scale - weights["b"]) <= scale * 0.5001).all()
    close(made, 0.08)


def test_weight_that_is_an_output(quantized: Callable[..., Any], close: Any) -> None:
    """The float weight stays for the output; the layer reads integers along the right axis."""
    text = model("(float[6,10] x) => (float[a,b] y, float[c,d] w)", "y = Gemm<transB=1>(x, w, b)")
    made = quantized(text, {"w": w(4, 10), "b": w(4)}, dynamic="never")
    params = made.initializers()
    assert params["w"].dtype == np.float32 and params["w_quantized"].dtype == np.int8
    assert [a.i for a in made.maker("w_dequantized").attribute if a.name == "axis"] == [0]
    close(made)


def test_weight_behind_a_transpose(quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """An embedding that is the output layer, too: the table stays, the layer gets a transposed integer copy."""
    body = "e = Gather(table, ids) h = MatMul(e, w) t = Transpose<perm=[1,0]>(table) y = MatMul(h, t)"
    weights = {"table": w(600, 64), "w": w(64, 64)}
    feeds = [{"ids": np.arange(5).reshape(1, 5)}]
    made = quantized(model("(int64[1,5] ids) => (float[a,b,c] y)", body), weights, feeds=feeds, dynamic="never")
    params = made.initializers()
    assert params["t_quantized"].shape == (64, 600) and params["t_scale"].shape == (600,)
    np.testing.assert_allclose(params["t_scale"], np.abs(weights["table"]).max(axis=1) / np.float32(127), rtol=1e-6)
    assert "table" in params and "Transpose" not in made.ops()
    assert "MatMul" not in fused(made.proto)
    close(made)


# -- bodies -----------------------------------------------------------------------------------------------------------

BRANCHES = """(bool c, float[6,16] x) => (float[a,b] y{out}) {
  h = Gemm(x, v, vb) r = Relu(h) {more}
  y = If(c) <
    then_branch = t () => (float[a,b] p) { m = MatMul(r, w) p = Add(m, b) },
    else_branch = e () => (float[a,b] q) { k = Gemm(r, w) z = Sigmoid(k) q = MatMul(z, u) }
  >
}"""
BODY_WEIGHTS = {"w": w(16, 8), "b": w(8), "v": w(16, 16), "vb": w(16), "u": w(8, 8)}


@pytest.mark.parametrize("branch", [True, False])
def test_layers_in_branches(branch: bool, quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """Layers that read an integer value of the main graph get pairs in their own body; weights are stored once."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g {BRANCHES}'
    text = text.replace("{out}", ", float[d,f] s").replace("{more}", "s = MatMul(r, w)")
    feeds = [{"c": np.array(branch), "x": w(6, 16, scale=1)} for _ in range(3)]
    made = quantized(text, BODY_WEIGHTS, feeds=feeds)
    assert {n: made.status(n) for n in ("MatMul_m", "Add_p", "Gemm_k", "Sigmoid_z", "MatMul_q")} == {
        "MatMul_m": "integer/layer",
        "Add_p": "integer/part-of-layer",
        "Gemm_k": "integer/layer",
        "Sigmoid_z": "float/in-subgraph",
        "MatMul_q": "dynamic/in-subgraph",
    }
    assert made.readers("r") == ["QuantizeLinear"] and [k for k in made.initializers() if "w_quantized" in k] == [
        "w_quantized"
    ]
    ran = fused(made.proto)
    assert not {"Gemm", "FusedGemm", "MatMul", "DequantizeLinear"} & set(ran)
    assert ran.count("QGemm") == 3 and ran.count("MatMulIntegerToFloat") == 1
    close(made)


def test_conv_read_inside_a_branch(quantized: Callable[..., Any], fused: Callable[..., Any], close: Any) -> None:
    """The float reader in the body reads the dequantized value, or the Conv would not be fused."""
    text = model(
        "(bool f, float[1,8,8,8] x) => (float[a,b,c,d] y)",
        """c = Conv(x, w3, b1)
        y = If(f) < then_branch = t () => (float[a,b,c,d] p) { p = Exp(c) },
                    else_branch = e () => (float[a,b,c,d] q) { q = Conv(c, w2) } >""",
    )
    feeds = [{"f": np.array(branch), "x": w(1, 8, 8, 8, scale=1)} for branch in (True, False)]
    made = quantized(text, {"w3": w(8, 8, 3, 3), "b1": w(8), "w2": w(4, 8, 3, 3)}, feeds=feeds)
    assert made.readers("c") == ["QuantizeLinear"]
    assert "QLinearConv" in fused(made.proto)
    close(made)


def test_captured_loop_state(quantized: Callable[..., Any], close: Any) -> None:
    """A Loop body that captures a value behind a folded Relu, and runs more than once."""
    text = model(
        "(float[6,16] x) => (float[a,b] y, float[k,l,m] s)",
        """h = Gemm(x, v, vb) r = Relu(h) g = MatMul(r, v)
        y, s = Loop(n, cond, g) < body = t (int64 i, bool go, float[6,16] st)
          => (bool co, float[6,16] so, float[6,16] sc) {
            co = Identity(go) m = MatMul(st, w) d = Add(m, r) so = Tanh(d) sc = MatMul(r, w) } >""",
    )
    weights = {"v": w(16, 16), "vb": w(16), "w": w(16, 16), "n": np.array(3), "cond": np.array(True)}
    made = quantized(text, weights)
    assert made.status("MatMul_m") == "dynamic/in-subgraph" and made.status("MatMul_sc") == "integer/layer"
    assert made.status("Add_d") == "float/in-subgraph"
    close(made)


# -- the pass alone ---------------------------------------------------------------------------------------------------


def _alone(opset: int, qtype: str, granularity: Any = None) -> tuple[ir.Model, Context]:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2,4] x) => (float[2,3] y) {{ y = MatMul(x, w) }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w(4, 3), "w"))
    loaded = ir.from_proto(proto)
    node = loaded.graph[0]
    x, weight = Edge(node, 0), Edge(node, 1)
    spec = TensorSpec(QType.named(qtype), True, granularity or PerAxis(1))
    wishes = Wishes(TensorSpec(QType.named("uint8")), spec)
    plan = Plan(wishes, {x.value: wishes.activation}, {x: x.value}, weights={weight: spec})
    plan.decisions[node] = Decision("integer", "layer", "")
    values = weight.value.const_value.numpy()  # type: ignore[union-attr]
    encodings = Encodings({x.value: from_range(-1, 1, wishes.activation)}, {weight: from_values(values, spec)})
    return loaded, Context().put(plan, encodings)


@pytest.mark.parametrize(("opset", "qtype", "needed"), [(12, "int8", 13), (20, "int16", 21), (20, "int4", 21)])
def test_pairs_the_opset_does_not_have(opset: int, qtype: str, needed: int) -> None:
    loaded, ctx = _alone(opset, qtype)
    with pytest.raises(OptionError, match=f"need opset {needed}, the model has {opset}: run upgrade-opset"):
        run_step(InsertQdq(), loaded, ctx)
    assert [n.op_type for n in loaded.graph] == ["MatMul"]


@pytest.mark.parametrize(("opset", "qtype"), [(13, "int8"), (21, "int16"), (21, "int4")])
def test_pairs_at_the_oldest_opset(opset: int, qtype: str, run_model: Callable[..., Any]) -> None:
    loaded, ctx = _alone(opset, qtype)
    encodings, values = ctx.get(Encodings), loaded.graph.initializers["w"].const_value.numpy()
    assert run_step(InsertQdq(), loaded, ctx)
    after = ir.to_proto(loaded)
    after.ir_version = 10
    onnx.checker.check_model(after, full_check=True)
    stored = next(t for t in after.graph.initializer if t.name == "w_quantized")
    assert stored.data_type == onnx.TensorProto.DataType.Value(qtype.upper()) and list(stored.dims) == [4, 3]
    x = np.eye(2, 4, dtype=np.float32)
    (x_encoding,), (w_encoding,) = encodings.activations.values(), encodings.weights.values()
    (y,) = run_model(after, {"x": x}, true=True)
    np.testing.assert_allclose(y, decoded(x, x_encoding) @ decoded(values, w_encoding), atol=1e-5)


def decoded(x: np.ndarray[Any, Any], encoding: Encoding) -> np.ndarray[Any, Any]:
    """What a pair makes of values whose last axis holds the channels."""
    scale, zero, qtype = encoding.scale.astype(np.float64), encoding.zero_point.astype(np.int64), encoding.spec.qtype
    return (np.clip(np.rint(x / scale) + zero, qtype.qmin, qtype.qmax) - zero) * scale
