"""What wire rules read: the message without large payloads, looked through once, in all scopes.

Nothing here needs the model to be valid. Names that are not text, graphs in graphs, functions: all are met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxq.border.incoming import Incoming
from onnxq.border.payload import Payload
from onnxq.border.wire import MARK_BYTES, marked
from onnxq.diagnostics import Place

_GRAPH, _GRAPHS, _TENSOR, _TENSORS = (
    AttributeProto.GRAPH,
    AttributeProto.GRAPHS,
    AttributeProto.TENSOR,
    AttributeProto.TENSORS,
)
# The standard operators that have graphs or tensors as attributes; looking into every attribute of others costs more
# than all rules together.
_HOLD = frozenset({"If", "Loop", "Scan", "SequenceMap", "Constant", "ConstantOfShape"})


class Attribute(NamedTuple):
    """Name and type of an attribute; ``ref`` where it stands for an attribute of the function around it."""

    name: str
    type: int
    ref: str


class WireNode(NamedTuple):
    """A node as plain Python: reading a message field costs more than all that rules do with it."""

    position: int
    name: str
    op_type: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    proto: NodeProto


class WireTensor(NamedTuple):
    """A dense tensor: an initializer, or in an attribute of a node."""

    scope: Scope
    node: WireNode | None
    proto: TensorProto

    @property
    def place(self) -> Place:
        """The place to name."""
        return self.scope.place(self.node, "" if self.node is not None else self.proto.name)


@dataclass
class Scope:
    """A graph, or the body of a local function. What all rules ask for lies in columns, one entry a node.

    Attributes:
        path: ``""`` for the main graph, ``node/attribute`` for a body, ``domain::name`` for a function.
        body: The message.
        outer: The scope around it, whose names it sees; None for the main graph and for functions.
        imports: Opset versions by domain that hold here; ``ai.onnx`` is ``""``.
        inputs: Names of its inputs.
        outputs: Names of its outputs.
        protos: Its nodes.
        ops: Domain and op type of each.
        reads: Names that each reads.
        makes: Names that each makes.
    """

    path: str
    body: GraphProto | FunctionProto
    outer: Scope | None
    imports: dict[str, int]
    inputs: list[str]
    outputs: list[str]
    protos: list[NodeProto] = field(init=False)
    ops: list[tuple[str, str]] = field(init=False)
    reads: list[list[str]] = field(init=False)
    makes: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.protos = list(self.body.node)
        self.ops = [("" if n.domain == "ai.onnx" else n.domain, n.op_type) for n in self.protos]
        self.reads = [list(n.input) for n in self.protos]
        self.makes = [list(n.output) for n in self.protos]

    def node(self, index: int) -> WireNode:
        """The node at a position."""
        proto, (domain, op_type) = self.protos[index], self.ops[index]
        return WireNode(index, proto.name, op_type, domain, self.reads[index], self.makes[index], proto)

    def place(self, node: WireNode | int | None = None, value: str = "") -> Place:
        """The place of a node or a value of this scope; a node without a name is found by its first output."""
        if node is None:
            return Place(value=value, graph=self.path)
        if isinstance(node, int):
            node = self.node(node)
        value = value or (node.outputs[0] if node.outputs and not node.name else "")
        return Place(node.name, node.op_type, value, self.path)

    @cached_property
    def nodes(self) -> list[WireNode]:
        """All nodes; the columns are faster."""
        return [self.node(i) for i in range(len(self.protos))]

    @cached_property
    def names(self) -> list[str]:
        """The name of each node."""
        return [n.name for n in self.protos]

    @cached_property
    def attributes(self) -> list[Sequence[Attribute]]:
        """The attributes of each node."""
        return [[Attribute(a.name, a.type, a.ref_attr_name) for a in n.attribute] for n in self.protos]

    @cached_property
    def initializers(self) -> list[TensorProto]:
        """Dense initializers; a function has none."""
        return list(self.body.initializer) if isinstance(self.body, GraphProto) else []

    @cached_property
    def constants(self) -> list[str]:
        """Names of initializers, sparse ones, too."""
        names = [t.name for t in self.initializers]
        if isinstance(self.body, GraphProto):
            names += [s.values.name for s in self.body.sparse_initializer]
        return names

    @cached_property
    def defined(self) -> set[str]:
        """Every name that this scope defines itself."""
        return {*self.inputs, *self.constants, *chain.from_iterable(self.makes)} - {""}

    @cached_property
    def read(self) -> set[str]:
        """Every name that its own nodes read."""
        return set(chain.from_iterable(self.reads)) - {""}

    def sees(self, name: str) -> bool:
        """Whether this scope or one around it defines a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.defined:
                return True
            scope = scope.outer
        return False

    def holders(self) -> Iterator[int]:
        """Positions of nodes that may have graphs or tensors as attributes."""
        return (i for i, (domain, op_type) in enumerate(self.ops) if domain or op_type in _HOLD)


