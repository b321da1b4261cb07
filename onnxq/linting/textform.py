"""A model as lines of text, for differences: one line an import, input, output, constant and node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.errors import OnnxqError
from onnxq.linting.wire import Wire
from onnxq.look import bodies, nbytes

_SHOWN = 8  # values of a constant that are written out
_HASHED_BYTES = 1 << 20  # a diff does not read larger ones: fixes change scales and small constants


def text_form(model: ir.Model, wire: Wire | None = None) -> list[str]:
    """The lines, each with its newline. Equal models give equal lines, in whatever order imports and constants lie.

    Args:
        model: The model.
        wire: The message it came from; what it declares of values that are not there is added.
    """
    lines = [f"ir_version: {model.ir_version}"]
    lines += [f"import {domain or 'ai.onnx'} {version}" for domain, version in sorted(model.opset_imports.items())]
    lines += [f"metadata {key}: {value!r}" for key, value in sorted(model.metadata_props.items())]
    lines += _graph(model.graph, "")
    for function in model.functions.values():
        lines.append(f"function {function.domain}::{function.name}")
        lines += [f"  import {domain or 'ai.onnx'} {v}" for domain, v in sorted(function.opset_imports.items())]
        lines += _graph(function.graph, "  ")
    lines += _loose(wire) if wire is not None else []
    return [f"{line}\n" for line in lines]


def _loose(wire: Wire) -> Iterator[str]:
    """Declarations of values that are not there: the IR has no place for them."""
    for scope in wire.scopes:
        for info in scope.body.value_info:
            if info.name not in scope.defined:
                yield f"declared {scope.path}{'/' if scope.path else ''}{info.name}"


def _graph(graph: ir.Graph, indent: str) -> Iterator[str]:
    for value in graph.inputs:
        yield f"{indent}input {_value(value)}"
    for name in sorted(graph.initializers):
        value = graph.initializers[name]
        yield f"{indent}constant {_value(value)} = {_tensor(value.const_value)}"
    for node in graph:
        inside = bodies(node)
        attributes = ", ".join(
            f"{name}={_attribute(attr)}" for name, attr in sorted(node.attributes.items()) if not _is_graph(attr)
        )
        outs = ", ".join(_value(value) for value in node.outputs)
        ins = ", ".join((value.name or "") if value is not None else "" for value in node.inputs)
        op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        yield f"{indent}{node.name or '<unnamed>'}: {outs} = {op}[{attributes}]({ins})"
        for body in inside:
            yield f"{indent}  body {body.name or ''}"
            yield from _graph(body, f"{indent}    ")
    for value in graph.outputs:
        yield f"{indent}output {_value(value)}"


def _is_graph(attr: ir.Attr) -> bool:
    return not attr.is_ref() and attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _attribute(attr: ir.Attr) -> str:
    if attr.is_ref():
        return f"@{attr.ref_attr_name}"
    return _tensor(attr.as_tensor()) if attr.type is ir.AttributeType.TENSOR else repr(attr.value)


def _value(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    shape = ",".join(str(d) for d in value.shape) if value.shape is not None else "?"
    return f"{value.name or ''}:{dtype}[{shape}]"


def _tensor(tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return "?"
    head = f"{tensor.dtype.name.lower()}{list(tensor.shape.numpy())}"
    try:
        if tensor.size <= _SHOWN:
            return f"{head} {tensor.numpy().tolist()}"
        data = tensor.tobytes() if nbytes(tensor) <= _HASHED_BYTES else b""
    except OnnxqError:
        return f"{head} unreadable"
    return f"{head} sha256 {hashlib.sha256(data).hexdigest()[:12]}" if data else f"{head} large"
