"""What wire rules read: the message without large payloads, looked through once, in all scopes.

Nothing here needs the model to be valid. Names that are not text, graphs in graphs, functions: all are met.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxq.border.incoming import Incoming
from onnxq.border.payload import Payload
from onnxq.border.wire import marked
from onnxq.diagnostics import Place

_GRAPH, _GRAPHS, _TENSOR, _TENSORS = (
    AttributeProto.GRAPH,
    AttributeProto.GRAPHS,
    AttributeProto.TENSOR,
    AttributeProto.TENSORS,
)


@dataclass(slots=True)
class WireNode:
    """A node as plain Python: reading a message field costs more than all that rules do with it."""

    index: int
    name: str
    op_type: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    proto: NodeProto


@dataclass
class Scope:
    """A graph, or the body of a local function.

    Attributes:
        path: ``""`` for the main graph, ``node/attribute`` for a body, ``domain::name`` for a function.
        body: The message.
        outer: The scope around it, whose names it sees; None for the main graph and for functions.
        imports: Opset versions by domain that hold here; ``ai.onnx`` is ``""``.
        nodes: Its nodes.
        inputs: Names of its inputs.
        outputs: Names of its outputs.
    """

    path: str
    body: GraphProto | FunctionProto
    outer: Scope | None
    imports: dict[str, int]
    nodes: list[WireNode] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def place(self, node: WireNode | None = None, value: str = "") -> Place:
        """The place of a node or a value of this scope; a node without a name is found by its first output."""
        if node is None:
            return Place(value=value, graph=self.path)
        value = value or (node.outputs[0] if node.outputs and not node.name else "")
        return Place(node.name, node.op_type, value, self.path)

    @cached_property
    def initializers(self) -> list[TensorProto]:
        """Dense initializers; a function has none."""
        return list(self.body.initializer) if isinstance(self.body, GraphProto) else []

    @cached_property
    def defined(self) -> set[str]:
        """Every name that this scope defines itself."""
        names = {*self.inputs, *(t.name for t in self.initializers)}
        if isinstance(self.body, GraphProto):
            names.update(s.values.name for s in self.body.sparse_initializer)
        return names.union(*(n.outputs for n in self.nodes))

    def sees(self, name: str) -> bool:
        """Whether this scope or one around it defines a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.defined:
                return True
            scope = scope.outer
        return False


class Wire:
    """The message of a file.

    Attributes:
        model: The message; payloads from 4 KiB on are marks, so ask `size` and `data`.
        path: The file it came from, if any.
    """

    def __init__(self, incoming: Incoming, path: Path | None = None) -> None:
        self.model: ModelProto = incoming.shell
        self.path = path
        self._incoming = incoming

    @cached_property
    def scopes(self) -> list[Scope]:
        """Main graph, its bodies at every level, then functions and their bodies."""
        imports = _imports(self.model.opset_import)
        found = list(_graph_scopes(self.model.graph, "", None, imports))
        for function in self.model.functions:
            scope = Scope(f"{function.domain}::{function.name}", function, None, _imports(function.opset_import))
            scope.inputs, scope.outputs = list(function.input), list(function.output)
            found.append(scope)
            found.extend(_fill(scope))
        return found

    @cached_property
    def tensors(self) -> list[tuple[Scope, Place, TensorProto]]:
        """Every dense tensor: initializers and attributes, with the place to name."""
        found = []
        for scope in self.scopes:
            found += [(scope, scope.place(value=t.name), t) for t in scope.initializers]
            for node in scope.nodes:
                for attribute in node.proto.attribute:
                    if attribute.type == _TENSOR:
                        found.append((scope, scope.place(node), attribute.t))
                    elif attribute.type == _TENSORS:
                        found += [(scope, scope.place(node), t) for t in attribute.tensors]
        return found

    def size(self, tensor: TensorProto) -> int | None:
        """Bytes of a tensor's ``raw_data``; None where it has none."""
        payload = self._payload(tensor)
        return payload.size if payload is not None else len(tensor.raw_data) if tensor.HasField("raw_data") else None

    def data(self, tensor: TensorProto) -> bytes | memoryview | None:
        """A tensor's ``raw_data``, read where it lies; None where it has none."""
        payload = self._payload(tensor)
        return payload.view() if payload is not None else tensor.raw_data if tensor.HasField("raw_data") else None

    def elsewhere(self, tensor: TensorProto) -> bool:
        """Whether the data are large and in typed fields of the caller's message, or in another file."""
        index = marked(tensor.raw_data, self._incoming.tag) if tensor.HasField("raw_data") else None
        return tensor.data_location == TensorProto.EXTERNAL or (
            index is not None and self._incoming.payloads[index] is None
        )

    def _payload(self, tensor: TensorProto) -> Payload | None:
        index = marked(tensor.raw_data, self._incoming.tag) if tensor.HasField("raw_data") else None
        return self._incoming.payloads[index] if index is not None else None


def _imports(entries: object) -> dict[str, int]:
    return {("" if e.domain == "ai.onnx" else e.domain): e.version for e in entries}  # type: ignore[attr-defined]


def _graph_scopes(graph: GraphProto, path: str, outer: Scope | None, imports: dict[str, int]) -> Iterator[Scope]:
    scope = Scope(path, graph, outer, imports)
    scope.inputs, scope.outputs = [v.name for v in graph.input], [v.name for v in graph.output]
    yield scope
    yield from _fill(scope)


def _fill(scope: Scope) -> Iterator[Scope]:
    """Read the nodes of a scope, and yield the scopes in them."""
    inner: list[tuple[str, GraphProto]] = []
    for index, proto in enumerate(scope.body.node):
        node = WireNode(index, proto.name, proto.op_type, proto.domain, list(proto.input), list(proto.output), proto)
        if node.domain == "ai.onnx":
            node.domain = ""
        scope.nodes.append(node)
        for attribute in proto.attribute:
            kind = attribute.type
            here = f"{scope.path}/" if scope.path else ""
            if kind == _GRAPH:
                inner.append((f"{here}{node.name or node.op_type}/{attribute.name}", attribute.g))
            elif kind == _GRAPHS:
                inner += [(f"{here}{node.name or node.op_type}/{attribute.name}", g) for g in attribute.graphs]
    for path, graph in inner:
        yield from _graph_scopes(graph, path, scope, scope.imports)
