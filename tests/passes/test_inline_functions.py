"""inline-functions: names, nesting, attributes, scopes, opsets; no function is left and the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxq.errors import UnsupportedError
from onnxq.passes.inline_functions import InlineFunctions

NESTED = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1, "unused.domain" : 3]>
g (float[2] x) => (float[2] y, float[2] z) {
  a = local.outer(x)
  y = local.inner<k = 3.0>(a)
  z = local.inner(y)
}
<domain: "local", opset_import: ["" : 17, "local" : 1]>
outer (a) => (c) { b = local.inner<k = 5.0>(a)  c = local.inner(b) }
<domain: "local", opset_import: ["" : 17]>
inner <k : float = 2.0> (a) => (b) { f = Constant<value_float : float = @k>()  b = Mul(a, f) }
"""


def test_nested_calls_attributes_and_names(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    proto = parser.parse_model(NESTED)
    for node, name in zip(proto.graph.node, ("first", "second", ""), strict=True):
        node.name = name
    proto.graph.node[0].metadata_props.add(key="from", value="me")
    out = run_passes(proto, InlineFunctions())
    assert not out.proto.functions and {o.domain for o in out.proto.opset_import} == {"", "unused.domain"}
    assert out.ops() == ["Constant", "Mul"] * 4
    names = [n.name for n in out.proto.graph.node]
    assert names[:4] == ["first/inner/Constant", "first/inner/Mul", "first/inner/Constant_1", "first/inner/Mul_1"]
    assert names[4:] == ["second/Constant", "second/Mul", "inner/Constant", "inner/Mul"]
    values = [v for n in out.proto.graph.node for v in n.output]
    assert len(set(values)) == 8 and {"a", "y", "z"} <= set(values), "what a call makes keeps its name"
    assert {p.key: p.value for p in out.proto.graph.node[0].metadata_props}["from"] == "me"
    same_numbers(proto, out.proto)


def test_calls_in_bodies_and_bodies_in_functions(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None], random_feeds: Callable[..., Any]
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (bool c, float[2] x) => (float[2] y) {
      y = If(c) <then_branch = t () => (float[2] p) { p = l.choose(c, x) },
                 else_branch = e () => (float[2] q) { r = l.choose(c, x)  q = l.choose(c, r) }>
    }
    <domain: "l", opset_import: ["" : 17]>
    choose (c, x) => (y) {
      n = Neg(x)
      y = If(c) <then_branch = t () => (float[2] p) { p = Exp(n) }, else_branch = e () => (float[2] q) { q = Abs(n) }>
    }
    """
    out = run_passes(text, InlineFunctions())
    assert not out.proto.functions
    for seed in (0, 1, 2):
        same_numbers(text, out.proto, random_feeds(out.proto, seed))


def test_absent_inputs_and_outputs_handed_through(
    run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[4] x) => (float[4] y, float[4] same, float[4] z) {
      m = Constant<value_float = 0.5>()
      y, same = l.clip(x)
      z, w = l.clip(x, , m)
      v = Neg(w)
    }
    <domain: "l", opset_import: ["" : 17]>
    clip (a, lo, hi) => (b, a) { b = Clip(a, lo, hi) }
    """
    out = run_passes(text, InlineFunctions())
    onnx.checker.check_model(out.proto, full_check=True)
    assert sorted(out.ops()) == ["Clip", "Clip", "Constant", "Identity", "Neg"]
    x = np.array([-1, 0, 0.25, 2], np.float32)
    y, same, z = run_model(out.proto, {"x": x})
    assert np.array_equal(y, x) and np.array_equal(same, x) and np.array_equal(z, np.minimum(x, 0.5))


def test_functions_of_another_opset(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """The checker rejects such files, some exporters write them; what changed in between is upgraded."""
    text = """
    <ir_version: 8, opset_import: ["" : %d, "l" : 1]>
    g (float[2,3] x) => (float[b] y) { a = l.total(x)  r = Relu(a) y = Identity(r) }
    <domain: "l", opset_import: ["" : %d]>
    total (a) => (b) { b = ReduceSum<axes = [0], keepdims = 0>(a) }
    """
    plain = """
    <ir_version: 8, opset_import: ["" : 11]>
    g (float[2,3] x) => (float[b] y) { a = ReduceSum<axes = [0], keepdims = 0>(x) y = Relu(a) }
    """
    out = run_passes(text % (17, 11), InlineFunctions())
    assert out.proto.opset_import[0].version == 17 and "function-opset" in out.codes()
    same_numbers(plain, out.proto)
    out = run_passes(text % (13, 12), InlineFunctions())
    same_numbers(plain, out.proto)
    newer = run_passes(
        NESTED.replace('["" : 17, "local" : 1, "unused.domain" : 3]', '["" : 15, "local" : 1]'), InlineFunctions()
    )
    assert newer.proto.opset_import[0].version == 15, "nothing in the functions differs between 15 and 17"


def test_circles_and_surplus_inputs_are_refused(run_passes: Callable[..., Any]) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[2] x) => (float[2] y) { y = l.a(x) }
    <domain: "l", opset_import: ["" : 17, "l" : 1]> a (x) => (y) { y = l.b(x) }
    <domain: "l", opset_import: ["" : 17, "l" : 1]> b (x) => (y) { y = l.a(x) }
    """
    with pytest.raises(UnsupportedError, match=r"in a circle: l\.a -> l\.b -> l\.a"):
        run_passes(text, InlineFunctions())
    text = """
    <ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[2] x) => (float[2] y) { y = l.a(x, x) }
    <domain: "l", opset_import: ["" : 17]> a (x) => (y) { y = Relu(x) }
    """
    with pytest.raises(UnsupportedError, match=r"call '' of local function l\.a has 2 inputs, the function takes 1"):
        run_passes(text, InlineFunctions())


def test_two_quantizers_of_different_type_in_one_function(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[2] x) => (float[2] y) { a = l.fake(x)  y = l.fake(a) }
    <domain: "l", opset_import: ["" : 17]>
    fake (x) => (y) {
      s = Constant<value_float = 0.1>()
      u = Constant<value = uint8 {7}>()
      i = Constant<value = int8 {0}>()
      a = QuantizeLinear(x, s, u)  b = DequantizeLinear(a, s, u)
      c = QuantizeLinear(b, s, i)  y = DequantizeLinear(c, s, i)
    }
    """
    out = run_passes(text, InlineFunctions())
    names = [n.name for n in out.proto.graph.node]
    assert len(set(names)) == len(names) == 14
    same_numbers(text, out.proto)


