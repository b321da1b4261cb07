"""validate-qdq: the rules of lint that are errors, as a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.errors import ValidationError
from onnxq.facts import Goal
from onnxq.passbase import run_step
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.targets import load_target
from onnxq.wording import plural

U, S8, S32 = np.uint8, np.int8, np.int32
HEALTHY: dict[str, Any] = {
    "s": np.float32(0.1), "z": U(128), "s2": np.float32(0.1), "z2": U(128),
    "q": np.ones((4, 3, 1, 1), S8), "ws": np.full(4, 0.1, "f"), "wz": np.zeros(4, S8),
    "bq": np.ones(4, S32), "bs": np.full(4, 0.01, "f"), "bz": np.zeros(4, S32),
    "ys": np.float32(0.2), "yz": U(3),
}  # fmt: skip
BODY = """i = QuantizeLinear(x, s, z) d = DequantizeLinear(i, s2, z2)
w = DequantizeLinear<axis=0>(q, ws, wz) b = DequantizeLinear<axis=0>(bq, bs, bz)
c = Conv(d, w, b) o = QuantizeLinear(c, ys, yz) y = DequantizeLinear(o, ys, yz)"""


def check(body: str = BODY, changes: dict[str, Any] | None = None, outputs: str = "float[1,4,8,8] y") -> list[str]:
    """Codes of the notes; the error must hold the same."""
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,3,8,8] x) => ({outputs}) {{ {body} }}'
    proto = parser.parse_model(text)
    for node in proto.graph.node:
        node.name = node.output[0]
    for name, array in {**HEALTHY, **(changes or {})}.items():
        if array is not None:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model, ctx = ir.from_proto(onnx.shape_inference.infer_shapes(proto)), Context()
    try:
        assert not run_step(ValidateQdq(), model, ctx)
    except ValidationError as error:
        assert ctx.report.notes and all(n.severity is Severity.ERROR for n in ctx.report.notes)
        for note in ctx.report.notes[:10]:
            assert f"{note.place.node} ({note.place.op_type}): {note.message} [{note.code}]" in str(error)
        assert str(error).startswith(plural(len(ctx.report.notes), "broken Q/DQ rule"))
    else:
        assert not ctx.report.notes
    return [n.code for n in ctx.report.notes]


def test_healthy() -> None:
    assert check() == []
    assert check(changes={"s2": np.full(1, 0.1, "f"), "z2": np.full(1, 128, U)}) == [], "one number, in another shape"


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"s2": np.float32(0.15)}, ["OQ101", "OQ501"]),
        ({"z2": U(127)}, ["OQ101"]),
        ({"z2": S8(0)}, ["OQ101", "OQ102"]),
        ({"ys": np.float32(0)}, ["OQ201", "OQ201"]),
        ({"ys": np.float32(-0.1)}, ["OQ201", "OQ201"]),
        ({"ys": np.float32(1e-40)}, ["OQ203", "OQ203"]),
        ({"ys": np.array(0.2, ml_dtypes.bfloat16)}, ["OQ204"]),
        ({"ys": np.array(np.inf, ml_dtypes.bfloat16)}, ["OQ202", "OQ202", "OQ204"]),
        ({"ws": np.array([0.1, np.nan, np.inf, 0], "f")}, ["OQ201", "OQ202"]),
        ({"wz": S8(0)}, ["OQ205"]),
        ({"wz": np.zeros(4, U)}, ["OQ206"]),
        ({"ws": np.full(3, 0.1, "f"), "wz": np.zeros(3, S8)}, ["OQ302"]),
        ({"ws": np.full((4, 1, 1, 1), 0.1, "f"), "wz": np.zeros((4, 1, 1, 1), S8)}, ["OQ205"]),
        ({"bz": np.array([0, 0, 1, 0], S32)}, ["OQ502"]),
        ({"bs": np.full(4, 0.02, "f")}, ["OQ501"]),
        ({"bq": np.array([1, 2**31 - 1, 1, 1], S32)}, ["OQ503"]),
        ({"bs": np.full(5, 0.1, "f"), "bz": np.zeros(5, S32)}, ["OQ302"]),
    ],
)
def test_parameters(changes: dict[str, Any], codes: list[str]) -> None:
    assert check(changes=changes) == codes


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ("<axis=0>(bq", "(bq", ["OQ504"]),
        ("<axis=0>(bq", "<axis=1>(bq", ["OQ504"]),
        ("<axis=0>(bq", "<axis=-1>(bq", []),
        ("<axis=0>(q", "<axis=-4>(q", []),
        ("<axis=0>(q", "<axis=4>(q", ["OQ301"]),
        ("<axis=0>(q", "<axis=1>(q", ["OQ302", "OQ303"]),
        ("(i, s2", "<axis=3>(i, s2", []),
        ("d = Deq", "n = Cast<to=1>(i) d = Deq", []),
        ("d = Deq", "n = Add(i, i) d = Deq", ["OQ107"]),
        ("y = DequantizeLinear(o, ys, yz)", "y = DequantizeLinear(o, ys)", ["OQ101"]),
    ],
)
def test_graphs(old: str, new: str, codes: list[str]) -> None:
    assert check(BODY.replace(old, new)) == codes


def test_an_absent_zero_point_is_zero() -> None:
    body = "i = QuantizeLinear(x, s) d = DequantizeLinear(i, s2, z2) y = Exp(d)"
    assert check(body, {"z2": U(0)}) == [] and check(body, {"z2": U(1)}) == ["OQ101"]


def test_what_is_less_than_an_error_passes() -> None:
    """Integers that leave the graph or go nowhere are warnings of lint; scales off by the last digit are a note."""
    assert check(outputs="float[1,4,8,8] y, uint8[1,4,8,8] o") == []
    assert check(BODY + " u = QuantizeLinear(c, ys, yz)") == []
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y)
      <float s = {0.1}, float t = {0.1000001}> { i = QuantizeLinear(x, s) y = DequantizeLinear(i, t) }"""
    ctx = Context()
    run_step(ValidateQdq(), ir.from_proto(parser.parse_model(text)), ctx)
    assert [(n.code, n.severity) for n in ctx.report.notes] == [("OQ101", Severity.WARNING)]


