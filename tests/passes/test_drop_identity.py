"""drop-identity and remove-unused: only what changes nothing goes, and outputs keep their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxq.passes.drop_identity import DropIdentity
from onnxq.passes.infer_shapes import InferShapes
from onnxq.passes.remove_unused import RemoveUnused

SIGNATURE = "(float[N,3,1,5] x) => (float[a,b,c,d] y)"


def graph(body: str, signature: str = SIGNATURE, constants: str = "", opset: int = 17) -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {constants} {{ {body} }}'


@pytest.mark.parametrize(
    "op",
    [
        "Identity(r)",
        "Dropout(r)",
        "Dropout(r, ratio)",
        "Dropout(r, ratio, off)",
        "Cast<to = 1>(r)",
        "Transpose<perm = [0,1,2,3]>(r)",
        "Reshape(r, same)",
        "Expand(r, ones)",
        "Pad(r, nopads)",
        "Concat<axis = 1>(r)",
        "Sum(r)",
        "Max(r)",
    ],
)
def test_what_changes_nothing_goes(
    op: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None], random_feeds: Callable[..., Any]
) -> None:
    constants = (
        "<float ratio = {0.5}, bool off = {0}, int64[4] same = {0,3,-1,5}, "
        "int64[3] ones = {3,1,1}, int64[8] nopads = {0,0,0,0,0,0,0,0}>"
    )
    for body, left in ((f"r = Relu(x) i = {op} y = Neg(i)", ["Relu", "Neg"]), (f"r = Relu(x) y = {op}", ["Relu"])):
        text = graph(body, constants=constants)
        out = run_passes(text, InferShapes(), DropIdentity())
        assert out.ops() == left and out.proto.graph.output[0].name == "y"
        assert out.codes()[-1] == "identities-dropped"
        same_numbers(text, out.proto, random_feeds(parser.parse_model(text)))


@pytest.mark.parametrize(
    "op",
    [
        "Cast<to = 10>(r)",
        "Transpose<perm = [0,2,1,3]>(r)",
        "Transpose(r)",
        "Reshape(r, other)",
        "Reshape<allowzero = 1>(r, zero)",
        "Expand(r, twice)",
        "Pad(r, pads)",
        "Dropout(r, ratio, on)",
        "Flatten(r)",
    ],
)
def test_what_changes_something_stays(op: str, run_passes: Callable[..., Any]) -> None:
    constants = (
        "<float ratio = {0.5}, bool on = {1}, int64[4] other = {0,1,3,5}, int64[4] zero = {0,3,1,5}, "
        "int64[4] twice = {1,3,2,5}, int64[8] pads = {0,0,0,1,0,0,0,0}>"
    )
    out = run_passes(graph(f"r = Relu(x) i = {op} y = Identity(i)", constants=constants), InferShapes(), DropIdentity())
    assert out.ops() == ["Relu", op.split("<")[0].split("(")[0]]


def test_flatten_of_a_matrix(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = graph("r = Relu(x) f = Flatten(r) y = Neg(f)", "(float[2,3] x) => (float[a,b] y)")
    out = run_passes(text, InferShapes(), DropIdentity())
    assert out.ops() == ["Relu", "Neg"]
    same_numbers(text, out.proto)


def test_identities_that_carry_a_name_stay(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = graph(
        "y = Identity(x) a = Relu(x) z = Identity(a) v = Identity(a) u = Identity(w)",
        "(float[2] x) => (float[2] y, float[2] a, float[2] z, float[2] v, float[2] u)",
        "<float[2] w = {1, 2}>",
    )
    out = run_passes(text, DropIdentity())
    assert not out.changed
    same_numbers(text, out.proto)


def test_of_two_outputs_of_one_node_one_takes_over(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    text = graph("a = Relu(x) y = Identity(a) z = Identity(a)", "(float[2] x) => (float[2] y, float[2] z)")
    out = run_passes(text, DropIdentity())
    assert out.ops() == ["Relu", "Identity"]
    same_numbers(text, out.proto)


def test_weights_behind_identities(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = graph(
        "a = Identity(w) b = Identity(a) c = Identity(w) d = MatMul(x, b) y = MatMul(d, c)",
        "(float[1,2] x) => (float[a,b] y)",
        "<float[2,2] w = {1, 2, 3, 4}>",
    )
    out = run_passes(text, DropIdentity())
    assert out.ops() == ["MatMul", "MatMul"] and [n.input[1] for n in out.proto.graph.node] == ["w", "w"]
    same_numbers(text, out.proto)


def test_bodies_keep_what_hands_an_outer_value_on(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    text = graph(
        """
        a = Relu(x)
        y = If(c) <then_branch = t () => (float[2] p) { p = Identity(a) },
                   else_branch = e () => (float[2] q) { b = Identity(a) d = Neg(b) q = Identity(d) }>
        """,
        "(bool c, float[2] x) => (float[2] y)",
    )
    out = run_passes(text, DropIdentity())
    assert [[n.op_type for n in g] for g in out.model.graphs()] == [["Relu", "If"], ["Identity"], ["Neg"]]
    for flag in (True, False):
        same_numbers(text, out.proto, {"c": np.array(flag), "x": np.array([-1, 2], np.float32)})


def test_a_mask_that_is_read_keeps_its_dropout(run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph("y, m = Dropout(x)", "(float[2] x) => (float[2] y, bool[2] m)"), DropIdentity())
    assert not out.changed and out.codes() == ["identity-kept"]


def test_dropout_of_old_opsets(run_passes: Callable[..., Any]) -> None:
    for opset, attribute, left in ((6, "", 2), (6, "<is_test = 1>", 1), (7, "", 1), (11, "<ratio = 0.5>", 1)):
        text = graph(f"a = Dropout{attribute}(x) y = Relu(a)", "(float[2] x) => (float[2] y)", opset=opset)
        assert len(run_passes(text, DropIdentity()).ops()) == left


def test_remove_unused(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 3]>
    g (float[2] x, float[2] z) => (float[2] y) <float[2] w = {1,2}, float[2] v = {1,2}> {
      a = Add(x, w)  dead = Mul(x, v)  deader = Neg(dead)  y = com.microsoft.FastGelu(a)
    }
    """
    out = run_passes(text, RemoveUnused())
    assert out.ops() == ["Add", "FastGelu"] and list(out.initializers()) == ["w"]
    assert [v.name for v in out.proto.graph.input] == ["x", "z"], "inputs stay, read or not"
    assert sorted(o.domain for o in out.proto.opset_import) == ["", "com.microsoft"]
    assert out.codes() == ["unused-removed", "imports-removed"]
    onnx.checker.check_model(out.proto)
    same_numbers(text, out.proto)


