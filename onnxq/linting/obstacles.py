"""What rules about the graph may rely on: nodes have an order, and standard operators what their schema demands."""

from __future__ import annotations

from functools import cache

import onnx

from onnxq.linting.order import unsorted_scopes
from onnxq.linting.wire import Signature, Wire
from onnxq.wording import plural


def obstacle(wire: Wire) -> str:
    """Why a graph is none that can be walked along; empty where it is. Rules about the file say it with places."""
    for scope in wire.scopes:
        opset = scope.imports.get("", 0)
        for kind in scope.kinds.values():
            why = "" if kind.domain else _misfit(kind, opset)
            if why:
                return f"it has a {kind.op_type} {why}"
    for found in unsorted_scopes(wire):
        circle = found.circle()
        if circle:
            return f"{plural(len(circle), 'node')} need each other's values in a circle"
    return ""


def _misfit(kind: Signature, opset: int) -> str:
    if opset < 1:
        return "of an opset that is not imported"
    schema = _schema(kind.op_type, opset) if opset <= onnx.defs.onnx_opset_version() else None
    if schema is None:
        return ""  # a rule says so
    if kind.inputs < schema.min_input or kind.outputs < schema.min_output:
        return f"of {plural(kind.inputs, 'input')} and {plural(kind.outputs, 'output')}"
    given = {name for name, *_ in kind.attributes}
    for name, one in schema.attributes.items():
        if one.required and name not in given:
            return f"without its attribute '{name}'"
    for name, number, ref in kind.attributes:
        known = schema.attributes.get(name)
        if known is not None and number and number != int(known.type.value) and not ref:  # type: ignore[attr-defined]
            return f"with an attribute '{name}' of another kind"
    return ""


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
