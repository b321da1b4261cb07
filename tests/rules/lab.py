"""Small models for tests of rules, and what one rule says of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from onnxq import lint
from onnxq.diagnostics import Diagnostic


def build(
    body: str,
    data: dict[str, Any] | None = None,
    *,
    x: str = "float[1,4,6,6] x",
    y: str = "float y",
    opset: int = 21,
    ir: int = 10,
    functions: str = "",
    imports: str = "",
) -> onnx.ModelProto:
    """A model whose nodes are called like their first output, also in bodies and functions.

    Args:
        body: Nodes in the text form of onnx.
        data: Initializers by name.
        x: Graph inputs.
        y: Graph outputs; one without dimensions is of unknown rank.
        opset: Version of ai.onnx.
        ir: IR version.
        functions: Local functions as text.
        imports: More opset imports as text, each with a comma in front.
    """
    text = f'<ir_version: {ir}, opset_import: ["" : {opset}{imports}]> g ({x}) => ({y}) {{ {body} }} {functions}'
    model = parser.parse_model(text)
    _open(model.graph)
    for name, array in (data or {}).items():
        tensor = array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(np.asarray(array))
        tensor.name = name
        model.graph.initializer.append(tensor)
    _name(model.graph.node)
    for function in model.functions:
        _name(function.node)
    return model


def _name(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        node.name = node.name or node.output[0]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _name(graph.node)
                _open(graph)


def _open(graph: onnx.GraphProto) -> None:
    """Let outputs that are written without dimensions have any shape."""
    for value in graph.output:
        if not value.type.tensor_type.shape.dim:
            value.type.tensor_type.ClearField("shape")


def find(model: Any, code: str, **options: Any) -> list[Diagnostic]:
    """What one rule says; no rule may fail."""
    found = lint(model, select=f"{code},OQ900", **options)
    assert all(d.code == code for d in found), [str(d) for d in found]
    return found


def places(model: Any, code: str, **options: Any) -> list[str]:
    """The names of the nodes, or else the values, that a rule names."""
    return [d.place.node or d.place.value for d in find(model, code, **options)]


def numbers(model: Any, code: str, **options: Any) -> dict[str, Any]:
    """The figures of the one finding there is."""
    (found,) = find(model, code, **options)
    return found.numbers


def in_branch(body: str, out: str = "y") -> str:
    """Nodes in the then-branch of an If called ``y``, with one float output; the other branch is an Identity of x."""
    return f"""f = Constant<value_int=1>() c = Cast<to=9>(f)
      y = If(c) <then_branch = t () => (float {out}_in) {{ {body} {out}_in = Identity({out}) }},
                 else_branch = e () => (float e_in) {{ e_in = Identity(x) }}>"""