def test_the_pack_rule_is_not_the_gates() -> None:
    """`skip-odd-pack-axis` applies it, and its options may lift it: what they let through is not refused afterwards."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,4] x) => (float[2,3] y)
      <int4[4,3] q = {1,2,3,4,5,6,7,1,2,3,4,5}, float s = {0.1}> { w = DequantizeLinear(q, s) y = MatMul(x, w) }"""
    model = ir.from_proto(parser.parse_model(text))
    ctx = Context().put(Goal(load_target("ascend")))
    run_step(ValidateQdq(), model, ctx)
    assert not ctx.report.of("OQ401")


def test_square_weights_on_the_wrong_axis() -> None:
    """Where the lengths agree only the operator table can tell; ConvTranspose has its output channels on axis 1."""
    square = {"q": np.ones((3, 3, 1, 1), S8), "ws": np.full(3, 0.1, "f"), "wz": np.zeros(3, S8)}
    body = "w = DequantizeLinear<axis=%d>(q, ws, wz) y = %s(x, w)"
    assert check(body % (1, "Conv"), square) == ["OQ303"] and check(body % (0, "Conv"), square) == []
    assert check(body % (0, "ConvTranspose"), square) == ["OQ303"]
    assert check(body % (1, "ConvTranspose"), square) == []
    flat = {**square, "q": np.ones((8, 8), S8), "ws": np.full(8, 0.1, "f"), "wz": np.zeros(8, S8)}
    matmul = "w = DequantizeLinear<axis=%d>(q, ws, wz) y = MatMul(x, w)"
    assert check(matmul % 0, flat) == ["OQ303"] and check(matmul % -1, flat) == []


@pytest.mark.parametrize(
    ("carriers", "axis", "codes"),
    [
        ("v = Transpose<perm=[1,0]>(w) y = MatMul(x, v)", 0, []),
        ("v = Transpose<perm=[1,0]>(w) y = MatMul(x, v)", 1, ["OQ303"]),
        ("u = Unsqueeze(w, ends) v = Identity(u) y = Conv(x, v)", 0, []),
        ("u = Unsqueeze(w, ends) v = Identity(u) y = Conv(x, v)", 1, ["OQ303"]),
        ("u = Flatten(w) t = Transpose(u) v = Cast<to=1>(t) y = MatMul(x, v)", 0, []),
        ("u = Flatten(w) t = Transpose(u) v = Cast<to=1>(t) y = MatMul(x, v)", -1, ["OQ303"]),
        ("v = Transpose<perm=[1,0]>(w) a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)", 0, ["OQ303"]),
        ("v = Reshape(w, flat) y = MatMul(x, v)", 0, []),
        ("v = Exp(w) y = MatMul(x, v)", 0, []),
        ("y = Gather(w, flat)", 0, []),
        ("y = Gather(w, flat)", 1, []),
    ],
)
def test_axes_behind_carriers(carriers: str, axis: int, codes: list[str]) -> None:
    """A square weight, so that only the operator table can tell; what cannot be followed is not judged."""
    values = {"q": np.ones((8, 8), S8), "ws": np.full(8, 0.1, "f"), "wz": np.zeros(8, S8),
              "ends": np.array([2, 3]), "flat": np.array([4, 16])}  # fmt: skip
    assert check(f"w = DequantizeLinear<axis={axis}>(q, ws, wz) {carriers}", values) == codes
    # Behind carriers in front of the pair, and as float -> Q -> DQ, too.
    before = f"k = Transpose(q) w = DequantizeLinear<axis={axis}>(k, ws, wz) {carriers}"
    assert check(before, values) == codes
    fake = f"i = QuantizeLinear<axis={axis}>(f, ws, wz) w = DequantizeLinear<axis={axis}>(i, ws, wz) {carriers}"
    assert check(fake, {**values, "f": np.ones((8, 8), np.float32)}) == codes