@pytest.mark.parametrize(
    ("line", "outputs"),
    [
        ("y, i = MaxPool<kernel_shape = [2,2]>(x)", ["y"]),
        ("y, i = MaxPool<kernel_shape = [2,2]>(x)  z = Neg(i)", ["y", "i"]),
        ("y, m = Dropout(x)", ["y"]),
        ("y, mean, dev = LayerNormalization(x, s)", ["y"]),
        ("y, i, r, n = Unique(x)  z = Neg(r)", ["y", "i", "r"]),
        ("t, y, u = Split<axis = 3, num_outputs = 3>(x)", ["t", "y", "u"]),
        ("y, mean, var = BatchNormalization<training_mode = 1>(x, s, s, s, s)", ["y", "mean", "var"]),
        ("y, u = my.MaxPool(x)", ["y", "u"]),
    ],
)
def test_unused_optional_outputs(line: str, outputs: list[str], run_passes: Callable[..., Any]) -> None:
    more = ", int64[e] z" if "z =" in line else ""
    text = f"""<ir_version: 8, opset_import: ["" : 18, "my" : 1]> g (float[1,3,6,6] x) => (float[a,b,c,d] y{more})
    <float[6] s = {{1,2,3,4,5,6}}> {{ {line} }}"""
    out = run_passes(text, RemoveUnused())
    assert list(out.proto.graph.node[0].output) == outputs
    gone = line[: line.index("=")].count(",") + 1 - len(outputs)
    notes = [n.numbers for n in out.ctx.report.notes if n.code == "outputs-removed"]
    assert notes == ([{"count": gone}] if gone else [])


def test_unused_outputs_in_bodies_and_functions(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    pool = "MaxPool<kernel_shape = [2,2]>"
    text = f"""<ir_version: 8, opset_import: ["" : 18, "my" : 1]> g (bool c, float[1,1,4,4] x) => (float[p,q,r,s] y) {{
      y = If(c) <then_branch = t () => (float[p,q,r,s] a) {{ a, i = {pool}(x) }},
                 else_branch = e () => (float[p,q,r,s] b) {{ b = my.pool(x) }}>
    }} <domain: "my", opset_import: ["" : 18]> pool (u) => (v) {{ w, i = {pool}(u) v = Neg(w) }}"""
    out = run_passes(text, RemoveUnused())
    assert [n.numbers["count"] for n in out.ctx.report.notes] == [2]
    assert [list(n.output) for n in out.proto.functions[0].node] == [["w"], ["v"]]
    onnx.checker.check_model(out.proto)
    for flag in (True, False):
        x = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype("f")
        same_numbers(text, out.proto, {"c": np.array(flag), "x": x})
