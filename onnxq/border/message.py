"""A copy of a caller's message without its large weights, which stay where they are and are only pointed to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxq.border.tensors import DATA_FIELDS
from onnxq.border.unknown import refuse_unknown_fields
from onnxq.border.wire import mark
from onnxq.errors import UnsupportedError

_HEAVY = (AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.GRAPH, AttributeProto.GRAPHS)


def shell_of(message: ModelProto, tag: bytes, threshold: int) -> tuple[ModelProto, list[TensorProto]]:
    """Copy everything but the data of tensors with ``threshold`` elements or more, which become marks (see `wire`).

    The message is read, never written, and never serialized as a whole, so its size does not matter.

    Returns:
        The copy, and the tensors left behind, by mark index.

    Raises:
        UnsupportedError: The message has fields that the installed onnx does not know, or text that is not UTF-8.
    """
    shell, copier = ModelProto(), _Copier(tag, threshold)
    copier.fields(message, shell, "graph", "functions")
    if message.HasField("graph"):
        shell.graph.SetInParent()
        copier.graph(message.graph, shell.graph)
    for function in message.functions:
        out = shell.functions.add()
        copier.fields(function, out, "node", "attribute_proto")
        copier.nodes(function.node, out.node)
        copier.attributes(function.attribute_proto, out.attribute_proto)
    return shell, copier.left


class _Copier:
    def __init__(self, tag: bytes, threshold: int) -> None:
        self.tag, self.threshold = tag, threshold
        self.left: list[TensorProto] = []

    def fields(self, message: Message, out: Message, *but: str) -> None:
        """Copy all fields except those named."""
        where = getattr(message, "name", "") or "the model"
        refuse_unknown_fields(message, where, deep=False)
        for field in message.DESCRIPTOR.fields:
            if field.name in but:
                continue
            value = getattr(message, field.name)
            if isinstance(value, Message):
                if message.HasField(field.name):
                    getattr(out, field.name).CopyFrom(value)
                continue
            try:
                if hasattr(value, "MergeFrom"):
                    getattr(out, field.name).MergeFrom(value)
                elif message.HasField(field.name):
                    setattr(out, field.name, value)
            except UnicodeDecodeError:  # such text can be read from a message, but not be put into one
                raise UnsupportedError(f"{where}: a name or text that is not UTF-8") from None

    def graph(self, graph: GraphProto, out: GraphProto) -> None:
        self.fields(graph, out, "node", "initializer")
        self.nodes(graph.node, out.node)
        for tensor in graph.initializer:
            self.tensor(tensor, out.initializer.add())

    def nodes(self, nodes: Iterable[NodeProto], out: Any) -> None:
        for node in nodes:
            if any(a.type in _HEAVY for a in node.attribute):
                copy = out.add()
                self.fields(node, copy, "attribute")
                self.attributes(node.attribute, copy.attribute)
            else:
                out.add().CopyFrom(node)

    def attributes(self, attributes: Iterable[AttributeProto], out: Any) -> None:
        for attribute in attributes:
            copy = out.add()
            self.fields(attribute, copy, "t", "g", "tensors", "graphs")
            if attribute.HasField("t"):
                copy.t.SetInParent()
                self.tensor(attribute.t, copy.t)
            if attribute.HasField("g"):
                copy.g.SetInParent()
                self.graph(attribute.g, copy.g)
            for tensor in attribute.tensors:
                self.tensor(tensor, copy.tensors.add())
            for graph in attribute.graphs:
                self.graph(graph, copy.graphs.add())

    def tensor(self, tensor: TensorProto, out: TensorProto) -> None:
        small = math.prod(tensor.dims) < self.threshold
        if small or tensor.data_location == TensorProto.EXTERNAL or tensor.data_type == TensorProto.STRING:
            out.CopyFrom(tensor)
            return
        self.fields(tensor, out, *DATA_FIELDS)
        out.raw_data = mark(self.tag, len(self.left))
        self.left.append(tensor)
