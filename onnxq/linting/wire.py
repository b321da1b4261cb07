"""What wire rules read: the message without large payloads, looked through once, in all scopes.

Reading a field of a message costs more than all that rules do with it, so what rules ask for lies in columns. Nothing
here needs the model to be valid: names that are not text, graphs in graphs and functions are all met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

Attribute = tuple[str, int, str]
"""Name and type of an attribute, and the attribute of the function around it that it stands for, if any."""

NO_RAW = -1
"""The size of a tensor's ``raw_data`` where it has none."""

_GRAPH, _GRAPHS = AttributeProto.GRAPH, AttributeProto.GRAPHS
_TENSOR, _TENSORS = AttributeProto.TENSOR, AttributeProto.TENSORS
_HOLD_GRAPHS, _HOLD_TENSORS = frozenset({0, _GRAPH, _GRAPHS}), frozenset({0, _TENSOR, _TENSORS})


class Signature(NamedTuple):
    """What a schema says something about. Most nodes of a model share a few of them.

    Attributes:
        op: Domain and op type.
        inputs: Number of inputs.
        outputs: Number of outputs.
        absent: Positions of inputs that are left out.
        attributes: Its attributes.
    """

    op: tuple[str, str]
    inputs: int
    outputs: int
    absent: tuple[int, ...]
    attributes: tuple[Attribute, ...]

    @property
    def domain(self) -> str:
        """Domain of the operator; ``ai.onnx`` is ``""``."""
        return self.op[0]

    @property
    def op_type(self) -> str:
        """Its name."""
        return self.op[1]


@dataclass(eq=False)
class Scope:
    """A graph, or the body of a local function, in columns of one entry a node.

    Attributes:
        path: ``""`` for the main graph, ``node/attribute`` for a body, ``domain::name`` for a function.
        body: The message.
        outer: The scope around it, whose names it sees; None for the main graph and for functions.
        holder: Position in ``outer`` of the node that it is a body of.
        imports: Opset versions by domain that hold here; ``ai.onnx`` is ``""``.
        inputs: Names of its inputs.
        outputs: Names of its outputs.
        protos: Its nodes.
        names: Their names.
        ops: Domain and op type of each.
        reads: Names that each reads.
        makes: Names that each makes.
    """

    path: str
    body: GraphProto | FunctionProto
    outer: Scope | None
    holder: int
    imports: dict[str, int]
    inputs: list[str]
    outputs: list[str]
    protos: list[NodeProto] = field(init=False)
    names: list[str] = field(init=False)
    ops: list[tuple[str, str]] = field(init=False)
    reads: list[list[str]] = field(init=False)
    makes: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.protos = list(self.body.node)
        self.inputs, self.outputs = _texts(self.inputs), _texts(self.outputs)
        self.names = _texts([n.name for n in nodes])
        domains, op_types = _texts([n.domain for n in nodes]), _texts([n.op_type for n in nodes])
        self.ops = [("" if d == "ai.onnx" else d, o) for d, o in zip(domains, op_types, strict=True)]
        self.reads, self.makes = _rows([n.input[:] for n in nodes]), _rows([n.output[:] for n in nodes])

    @property
    def in_function(self) -> bool:
        """Whether it is the body of a local function, or lies in one."""
        outermost = self
        while outermost.outer is not None:
            outermost = outermost.outer
        return isinstance(outermost.body, FunctionProto)

    def place(self, index: int | None = None, value: str = "") -> Place:
        """The place of a node or a value of this scope; a node without a name is found by its first output."""
        if index is None:
            return Place(value=value, graph=self.path)
        name = self.names[index]
        value = value or (self.makes[index][0] if self.makes[index] and not name else "")
        return Place(name, self.ops[index][1], value, self.path)

    @cached_property
    def signatures(self) -> list[tuple[object, ...]]:
        """What `Signature` says of each node, as plain tuples, which equal those in `kinds`."""
        attributes: list[tuple[Attribute, ...]] = [
            tuple([(_text(a.name), a.type, a.ref_attr_name) for a in n.attribute]) if n.attribute else ()
            for n in self.protos
        ]
        absent = [_absent(names) if "" in names else () for names in self.reads]
        return list(zip(self.ops, map(len, self.reads), map(len, self.makes), absent, attributes, strict=True))

    @cached_property
    def kinds(self) -> dict[tuple[object, ...], Signature]:
        """The different signatures."""
        return {row: Signature._make(row) for row in set(self.signatures)}

    @cached_property
    def initializers(self) -> list[TensorProto]:
        """Dense initializers; a function has none."""
        return list(self.body.initializer) if isinstance(self.body, GraphProto) else []

    @cached_property
    def constants(self) -> list[str]:
        """Names of initializers; those of sparse ones behind them."""
        names = [t.name for t in self.initializers]
        if isinstance(self.body, GraphProto):
            names += [s.values.name for s in self.body.sparse_initializer]
        return _texts(names)

    @cached_property
    def defined(self) -> set[str]:
        """Every name that this scope defines itself."""
        names = {*self.inputs, *self.constants, *chain.from_iterable(self.makes)}
        names.discard("")
        return names

    @cached_property
    def read(self) -> set[str]:
        """Every name that its own nodes read."""
        names = set(chain.from_iterable(self.reads))
        names.discard("")
        return names

    @cached_property
    def described(self) -> list[str]:
        """Names of the values that its ``value_info`` describes."""
        return _texts([info.name for info in self.body.value_info])

    def sees(self, name: str) -> bool:
        """Whether this scope or one around it defines a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.defined:
                return True
            scope = scope.outer
        return False

    def holders(self, kinds: frozenset[int]) -> list[int]:
        """Positions of nodes with an attribute of one of these types."""
        hold = {row for row, one in self.kinds.items() if any(kind in kinds for _, kind, _ in one.attributes)}
        return [i for i, s in enumerate(self.signatures) if s in hold] if hold else []


@dataclass(frozen=True)
class Tensors:
    """All dense tensors of a model, initializers and those in attributes, in columns.

    Attributes:
        protos: The messages.
        owners: Scope and, for a tensor in an attribute, position of the node.
        types: Element types.
        dims: Shapes.
        sizes: Bytes of ``raw_data`` wherever they lie; `NO_RAW` where there are none.
    """

    protos: list[TensorProto]
    owners: list[tuple[Scope, int | None]]
    types: list[int]
    dims: list[list[int]]
    sizes: list[int]

    def place(self, index: int) -> Place:
        """The place to name."""
        scope, node = self.owners[index]
        return scope.place(node, self.name(index) if node is None else "")

    def name(self, index: int) -> str:
        """The tensor's name, as text."""
        return _text(self.protos[index].name)

    def of(self, types: Iterable[int]) -> list[int]:
        """Positions of the tensors of some element types."""
        wanted = set(types) & set(self.types)
        return [i for i, kind in enumerate(self.types) if kind in wanted] if wanted else []


