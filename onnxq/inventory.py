"""The constants of a model: which there are, which nodes they end in, and which files hold them. None is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from onnxq.border.payload import FileSpan
from onnxq.look import all_graphs, onnx_op, tensor_of_constant
from onnxq.states import CARRIERS


def constants_of(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Initializers (also those that are inputs, too) and Constant nodes of one graph, with their tensors."""
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value, value.const_value
    for node in graph:
        tensor = tensor_of_constant(node) if onnx_op(node, "Constant") else None
        if tensor is not None:
            yield node.outputs[0], tensor


def users_of(value: ir.Value) -> list[ir.Node]:
    """The nodes a constant ends in, looked through the ops that only hand it on; scales end in their Q or DQ."""
    users: dict[ir.Node, None] = {}
    todo = [value]
    while todo:
        for node, index in todo.pop().uses():
            if index == 0 and node.op_type in CARRIERS:
                todo += node.outputs
            else:
                users[node] = None
    return list(users)


def external_files(model: ir.Model, path: Path) -> dict[str, int]:
    """Files beside a model's own that hold its weights, relative to it, and how many bytes of them it uses."""
    own = path.resolve()
    spans: dict[tuple[Path, int], int] = {}
    for graph in all_graphs(model):
        for _, tensor in constants_of(graph):
            payload = getattr(tensor, "payload", None)
            if isinstance(payload, FileSpan) and payload.file.path != own:
                spans[payload.file.path, payload.offset] = payload.size
    out: Counter[str] = Counter()
    for (file, _), size in spans.items():
        out[os.path.relpath(file, own.parent)] += size
    return dict(out)
