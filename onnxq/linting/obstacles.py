"""What the rules about the graph may rely on: nodes have an order, and standard operators the inputs they need."""

from __future__ import annotations

import onnx

from onnxq.linting.order import unsorted_scopes
from onnxq.linting.wire import Wire
from onnxq.wording import plural


def obstacle(wire: Wire) -> str:
    """Why a graph is none that can be walked along; empty where it is."""
    for scope in wire.scopes:
        for kind in scope.kinds.values():
            if not kind.domain and _too_few(kind.op_type, scope.imports.get("", 0), kind.inputs, kind.outputs):
                counts = f"{plural(kind.inputs, 'input')} and {plural(kind.outputs, 'output')}"
                return f"it has {kind.op_type} nodes of {counts}"
    for found in unsorted_scopes(wire):
        circle = found.circle()
        if circle:
            return f"{plural(len(circle), 'node')} need each other's values in a circle"
    return ""


def _too_few(op_type: str, opset: int, inputs: int, outputs: int) -> bool:
    if not 0 < opset <= onnx.defs.onnx_opset_version():
        return False  # rules say so
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return False
    return inputs < schema.min_input or outputs < schema.min_output
