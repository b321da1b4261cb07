"""Graphs that cannot be walked along: said by the rules about the file, and kept from those about the graph."""

from __future__ import annotations

import pytest
from onnx import ModelProto, parser

from onnxq.diagnostics import Severity
from onnxq.linting.engine import Outcome, check
from onnxq.linting.selection import Selection

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def found(text: str, *codes: str) -> tuple[Outcome, list[tuple[str, str, str]]]:
    model: ModelProto = parser.parse_model(HEAD + text)
    outcome = check(model, Selection(codes), graph=True)
    return outcome, [(d.severity.value, d.place.value or d.place.op_type, d.message) for d in outcome.diagnostics]


def test_a_circle_is_one_error() -> None:
    text = """g (float[2] x) => (float[2] y) {
        a = Relu(x)  b = Add(a, d)  c = Neg(b)  d = Abs(c)  y = Relu(d)  early = Neg(last)  last = Abs(y) }"""
    outcome, said = found(text, "OQ006", "OQ002")
    assert said == [
        ("info", "", "the rules about the graph could not run: 3 nodes need each other's values in a circle"),
        ("error", "b", "3 nodes need each other's values in a circle"),
        ("warning", "early", "it reads 'last', which Abs '' makes further down"),
    ]
    assert outcome.model is None
    assert not any(d.fix for d in outcome.diagnostics)


def test_a_node_that_reads_what_it_makes() -> None:
    _, said = found("g (float[2] x) => (float[2] y) { y = Relu(y) }", "OQ006")
    assert said[1] == ("error", "y", "it reads what it makes")


def test_a_circle_through_a_body() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] ty) { ty = Add(x, z) },
                   else_branch = e () => (float[2] ey) { ey = Relu(x) }>
        z = Neg(y) }"""
    _, said = found(text, "OQ006")
    assert said[1] == ("error", "y", "2 nodes need each other's values in a circle")


def test_nodes_out_of_order_are_walked_along() -> None:
    outcome, said = found("g (float[2] x) => (float[2] y) { y = Relu(a)  a = Neg(x) }", "OQ006")
    assert said == [("warning", "y", "it reads 'a', which Neg '' makes further down")]
    assert outcome.model is not None
    assert [d.fix for d in outcome.diagnostics] == ["sort-nodes"]


def test_what_onnx_ir_logs_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    _, said = found("g (float[2] x) => (float[2] y) { y = Relu(nobody) }", "OQ007")
    assert said == [("error", "nobody", "it reads 'nobody', which nothing defines")]
    assert not caplog.records


def test_operators_without_the_inputs_they_need() -> None:
    outcome, said = found("g (float[2] x) => (float[2] y) { y = QuantizeLinear(x) }", "OQ016", "OQ002")
    assert said[0][2].endswith("it has a QuantizeLinear of 1 input and 1 output")
    assert outcome.diagnostics[0].severity is Severity.INFO
    assert outcome.model is None


def test_attributes_of_another_kind_or_missing() -> None:
    _, said = found("g (float[2] x) => (float[2] y) { y = Gemm<transB = [1]>(x, x) }", "OQ002", "OQ016")
    assert said[0][2].endswith("it has a Gemm with an attribute 'transB' of another kind")
    _, said = found("g (float[2] x) => (float[2] y) { y = Cast(x) }", "OQ002", "OQ016")
    assert said[0][2].endswith("it has a Cast without its attribute 'to'")


def test_a_rule_that_cannot_read_a_tensor_is_no_bug() -> None:
    text = """g (float[2] x) => (float[2] y) <float s = {0.5}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""
    model = parser.parse_model(HEAD + text)
    model.graph.initializer[0].ClearField("float_data")
    outcome = check(model, Selection(("OQ008", "OQ002", "OQ621"), target="ort-training"))
    assert [(d.code, d.severity) for d in outcome.diagnostics] == [("OQ002", Severity.INFO), ("OQ008", Severity.ERROR)]
    assert outcome.diagnostics[0].message.startswith("rule OQ621 could not run: tensor 's': the data do not fit")


def test_operators_of_no_version() -> None:
    model = parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.opset_import[0].domain = "com.microsoft"
    outcome = check(model, Selection(("OQ002", "OQ003")), graph=True)
    assert [d.code for d in outcome.diagnostics] == ["OQ002", "OQ003"]
    assert outcome.diagnostics[0].message.endswith("it has a Relu of an opset that is not imported")
