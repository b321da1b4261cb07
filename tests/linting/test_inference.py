"""Types in local functions follow from their calls."""

from __future__ import annotations

import onnx_ir as ir
from onnx import parser

from onnxq.linting.inference import infer


def _found(text: str) -> dict[str, tuple[int, list[int] | None]]:
    model = ir.from_proto(parser.parse_model(text))
    rows = {}
    for value, kind in infer(model).items():
        tensor = kind.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim] if tensor.HasField("shape") else None
        rows[str(value.name)] = (tensor.elem_type, shape)
    return rows


HEAD = '<ir_version: 10, opset_import: ["": 21, "local": 1]> g (float[2, 4] x, float[2, 3] u, int64[2, 4] i)'
OUTER = '<domain: "local", opset_import: ["": 21, "local": 1]> Outer (a) => (b) { b = local.Inner(a) }'
INNER = '<domain: "local", opset_import: ["": 21]> Inner (c) => (d) { d = Transpose(c) }'


def test_a_function_in_a_function_has_the_shape_of_the_call() -> None:
    found = _found(f"{HEAD} => (y) {{ y = local.Outer(x) }} {OUTER} {INNER}")
    assert found["a"] == found["c"] == (1, [2, 4])
    assert found["b"] == found["d"] == (1, [4, 2])


def test_calls_that_differ_leave_what_they_agree_on() -> None:
    found = _found(f"{HEAD} => (y, z) {{ y = local.Inner(x) z = local.Inner(u) }} {INNER}")
    assert found["c"] == (1, [2, 0])  # 2, unknown
    assert found["d"] == (1, [0, 2])


def test_calls_with_other_types_say_nothing() -> None:
    assert "c" not in _found(f"{HEAD} => (y, z) {{ y = local.Inner(x) z = local.Inner(i) }} {INNER}")


def test_functions_with_attributes_of_the_call_are_not_looked_into() -> None:
    body = '<domain: "local", opset_import: ["": 21]> Inner <perm> (c) => (d) { d = Transpose<perm: ints = @perm>(c) }'
    assert "d" not in _found(f"{HEAD} => (y) {{ y = local.Inner<perm = [0, 1]>(x) }} {body}")