class Wire:
    """The message of a model.

    Attributes:
        model: The message; some payloads may be marks, so ask `tensors` and `data`.
        path: The file it came from, if any.
        folder: Where its external data are, if anybody knows.
    """

    def __init__(
        self,
        model: ModelProto,
        path: Path | None = None,
        incoming: Incoming | None = None,
        folder: Path | None = None,
    ) -> None:
        self.model, self.path = model, path
        self.folder = path.parent if path is not None else folder
        self._tag = incoming.tag if incoming is not None else b""
        self._payloads = incoming.payloads if incoming is not None else []

    @cached_property
    def scopes(self) -> list[Scope]:
        """Main graph, its bodies at every level, then functions and their bodies."""
        graph, imports = self.model.graph, _imports(self.model.opset_import)
        found = _with_bodies(_graph_scope("", graph, None, -1, imports))
        for function in self.model.functions:
            path, own = f"{_text(function.domain)}::{_text(function.name)}", _imports(function.opset_import)
            found += _with_bodies(Scope(path, function, None, -1, own, function.input[:], function.output[:]))
        return found

    @cached_property
    def tensors(self) -> Tensors:
        """Every dense tensor."""
        protos: list[TensorProto] = []
        owners: list[tuple[Scope, int | None]] = []
        for scope in self.scopes:
            protos += scope.initializers
            owners += [(scope, None)] * len(scope.initializers)
            for index in scope.holders(_HOLD_TENSORS):
                for attribute in scope.protos[index].attribute:
                    tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
                    protos += tensors
                    owners += [(scope, index)] * len(tensors)
        types, dims = [t.data_type for t in protos], [t.dims[:] for t in protos]
        return Tensors(protos, owners, types, dims, [self._size(t) for t in protos])

    @cached_property
    def wanted(self) -> dict[Scope, set[str]]:
        """Names that nodes of a scope, or of scopes inside it, read, and what those inside it give out."""
        wanted = {scope: scope.read for scope in self.scopes}
        for scope in reversed(self.scopes):  # inner ones first
            if scope.outer is not None:
                wanted[scope.outer] = wanted[scope.outer].union(wanted[scope], scope.outputs)
        return wanted

    def _size(self, tensor: TensorProto) -> int:
        if not tensor.HasField("raw_data"):
            return NO_RAW
        raw = tensor.raw_data
        payload = self._payload(raw) if len(raw) == MARK_BYTES else None
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


def _absent(names: list[str]) -> tuple[int, ...]:
    return tuple([i for i, name in enumerate(names) if not name])


def segment(name: str, outputs: list[str], op_type: str) -> str:
    """What stands for a node in the path of its bodies: its name, or else its first output."""
    return name or next(iter(outputs), "") or op_type


def _text(name: str) -> str:
    """A name as text: protobuf hands bytes out where it is none."""
    return name if isinstance(name, str) else bytes(name).decode("utf-8", "backslashreplace")


def _texts(names: list[str]) -> list[str]:
    try:
        "".join(names)
    except TypeError:
        return [_text(name) for name in names]
    return names


def _rows(rows: list[list[str]]) -> list[list[str]]:
    try:
        "".join(chain.from_iterable(rows))
    except TypeError:
        return [_texts(row) for row in rows]
    return rows


def _imports(entries: object) -> dict[str, int]:
    named = ((_text(e.domain), e.version) for e in entries)  # type: ignore[attr-defined]
    return {("" if domain == "ai.onnx" else domain): version for domain, version in named}


def _graph_scope(path: str, graph: GraphProto, outer: Scope | None, holder: int, imports: dict[str, int]) -> Scope:
    return Scope(path, graph, outer, holder, imports, [v.name for v in graph.input], [v.name for v in graph.output])


def _with_bodies(root: Scope) -> list[Scope]:
    """A scope and those inside it at every level, outer ones first."""
    found: list[Scope] = []
    pending = [root]
    while pending:
        scope = pending.pop()
        found.append(scope)
        pending += reversed(list(_bodies(scope)))
    return found


def _bodies(scope: Scope) -> Iterator[Scope]:
    """The scopes in the attributes of a scope's nodes."""
    for index in scope.holders(_HOLD_GRAPHS):
        own = segment(scope.names[index], scope.makes[index], scope.ops[index][1])
        for attribute in scope.protos[index].attribute:
            path = f"{scope.path}/{own}/{_text(attribute.name)}".lstrip("/")
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield _graph_scope(path, graph, scope, index, scope.imports)
