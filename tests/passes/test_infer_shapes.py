"""infer-shapes: every scope, no weights, warnings instead of stops, and what the file already knows is kept."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from onnxq.edit import all_graphs
from onnxq.passbase import Context, run_step
from onnxq.passes.infer_shapes import InferShapes


def infer(source: str | onnx.ModelProto) -> tuple[dict[str, str], Context]:
    """``name -> type[shape]`` of everything the nodes make, and the context with its notes."""
    model, ctx = ir.from_proto(parser.parse_model(source) if isinstance(source, str) else source), Context()
    run_step(InferShapes(), model, ctx)
    assert not run_step(InferShapes(), model, Context()), "idempotent"
    values = [v for g in all_graphs(model) for v in (*g.inputs, *(o for n in g for o in n.outputs))]
    return {v.name or "": f"{v.dtype.name if v.dtype else '?'}{v.shape}" for v in values}, ctx


def test_shapes_flow_through_ops_constants_and_symbols() -> None:
    found, ctx = infer(
        """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4,8,8] x) => (float[M] y)
    <float[6,4,3,3] w, int64[2] s = {0,-1}>
    {
      c = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w)
      r = Reshape(c, s)
      k = Constant<value = int64[2] {96, 3}>()
      e = ConstantOfShape(k)
      y = MatMul(r, e)
    }
    """.replace("float[6,4,3,3] w,", "").replace("(float[N,4,8,8] x)", "(float[N,4,8,8] x, float[6,4,3,3] w)")
    )
    assert found["c"] == "FLOAT[N,6,4,4]"
    assert found["r"] == "FLOAT[N,96]" and found["e"] == "FLOAT[96,3]"
    assert found["y"] == "FLOAT[N,3]", "the operators win over a declared rank that is wrong"
    assert [(n.code, n.place.value) for n in ctx.report.notes] == [("stale-shape", "y")]


def test_bodies_and_captured_values() -> None:
    found, _ = infer(
        """
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[2,3] x) => (float y) <int64[1] flat = {-1}> {
      a = Transpose(x)
      y = If(c) <
        then_branch = t () => (float[?] t1) { t0 = MatMul(a, x)  t1 = Reshape(t0, flat) },
        else_branch = e () => (float[?] e1) { e1 = Reshape(a, flat) }
      >
    }
    """.replace("float[?]", "float[K]").replace("=> (float y)", "=> (float[K] y)")
    )
    assert found["a"] == "FLOAT[3,2]" and found["t0"] == "FLOAT[3,3]" and found["t1"] == "FLOAT[9]"
    assert found["e1"] == "FLOAT[6]"


def test_a_computed_shape_still_tells_the_rank() -> None:
    """Paddle's Flatten: the shape goes through int32 and Mod, which onnx's inference does not follow."""
    found, _ = infer("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,4,M,8] x, bool c) => (float[A,B,C] y) <int64[1] two = {2}, int64[1] i = {0}> {
      s = Shape(x)  n = Slice(s, i, two)  d = Mod(n, two)  t = Concat<axis=0>(d, two)
      r = Reshape(x, t)
      q = Shape(r)  h = Mod(q, q)
      y = If(c) <then_branch = a () => (float[A,B,C] e) { e = Reshape(r, h)  f = Expand(e, h) },
                 else_branch = b () => (float[A,B,C] o) { o = ConstantOfShape(h) }>
    }
    """)
    assert found["r"] == "FLOAT[None,None,2]" and found["q"] == "INT64[3]"
    assert found["f"] == "FLOAT[None,None,None]" and found["o"] == "FLOAT[A,B,C]"


def test_negative_dims_become_unknown_and_zero_stays_empty() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 0, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1, -1, -1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    found, ctx = infer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert found == {"x": "FLOAT[None,0,4]", "y": "FLOAT[None,0,4]"}
    assert {(n.code, n.place.value) for n in ctx.report.notes} == {("negative-dim", "x"), ("negative-dim", "y")}


def test_custom_ops_keep_what_the_file_says_and_feed_what_follows() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "vendor" : 1]>
    g (float[2,3] x, float[5,7] w) => (float[?] y)
    <float[2,5] a>
    { a = vendor.Magic(x)  y = MatMul(a, w)  z = vendor.Magic(y) }
    """.replace("[?]", "[A,B]")
    found, ctx = infer(text)
    assert found["a"] == "FLOAT[2,5]" and found["y"] == "FLOAT[2,7]" and found["z"] == "?None"
    assert ctx.report.of("shape-unknown")[0].numbers == {"count": 1}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("BiasGelu(x, b)", "FLOAT[N,4]"),
        ("SkipLayerNormalization(x, x, b)", "FLOAT[N,4]"),
        ("MatMulNBits<K=4, N=6, bits=4, block_size=16>(x, q, s)", "FLOAT[N,6]"),
        ("QuantizeLinear(x, one, z16)", "UINT16[N,4]"),
        ("DequantizeLinear(q, one)", "FLOAT[6,1,8]"),
    ],
)
def test_onnxruntime_ops_follow_a_standard_one(call: str, expected: str) -> None:
    found, _ = infer(f"""
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[N,4] x, float[4] b, uint8[6,1,8] q, float[6] s, float one, uint16 z16) => (float[K] y)
    {{ a = com.microsoft.{call}  y = vendor.Any(a) }}
    """)
    assert found["a"] == expected


def test_if_missing_looks_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,2] x) => (float[N,2] y) { a = Relu(x)  y = Relu(a) }'
    model = ir.from_proto(parser.parse_model(text))
    assert run_step(InferShapes(if_missing=True), model, Context())
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", None)
    assert not run_step(InferShapes(if_missing=True), model, Context())


def test_a_failing_inference_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise onnx.shape_inference.InferenceError("it went wrong\nin detail")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Relu(x)  y = Relu(a) }'
    found, ctx = infer(text)
    (note,) = ctx.report.notes
    assert note.code == "shapes-not-inferred" and note.severity.value == "warning" and note.message.endswith("wrong")
    assert found["a"] == "?None" and found["y"] == "FLOAT[2]"


def test_weights_are_never_read() -> None:
    def refuse() -> ir.Tensor:  # type: ignore[type-arg]
        raise AssertionError("weight data was read")

    weight = ir.LazyTensor(refuse, dtype=ir.DataType.FLOAT, shape=ir.Shape([1 << 16, 1 << 15]), name="w")
    x = ir.val("x", ir.DataType.FLOAT, [3, 1 << 16])
    w = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(weight.shape), const_value=weight)
    node = ir.node("MatMul", [x, w], name="m")
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[w], opset_imports={"": 17}, name="g")
    run_step(InferShapes(), ir.Model(graph, ir_version=8), Context())
    assert str(node.outputs[0].shape) == f"[3,{1 << 15}]"


def test_equal_names_in_sibling_bodies_do_not_mix() -> None:
    found: dict[str, set[str]] = {}
    model = ir.from_proto(
        parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[2,3] x, float[5] z) => (float[K] y) {
      y = If(c) <then_branch = t () => (float[K] q) { same = Neg(x) q = ReduceMax<keepdims=0>(same) },
                 else_branch = e () => (float[K] q) { same = Neg(z) q = ReduceMax<keepdims=0>(same) }>
    }
    """)
    )
    run_step(InferShapes(), model, Context())
    for graph in all_graphs(model):
        for node in graph:
            found.setdefault(node.outputs[0].name or "", set()).add(str(node.outputs[0].shape))
    assert found["same"] == {"[2,3]", "[5]"} and np.array_equal(sorted(found["q"]), ["[]"])
