"""lift-constants: every kind of Constant, in every scope, without copying data; and freeze-defaults, its sibling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from onnxq.passbase import Context, run_step
from onnxq.passes.freeze_defaults import FreezeDefaults
from onnxq.passes.lift_constants import LiftConstants


def graph(body: str, signature: str = "(float[2] x) => (float[2] y)", ir_version: int = 8, constants: str = "") -> str:
    return f'<ir_version: {ir_version}, opset_import: ["" : 17]> g {signature} {constants} {{ {body} }}'


@pytest.mark.parametrize(
    ("attribute", "dtype", "value"),
    [
        ("value = double[2] {1, 2}", np.float64, [1, 2]),
        ("value_float = 1.5", np.float32, 1.5),
        ("value_floats = [1.5, 2.0]", np.float32, [1.5, 2.0]),
        ("value_int = 3", np.int64, 3),
        ("value_ints = [3, 4]", np.int64, [3, 4]),
    ],
)
def test_every_numeric_kind(attribute: str, dtype: Any, value: Any, run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph(f"k = Constant<{attribute}>() c = Cast<to=1>(k) y = Add(x, c)"), LiftConstants())
    assert out.ops() == ["Cast", "Add"]
    (name, array), *rest = out.initializers().items()
    assert name == "k" and not rest and array.dtype == dtype
    np.testing.assert_array_equal(array, np.array(value, dtype))
    onnx.checker.check_model(out.proto, full_check=True)


@pytest.mark.parametrize(
    ("attribute", "value"), [('value_string = "é"', "é"), ('value_strings = ["a", "b"]', ["a", "b"])]
)
def test_strings(attribute: str, value: Any, run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph(f"k = Constant<{attribute}>() y = Identity(k)", "() => (string[N] y)"), LiftConstants())
    assert out.ops() == ["Identity"]
    (tensor,) = out.proto.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), np.array(value, object))


def test_bodies_hold_their_own(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = graph(
        """
        k = Constant<value_float = 2.0>()
        y = If(c) <then_branch = t () => (float[2] p) { a = Constant<value_float = 3.0>() s = Mul(x, a) p = Mul(s, k) },
                   else_branch = e () => (float[2] q) { q = Constant<value_floats = [1.0, 2.0]>() }>
        """,
        "(bool c, float[2] x) => (float[2] y)",
    )
    out = run_passes(text, LiftConstants())
    assert [list(g.initializers) for g in out.model.graphs()] == [["k"], ["a"], []]
    (note,) = out.ctx.report.of("constant-kept")
    assert note.place.graph == "e" and "graph output" in note.message
    for flag in (True, False):
        same_numbers(text, out.proto, {"c": np.array(flag), "x": np.ones(2, np.float32)})


def test_functions_cannot_hold_initializers(run_passes: Callable[..., Any]) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[2] x) => (float[2] y) { y = l.f(x) }
    <domain: "l", opset_import: ["" : 17]> f (a) => (b) { k = Constant<value_float = 2.0>() b = Mul(a, k) }
    """
    out = run_passes(text, LiftConstants())
    assert not out.changed and "inline functions first" in out.ctx.report.notes[0].message


def test_metadata_and_old_ir_versions(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model(graph("k = Constant<value_float = 2.0>() y = Mul(x, k)", ir_version=3))
    proto.graph.node[0].metadata_props.add(key="from", value="me")
    proto.graph.node[0].doc_string = "two"
    out = run_passes(proto, LiftConstants())
    value = out.model.graph.initializers["k"]
    assert value.metadata_props == {"from": "me"} and value.doc_string == "two"
    assert out.proto.ir_version == 4, "version 3 would want it among the inputs"


def test_large_constants_are_not_copied() -> None:
    proto = parser.parse_model(graph("k = Constant<value_float = 2.0>() y = Mul(x, k)"))
    data = np.zeros((1 << 18,), np.float32)
    proto.graph.node[0].ClearField("attribute")
    proto.graph.node[0].attribute.append(helper.make_attribute("value", numpy_helper.from_array(data)))
    model = ir.from_proto(proto)
    held = model.graph[0].attributes["value"].as_tensor()
    assert run_step(LiftConstants(), model, Context())
    lifted = model.graph.initializers["k"].const_value
    assert isinstance(lifted, ir.LazyTensor) and lifted.raw() is held


def test_freeze_defaults(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = graph("y = Mul(x, k)", "(float[2] x, float[2] k) => (float[2] y)", 8, "<float[2] k = {1, 2}>")
    out = run_passes(text, FreezeDefaults())
    assert [v.name for v in out.proto.graph.input] == ["x"] and out.codes() == ["default-frozen"]
    assert out.ctx.report.notes[0].place.value == "k" and out.proto.ir_version == 8
    same_numbers(text, out.proto)
    old = run_passes(text.replace("ir_version: 8", "ir_version: 3"), FreezeDefaults())
    assert [v.name for v in old.proto.graph.input] == ["x"] and old.proto.ir_version == 4
    assert not old.codes(), "IR version 3 means a constant: nobody loses anything"
