"""fold-constants: exact values, laziness, file size, and what must never be folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.edit import constant
from onnxq.passbase import Context, run_step
from onnxq.passes.fold_constants import FoldConstants


def graph(body: str, constants: str = "", signature: str = "(float[2,3] x) => (float[a,b] y)", opset: int = 17) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {constants} {{ {body} }}'


W = "<float[3,2] w = {1,2,3,4,5,6.5}>"


SQUARE = [[1, 3, 5], [2, 4, 6.5]]
CASES: dict[str, tuple[str, str, Any]] = {
    "transpose": ("t = Transpose(w)", "Add(x, t)", SQUARE),
    "reshape": ("s = Constant<value = int64[2] {2, 3}>() t = Reshape(w, s)", "Add(x, t)", [[1, 2, 3], [4, 5, 6.5]]),
    "casts": ("h = Cast<to=10>(w) f = Cast<to=1>(h) t = Transpose(f)", "Add(x, t)", SQUARE),
    "weight-norm": ("n = ReduceL2<axes=[1]>(w) d = Div(w, n) m = Mul(d, n) t = Transpose(m)", "Add(x, t)", SQUARE),
    "shape": ("s = Shape(x) t = ConstantOfShape<value = float[1] {7}>(s)", "Add(x, t)", [[7, 7, 7], [7, 7, 7]]),
    "shape-slice": ("s = Shape<start=1>(x) t = Cast<to=1>(s)", "Add(x, t)", [3]),
    "size": ("s = Size(x) t = Cast<to=1>(s)", "Add(x, t)", 6),
    "split": ("p, t = Split<axis=1>(w) q = Neg(p)", "MatMul(x, t)", [[2], [4], [6.5]]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_exact(case: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    body, last, value = CASES[case]
    text = graph(f"{body} y = {last}", W)
    out = run_passes(text, FoldConstants())
    assert [op for op in out.ops() if op != "Constant"] == [last.split("(")[0]]
    np.testing.assert_array_equal(out.initializers()["t"], np.array(value, np.float32))
    assert set(out.initializers()) == {"t"}, "what is no longer read is gone"
    same_numbers(text, out.proto, rtol=0, atol=1e-7)


def test_folds_in_bodies_and_through_captured_constants(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    text = graph(
        """
        t = Transpose(w)
        y = If(c) <then_branch = a () => (float[a,b] p) { n = Neg(t) p = Add(x, n) },
                   else_branch = b () => (float[a,b] q) { q = Mul(x, t) }>
        """,
        W,
        "(bool c, float[2,3] x) => (float[a,b] y)",
    )
    out = run_passes(text, FoldConstants())
    assert [n.op_type for n in out.model.graph.all_nodes()] == ["If", "Add", "Mul"]
    same_numbers(text, out.proto)


def test_equal_nodes_share_one_result_across_sibling_bodies(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    proto = parser.parse_model(
        graph(
            """
            a = Reshape(w, i)  z = Add(x, a)
            y = If(c) <then_branch = t () => (float[a,b] p) { u = Reshape(w, j) p = Add(z, u) },
                       else_branch = e () => (float[a,b] q) { s = Reshape(w, k) r = Neg(s) q = Mul(z, r) }>
            """,
            "<int64[2] i = {20,5}, int64[2] j = {20,5}, int64[2] k = {20,5}>",
            "(bool c, float[20,5] x) => (float[a,b] y)",
        )
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(100, dtype=np.float32), "w"))
    out = run_passes(proto, FoldConstants())
    assert set(out.initializers()) == {"a", "r_1"}, "in the main graph, once for each different node"
    assert not any(g.initializers for g in out.model.graph.subgraphs())
    for flag in (True, False):
        same_numbers(proto, out.proto, {"c": np.array(flag), "x": np.ones((20, 5), np.float32)})


def test_results_of_small_constants_stay_where_they_are_made(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None], random_feeds: Callable[..., Any]
) -> None:
    text = graph(
        """
        y = If(c) <then_branch = t () => (float[a,b] p) <float[3] k = {1,2,3}> { n = Neg(k) p = Add(x, n) },
                   else_branch = e () => (float[a,b] q) <float[3] l = {1,2,3}> { m = Neg(l) q = Mul(x, m) }>
        """,
        signature="(bool c, float[2,3] x) => (float[a,b] y)",
    )
    out = run_passes(text, FoldConstants())
    assert [list(g.initializers) for g in out.model.graph.subgraphs()] == [["n"], ["m"]]
    for seed in (0, 1):
        same_numbers(text, out.proto, random_feeds(out.proto, seed))


@pytest.mark.parametrize(
    "body",
    [
        "q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) t = Transpose(d) y = MatMul(x, d)",
        "q, a, b = DynamicQuantizeLinear(w) f = DequantizeLinear(q, a, b) y = MatMul(x, f)",
        "r = RandomNormalLike(w) y = MatMul(x, r)",
        "d, m = Dropout(w) y = MatMul(x, d)",
    ],
)
def test_never_through_quantizers_or_random_numbers(body: str, run_passes: Callable[..., Any]) -> None:
    text = graph(body, "<float[3,2] w = {1,2,3,4,5,6.5}, float s = {0.1}, uint8 z = {3}>")
    out = run_passes(text, FoldConstants())
    assert not out.changed and out.ops() == [n.op_type for n in parser.parse_model(text).graph.node]


def test_a_fold_in_front_of_a_quantizer_is_fine(run_passes: Callable[..., Any]) -> None:
    text = graph("t = Transpose(w) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z) y = Add(x, d)",
                 "<float[3,2] w = {1,2,3,4,5,6.5}, float s = {0.1}, uint8 z = {3}>")  # fmt: skip
    assert run_passes(text, FoldConstants()).ops() == ["QuantizeLinear", "DequantizeLinear", "Add"]


def big(op: str, tensor: ir.TensorProtocol, **attributes: Any) -> ir.Model:
    """``y = MatMul(x, op(w))``; x has 3 rows."""
    w = ir.Value(name="w", type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
    first = ir.node(op, [w], attributes, name="first")
    x = ir.val("x", ir.DataType.FLOAT, [3, 512])
    second = ir.node("MatMul", [x, first.outputs[0]], name="second")
    first.outputs[0].name, second.outputs[0].name = "t", "y"
    graph = ir.Graph([x], second.outputs, nodes=[first, second], initializers=[w], opset_imports={"": 21}, name="g")
    return ir.Model(graph, ir_version=8)


def test_large_results_are_computed_when_read() -> None:
    reads = 0
    data = np.random.default_rng(0).standard_normal((1024, 512)).astype("f")

    def read() -> ir.TensorProtocol:
        nonlocal reads
        reads += 1
        return ir.tensor(data)

    tensor = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(data.shape), name="w")
    model = big("Transpose", tensor)
    assert run_step(FoldConstants(), model, Context()) and reads == 0
    folded = model.graph.initializers["t"]
    assert isinstance(folded.const_value, ir.LazyTensor) and list(model.graph.initializers) == ["t"]
    np.testing.assert_array_equal(constant(folded), data.T)  # type: ignore[arg-type]
    assert reads == 1
    stored = ir.to_proto(model).graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored), data.T)


def test_large_float_arithmetic_is_the_runtimes(run_model: Callable[..., list[Any]]) -> None:
    data = np.random.default_rng(0).standard_normal((512, 1024)).astype("f")
    model = big("Exp", ir.tensor(data, name="w"))
    before = ir.to_proto(model)
    assert run_step(FoldConstants(), model, Context())
    feeds = {"x": np.eye(3, 512, dtype="f")}
    assert np.array_equal(
        run_model(before, feeds, optimised=False)[0], run_model(ir.to_proto(model), feeds, optimised=False)[0]
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
def test_data_movement_works_for_types_numpy_has_not(dtype: Any) -> None:
    data = np.arange(-4, 2).reshape(2, 3).astype(dtype)
    model = big("Transpose", ir.tensor(data, name="w"))
    assert run_step(FoldConstants(), model, Context())
    result = constant(model.graph.initializers["t"])
    assert result is not None and result.dtype == dtype
    np.testing.assert_array_equal(result.astype("f"), data.T.astype("f"))


@pytest.mark.parametrize(
    "large",
    [
        "s = Constant<value = int64[2] {100000, 3}>() t = ConstantOfShape(s)",
        "s = Constant<value = int64[2] {100000, 3}>() t = Expand(w, s)",
        "s = Constant<value = int64[2] {100000, 1}>() t = Tile(w, s)",
        "t = Range(a, b, d)",
    ],
)
def test_files_do_not_blow_up(large: str, run_passes: Callable[..., Any]) -> None:
    constants = "<float[1,3] w = {1,2,3}, float a = {0}, float b = {100000}, float d = {1}>"
    out = run_passes(graph(f"{large} r = ReduceMax<axes=[0]>(t) y = Add(x, r)", constants), FoldConstants())
    assert not out.changed
    (note,) = out.ctx.report.of("constant-not-folded")
    assert note.numbers["size"] > 1 << 16 and note.place.op_type in large


def test_a_tied_table_is_not_doubled(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model(
        graph(
            "t = Transpose(w) l = MatMul(x, t) e = Gather(w, i) y = MatMul(l, e)",
            signature="(float[2,64] x, int64[64] i) => (float[a,b] y)",
        )
    )
    table = np.random.default_rng(0).standard_normal((2048, 64)).astype("f")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "w"))
    out = run_passes(proto, FoldConstants())
    assert not out.changed and out.codes() == ["constant-not-folded"]
    assert run_passes(proto, FoldConstants(max_growth=1 << 20)).changed


@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_a_weight_replace_it_together(turned: bool, run_passes: Callable[..., Any]) -> None:
    """Gates of a recurrent weight put into another order, twice: each Slice is less than the weight, none frees it."""
    gates = """{i}a = Slice(w, z0, z1) {i}b = Slice(w, z1, z2) {i}c = Slice(w, z2, z3)
      {i}d = Concat<axis=0>({i}c, {i}a, {i}b) {i} = MatMul(x, {i}d)"""
    body = f"{gates.replace('{i}', 'p')} {gates.replace('{i}', 'q')} y = Add(p, q)"
    body += " t = Transpose(w) u = MatMul(x, t)" if turned else " u = Identity(x)"
    bounds = "<int64[1] z0 = {0}, int64[1] z1 = {256}, int64[1] z2 = {512}, int64[1] z3 = {768}>"
    proto = parser.parse_model(graph(body, bounds, "(float[768,768] x) => (float[a,b] y, float[c,d] u)"))
    table = np.random.default_rng(0).standard_normal((768, 768)).astype("f")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "w"))
    out = run_passes(proto, FoldConstants())
    found = list(out.initializers().values())
    assert not {"Slice", "Concat", "Transpose"} & set(out.ops()) and len(found) == 1 + turned
    sorted_gates = np.concatenate([table[512:], table[:256], table[256:512]])
    assert any(np.array_equal(a, sorted_gates) for a in found)


def test_what_no_kernel_can_do_stays_with_the_reason(run_passes: Callable[..., Any]) -> None:
    out = run_passes(
        graph("t = Gather(w, i) y = Add(x, t)", "<float[2,3] w = {1,2,3,4,5,6}, int64 i = {9}>"), FoldConstants()
    )
    assert not out.changed and "out of data bounds" in out.ctx.report.notes[0].message


def test_graph_outputs_and_defaults_stay(run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph("y = Transpose(w)", W, "() => (float[2,3] y)"), FoldConstants())
    assert not out.changed and out.codes() == ["constant-not-folded"]
    text = graph("t = Transpose(w) y = Add(x, t)", W, "(float[2,3] x, float[3,2] w) => (float[a,b] y)")
    assert not run_passes(text, FoldConstants()).changed, "the caller may override w"


def test_sequences_and_strings_stay(run_passes: Callable[..., Any]) -> None:
    out = run_passes(
        graph("s = SplitToSequence(w) t = ConcatFromSequence<axis=0>(s) y = MatMul(x, t)", W), FoldConstants()
    )
    assert out.ops() == ["SplitToSequence", "ConcatFromSequence", "MatMul"]