class Wire:
    """The message of a model.

    Attributes:
        model: The message; some payloads may be marks, so ask `size` and `data`.
        path: The file it came from, if any.
    """

    def __init__(self, model: ModelProto, path: Path | None = None, incoming: Incoming | None = None) -> None:
        self.model, self.path = model, path
        self._tag = incoming.tag if incoming is not None else b""
        self._payloads = incoming.payloads if incoming is not None else []

    @cached_property
    def scopes(self) -> list[Scope]:
        """Main graph, its bodies at every level, then functions and their bodies."""
        imports = _imports(self.model.opset_import)
        found = list(_graph_scopes(self.model.graph, "", None, imports))
        for function in self.model.functions:
            path, inner = f"{function.domain}::{function.name}", _imports(function.opset_import)
            scope = Scope(path, function, None, inner, list(function.input), list(function.output))
            found.append(scope)
            found.extend(_inside(scope))
        return found

    @cached_property
    def tensors(self) -> list[WireTensor]:
        """Every dense tensor: initializers and attributes."""
        found = []
        for scope in self.scopes:
            found += [WireTensor(scope, None, t) for t in scope.initializers]
            for index in scope.holders():
                for attribute in scope.protos[index].attribute:
                    if attribute.type == _TENSOR:
                        found.append(WireTensor(scope, scope.node(index), attribute.t))
                    elif attribute.type == _TENSORS:
                        found += [WireTensor(scope, scope.node(index), t) for t in attribute.tensors]
        return found

    @cached_property
    def wanted(self) -> dict[str, set[str]]:
        """By path: names that nodes of a scope, or of scopes inside it, read, and what those give out."""
        wanted = {scope.path: set(scope.read) for scope in self.scopes if scope.outer is not None}
        wanted |= {scope.path: scope.read for scope in self.scopes if scope.outer is None}
        for scope in reversed(self.scopes):  # inner ones first
            if scope.outer is not None:
                path = scope.outer.path
                wanted[path] = wanted[path] | wanted[scope.path] | set(scope.outputs)
        return wanted

    def size(self, tensor: TensorProto) -> int | None:
        """Bytes of a tensor's ``raw_data``; None where it has none."""
        if not tensor.HasField("raw_data"):
            return None
        raw = tensor.raw_data
        if not self._tag or len(raw) != MARK_BYTES:
            return len(raw)
        payload = self._payload(raw)
        return payload.size if payload is not None else len(raw)

    def data(self, tensor: TensorProto) -> bytes | memoryview | None:
        """A tensor's ``raw_data``, read where it lies; None where it has none."""
        if not tensor.HasField("raw_data"):
            return None
        payload = self._payload(tensor.raw_data)
        return payload.view() if payload is not None else tensor.raw_data

    def _payload(self, raw: bytes) -> Payload | None:
        index = marked(raw, self._tag) if self._tag else None
        return self._payloads[index] if index is not None else None


def _imports(entries: object) -> dict[str, int]:
    return {("" if e.domain == "ai.onnx" else e.domain): e.version for e in entries}  # type: ignore[attr-defined]


def _graph_scopes(graph: GraphProto, path: str, outer: Scope | None, imports: dict[str, int]) -> Iterator[Scope]:
    scope = Scope(path, graph, outer, imports, [v.name for v in graph.input], [v.name for v in graph.output])
    yield scope
    yield from _inside(scope)


def _inside(scope: Scope) -> Iterator[Scope]:
    """The scopes in the attributes of a scope's nodes."""
    for index in scope.holders():
        proto = scope.protos[index]
        for attribute in proto.attribute:
            if attribute.type in (_GRAPH, _GRAPHS):
                path = f"{scope.path}/{proto.name or proto.op_type}/{attribute.name}".lstrip("/")
                for graph in [attribute.g] if attribute.type == _GRAPH else attribute.graphs:
                    yield from _graph_scopes(graph, path, scope, scope.imports)
