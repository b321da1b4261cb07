"""What graph rules read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from onnxq.border import open_model
from onnxq.linting.subject import SMALL, Linear, Subject
from tests.rules.lab import build, in_branch

F, U8, S8 = np.float32, np.uint8, np.int8


def subject(*args: Any, **options: Any) -> Subject:
    return Subject(open_model(build(*args, **options)).model)


def named(found: Subject, name: str) -> Linear:
    return next(one for one in found.linears if one.node.name == name)


def test_pairs() -> None:
    found = subject(
        "q = QuantizeLinear<axis=-1>(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, s) y = Add(d, e)",
        {"s": np.ones(6, "f"), "z": np.full(6, 3, U8), "w": np.ones((6, 6), S8)},
    )
    q, d, e = found.linears
    assert found.quantizers == [q] and found.dequantizers == [d, e] and found.stored == [e]
    assert (q.quantizes, q.axis, q.has_axis, q.block_size) == (True, -1, True, 0) and (d.axis, d.has_axis) == (1, False)
    assert q.dtype is d.dtype is ir.DataType.UINT8 and e.dtype is ir.DataType.INT8
    assert q.dims == d.dims == (1, 4, 6, 6) and e.dims == (6, 6), "what follows from the operators counts"
    assert q.scale is not None and q.scale.shape == (6,) and q.zero is not None and q.zero.dtype == np.int64
    assert e.zero_value is None and e.zero is None and found.linear_of[q.node] is q
    assert [(one, n) for one, n in found.per_axis] == [(q, 6), (d, 6), (e, 6)]


def test_what_is_odd_is_none() -> None:
    """Computed, too large, unreadable, of another type, left out: never an error."""
    found = subject(
        """m = ReduceMax<keepdims=0>(x) a = QuantizeLinear(x, m, f) b = QuantizeLinear(x, h)
           c = QuantizeLinear(x, n) y = Neg(x)""",
        {"f": F(1), "h": np.zeros(SMALL + 1, "f"), "n": TensorProto(data_type=1, dims=[2], raw_data=b"abc")},
    )
    a, b, c = (named(found, name) for name in "abc")
    assert a.scale is None and a.zero is None and b.scale is None and c.scale is None
    assert found.dims(None) is None and found.dtype(None) is None and found.constant(None) is None


def test_attributes_that_a_call_fills_in() -> None:
    function = """<domain: "local", opset_import: ["" : 21]> op <axis> (a, s) => (b)
      { b = DequantizeLinear<axis : int = @axis>(a, s) }"""
    found = subject("y = local.op<axis=0>(w, s)", {"w": np.ones((2, 2), S8), "s": F(1)},
                    imports=', "local" : 1', functions=function)  # fmt: skip
    (one,) = found.linears
    assert one.has_axis and one.axis == 1


def test_scopes_and_places() -> None:
    model = build(in_branch("q = QuantizeLinear(x, s) p = DequantizeLinear(q, s)", "p"), {"s": F(1)})
    model.graph.node[2].attribute[0].g.node[0].name = ""
    found = Subject(open_model(model).model)
    assert list(found.paths.values()) == ["", "y/then_branch", "y/else_branch"]
    q, p = found.linears
    assert str(found.place(p.node)) == "y/then_branch/p (DequantizeLinear)"
    assert found.place(q.node).value == "q" and found.place(q.node).node == ""
    assert found.place(q.out).value == "q" and found.place(None).graph == ""
    assert found.opset(p.node) == 21 and found.opset(p.node, "com.microsoft") == 0
    assert [n.op_type for n in found.of("Cast", "If")] == ["Cast", "If"]


def test_the_function_has_its_own_opset() -> None:
    function = '<domain: "local", opset_import: ["" : 19]> op (x, s) => (y) { y = QuantizeLinear(x, s) }'
    found = subject("y = local.op(x, s)", {"s": F(1)}, imports=', "local" : 1', functions=function)
    assert found.opset(found.linears[0].node) == 19 and found.place(found.linears[0].node).graph == "local::op"


@pytest.mark.parametrize("declared", ["float[1,4,6,6] r,", ""])
def test_types(declared: str) -> None:
    """Of constants, as declared, or as they follow."""
    found = subject("r = Relu(x) q = QuantizeLinear(r, s) y = Cast<to=1>(q)", {"s": F(1)}, y=f"{declared} float y")
    r, q = (node.outputs[0] for node in found.nodes[:2])
    assert found.dtype(r) is ir.DataType.FLOAT and found.dims(r) == (1, 4, 6, 6)
    assert found.dtype(q) is ir.DataType.UINT8 and found.dims(q) == (1, 4, 6, 6)
    unknown = subject("y = local.op(x)", imports=', "local" : 1')
    assert unknown.dims(unknown.nodes[0].outputs[0]) is None


def test_a_model_that_contradicts_itself_has_no_types() -> None:
    found = subject("a = MatMul(x, w) y = Neg(a)", {"w": np.ones((3, 3), "f")}, x="float[2,4] x")
    assert found.dims(found.nodes[0].outputs[0]) is None


def test_it_needs_no_file() -> None:
    """Passes make one of the graph in hand."""
    model = ir.from_proto(build("q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)", {"s": F(0.5)}))
    found = Subject(model)
    assert found.wire is None and found.linears[0].scale == F(0.5)
