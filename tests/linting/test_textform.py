"""The text form: one line a thing, the same for equal models."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from onnxq import border
from onnxq.linting.textform import text_form
from onnxq.linting.wire import Wire

TEXT = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]> g (float[N,2] x, bool c) => (float[N,2] y)
    <float[2] s = {1, 2}, int64 k = {3}> {
    a = Mul(x, s)
    b = If (c) <then_branch = t () => (float[2] u) { u = Neg(s) }, else_branch = e () => (float[2] v) { v = Abs(s) }>
    y = local.f <alpha = 2.0> (a, b) }
    <domain: "local", opset_import: ["" : 21]> f <alpha> (p, q) => (r) {
    l = LeakyRelu <alpha: float = @alpha> (p) r = Add(l, q) }"""


def lines(model: onnx.ModelProto) -> list[str]:
    return [line.rstrip("\n") for line in text_form(border.open_model(model).model)]


def test_every_part_has_a_line() -> None:
    assert lines(parser.parse_model(TEXT)) == [
        "ir_version: 10",
        "import ai.onnx 21",
        "import local 1",
        "input x:float[N,2]",
        "input c:bool[]",
        "constant k:int64[] = int64[] 3",
        "constant s:float[2] = float[2] [1.0, 2.0]",
        "<unnamed>: a:?[?] = Mul[](x, s)",
        "<unnamed>: b:?[?] = If[](c)",
        "  body t",
        "    <unnamed>: u:float[2] = Neg[](s)",
        "    output u:float[2]",
        "  body e",
        "    <unnamed>: v:float[2] = Abs[](s)",
        "    output v:float[2]",
        "<unnamed>: y:float[N,2] = local::f[alpha=2.0](a, b)",
        "output y:float[N,2]",
        "function local::f",
        "  import ai.onnx 21",
        "  input p:?[?]",
        "  input q:?[?]",
        "  <unnamed>: l:?[?] = LeakyRelu[alpha=@alpha](p)",
        "  <unnamed>: r:?[?] = Add[](l, q)",
        "  output r:?[?]",
    ]


def test_order_of_constants_and_imports_does_not_count() -> None:
    model = parser.parse_model(TEXT)
    other = onnx.ModelProto.FromString(model.SerializeToString())
    for part in (other.graph.initializer, other.opset_import):
        kept = list(part)[::-1]
        del part[:]
        part.extend(kept)
    assert lines(model) == lines(other)


def weights(size: int, last: float = 0.0) -> str:
    array = np.zeros(size, np.float32)
    array[-1] = last
    info = helper.make_tensor_value_info("y", 1, [size])
    graph = helper.make_graph([], "g", [], [info], [numpy_helper.from_array(array, "y")])
    return lines(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))[2]


def test_larger_constants_are_told_apart_but_not_printed() -> None:
    assert weights(8) == "constant y:float[8] = float[8] [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]"
    assert weights(9).startswith("constant y:float[9] = float[9] sha256 ") and weights(9) != weights(9, 1.0)
    assert weights(300_000) == "constant y:float[300000] = float[300000] large"


def test_declarations_of_nothing_are_on_the_wire_only() -> None:
    model = parser.parse_model(TEXT)
    model.graph.value_info.append(helper.make_tensor_value_info("gone", 1, [2]))
    made = text_form(border.open_model(model).model, Wire(model))
    assert made[-1] == "declared gone\n"
