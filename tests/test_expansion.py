from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import helper, parser

from onnxq.errors import UnsupportedError
from onnxq.expansion import refuse_explosion
from tests.fuzz.test_bombs import call, function, model


def dense(layers: int) -> ir.Model:
    """Concat of activations with what is computed from them, layer after layer: no data, however long the chain."""
    lines = "\n".join(f"r{i} = Relu(v{i}) v{i + 1} = Concat<axis = 1>(v{i}, r{i})" for i in range(layers))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] v0) => (float y) {{ {lines} y = Relu(v{layers}) }}'
    return ir.from_proto(parser.parse_model(text))


def shapes(joins: int) -> ir.Model:
    """A shape joined with itself."""
    lines = "\n".join(f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(joins))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (int64 v{joins}) {{ v0 = Shape(x) {lines} }}'
    return ir.from_proto(parser.parse_model(text))


@pytest.mark.parametrize("harmless", [dense(60), shapes(12)])
def test_real_models_pass(harmless: ir.Model) -> None:
    refuse_explosion(harmless)


def test_joined_shapes_are_counted() -> None:
    with pytest.raises(UnsupportedError, match=r"would take 4e\+06 steps, and it has 21 nodes"):
        refuse_explosion(shapes(20))  # 2 numbers, doubled 20 times, and all before that: 2^22


def test_calls_are_counted_as_often_as_they_are_made() -> None:
    def tower(height: int) -> ir.Model:
        functions = [function("f0", helper.make_node("Relu", ["a"], ["b"]))]
        for i in range(1, height):
            functions.append(function(f"f{i}", call(f"f{i - 1}", "a", "t"), call(f"f{i - 1}", "t", "b")))
        return ir.from_proto(model([call(f"f{height - 1}", "x", "y")], functions=functions))

    refuse_explosion(tower(15))
    with pytest.raises(UnsupportedError, match="steps"):
        refuse_explosion(tower(25))


@pytest.mark.parametrize("calls", [["f"], ["g", "f"]])
def test_functions_that_call_themselves(calls: list[str]) -> None:
    functions = [function(name, call(called, "a", "b")) for name, called in zip(["f", "g"], calls, strict=False)]
    with pytest.raises(UnsupportedError, match="calls itself"):
        refuse_explosion(ir.from_proto(model([call("f", "x", "y")], functions=functions)))