def test_opsets_of_other_domains(run_passes: Callable[..., Any]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1, "my" : 2]> g (float[2] x) => (float[2] y) { y = l.f(x) }
    <domain: "l", opset_import: ["" : 17, "my" : 1]> f (a) => (b) { b = my.Op(a) }"""
    out = run_passes(text, InlineFunctions())
    (note,) = out.ctx.report.of("function-opset")
    assert note.message == "l.f imports 'my' at version 1, the model at 2; 2 counts"
    assert note.severity.value == "warning" and out.ops() == ["Op"]


def test_an_opset_that_cannot_be_joined_names_node_and_function(run_passes: Callable[..., Any]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[2,3,4,5] x) => (float[a,b,c,d] y) { y = l.f(x) }
    <domain: "l", opset_import: ["" : 8]> f (a) => (b) {
      w = Constant<value = float[3] {1.0, 2.0, 3.0}>() b = BatchNormalization<spatial = 0>(a, w, w, w, w) }"""
    words = r"BatchNormalization from a local function of opset 8 cannot be brought to opset 17: spatial=0"
    with pytest.raises(UnsupportedError, match=words):
        run_passes(text, InlineFunctions())


def test_an_output_that_is_a_missing_input(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """The function hands an optional input on; without it the reader has none either."""
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[2] x) => (float[2] y) {
      a, b = l.both(x)  y = Clip(a, , b) }
    <domain: "l", opset_import: ["" : 17]> both (p, q) => (r, q) { r = Neg(p) }"""
    out = run_passes(text, InlineFunctions())
    assert [list(filter(None, n.input)) for n in out.proto.graph.node] == [["x"], ["a"]]


def test_attributes_are_handed_through_or_dropped(run_passes: Callable[..., Any]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[2,3] x) => (float[a,b] y) {
      s = l.outer<axis = 0>(x)  y = l.inner(s) }
    <domain: "l", opset_import: ["" : 17, "l" : 1]> outer <axis> (a) => (b) { b = l.inner<axis: int = @axis>(a) }
    <domain: "l", opset_import: ["" : 17]> inner <axis> (a) => (b) { b = Softmax<axis: int = @axis>(a) }"""
    out = run_passes(text, InlineFunctions())
    assert [[(a.name, a.i) for a in n.attribute] for n in out.proto.graph.node] == [[("axis", 0)], []]