@pytest.mark.parametrize(("axis", "codes"), [(0, ["OQ303", "OQ303"]), (1, []), (2, ["OQ303", "OQ303"])])
def test_recurrent_weights(axis: int, codes: list[str]) -> None:
    cube = {"q": np.ones((4, 4, 4), S8), "ws": np.full(4, 0.1, "f"), "wz": np.zeros(4, S8)}
    assert check(f"w = DequantizeLinear<axis={axis}>(q, ws, wz) y = RNN<hidden_size=4>(x, w, w)", cube) == codes


def test_the_note_names_both_axes() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,2] x) => (float[2,2] y)
      <int8[2,2] q = {1,2,3,4}, float[2] s = {1,2}> {
      w = DequantizeLinear(q, s) v = Transpose(w) y = MatMul(x, v) }"""
    with pytest.raises(
        ValidationError, match=r"axis 1, which is 0 where it is read, and MatMul '' has its .* on axis 1"
    ):
        run_step(ValidateQdq(), ir.from_proto(parser.parse_model(text)), Context())


def test_blocks() -> None:
    body = "w = DequantizeLinear<axis=0, block_size=%d>(q, ws, wz) y = MatMul(x, w)"
    good = {"q": np.ones((8, 5), S8), "ws": np.full((3, 5), 0.1, "f"), "wz": np.zeros((3, 5), S8)}
    assert check(body % 3, good) == [] and check(body % 4, good) == ["OQ305"]
    assert check(body % 3, {**good, "ws": np.full(5, 0.1, "f"), "wz": np.zeros(5, S8)}) == ["OQ305"]


def test_axes_of_pairs() -> None:
    pair = "i = QuantizeLinear<axis=2>(x, s, z) d = DequantizeLinear<axis=%d>(i, s2, z2) y = Exp(d)"
    many = {"s": np.full(8, 0.1, "f"), "z": np.zeros(8, U), "s2": np.full(8, 0.1, "f"), "z2": np.zeros(8, U)}
    assert check(pair % 2, many) == [] and check(pair % 3, many) == ["OQ101"]
    assert check(pair % -2, many) == [], "the same axis, written from the end"


def test_all_scopes() -> None:
    body = """f = Constant<value_int=1>() c = Cast<to=9>(f) y = If(c) <
      then_branch = t () => (float[a,b,c,d] p) { i = QuantizeLinear(x, s, z) p = DequantizeLinear(i, ys, z) },
      else_branch = e () => (float[a,b,c,d] q2) { q2 = Exp(x) } >"""
    assert check(body) == ["OQ101"]


def test_long_lists_are_cut() -> None:
    body = " ".join(f"u{i} = QuantizeLinear(x, s, z)" for i in range(13)) + " y = Exp(x)"
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[1] y) <float s = {0}, uint8 z = {0}>'
    model = ir.from_proto(parser.parse_model(f"{text} {{ {body} }}"))
    with pytest.raises(ValidationError, match="13 broken Q/DQ rules") as caught:
        run_step(ValidateQdq(), model, Context())
    assert str(caught.value).endswith("… and 3 more") and len(str(caught.value).splitlines()) == 12


def test_what_insert_qdq_writes_is_healthy(quantized: Callable[..., Any]) -> None:
    """The fixture runs the pass; a wrong weight scale afterwards is found."""
    rng = np.random.default_rng(0)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[a,b,c,d] y) { y = Conv(x, k, b) }'
    made = quantized(text, {"k": rng.standard_normal((8, 4, 4, 4)).astype("f"), "b": np.ones(8, np.float32)})
    model = ir.from_proto(made.proto)
    model.graph.initializers["k_scale"].const_value = ir.tensor(np.zeros(8, np.float32), name="k_scale")
    with pytest.raises(ValidationError, match=r"its scale 'k_scale' is not positive \[OQ201\]"):
        run_step(ValidateQdq(), model, Context())
