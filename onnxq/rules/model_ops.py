"""OQ015 and OQ016: nodes against the schemas of their operators, at the version the model imports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import AttributeProto
from onnx.helper import OP_SET_ID_VERSION_MAP

from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import Scope, Signature, Wire
from onnxq.wording import plural


@wire_rule("OQ015", "unknown-op", "error")
def unknown_op(wire: Wire) -> Iterator[Finding]:
    """An operator that its opset does not have.

    What it does:
        Looks up each operator of the domains that onnx defines at the imported version. Local functions count.

    Why is this bad:
        The model does not load: the operator is younger than the opset, was taken out of it, or is misspelt.

    Use instead:
        An opset that has the operator, or the domain it belongs to.
    """
    for scope, known in _standard(wire):
        unknown = {(k.domain, k.op_type) for k in known if _schema(k.op_type, known[k], k.domain) is None}
        for index, (domain, op_type) in enumerate(scope.ops if unknown else ()):
            if (domain, op_type) in unknown:
                opset = scope.imports[domain]
                first = _first(op_type, domain)
                why = "" if not first else f"; it is there from version {first} on"
                if 0 < first < opset:
                    why = "; it was taken out of it"
                text = f"{op_type} is no operator of {domain or 'ai.onnx'} {opset}{why}"
                yield Finding(scope.place(index), text, numbers={"opset": opset})


@wire_rule("OQ016", "wrong-signature", "error")
def wrong_signature(wire: Wire) -> Iterator[Finding]:
    """A node has inputs, outputs or attributes that its operator does not have, or lacks some that it needs.

    What it does:
        Compares each node with the schema of its operator at the imported version.

    Why is this bad:
        The model does not load, or the attribute is ignored.

    Example:
        `DequantizeLinear(block_size=32)` at opset 19, which knows no `block_size` (that case is OQ306).

    Use instead:
        The signature in the operator's documentation at that version.
    """
    for scope, known in _standard(wire):
        wrong = {}
        for row, kind in scope.kinds.items():
            signature = _signature(kind.op_type, known[kind], kind.domain) if kind in known else None
            texts = signature.misfits(kind) if signature is not None else []
            if texts:
                wrong[row] = texts
        for index, row in enumerate(scope.signatures if wrong else ()):
            for text in wrong.get(row, ()):
                yield Finding(scope.place(index), text, numbers={"opset": scope.imports[scope.ops[index][0]]})


def _standard(wire: Wire) -> Iterator[tuple[Scope, dict[Signature, int]]]:
    """Each scope with the kinds of its nodes whose operators onnx defines, and the version that is imported.

    Local functions are none of them, and versions that onnx does not know say nothing.
    """
    functions = {("" if f.domain == "ai.onnx" else f.domain, f.name) for f in wire.model.functions}
    for scope in wire.scopes:
        known = {}
        for kind in scope.kinds.values():
            opset = scope.imports.get(kind.domain, 0)
            if 0 < opset <= _newest(kind.domain) and (kind.domain, kind.op_type) not in functions:
                known[kind] = opset
        yield scope, known


@cache
def _newest(domain: str) -> int:
    """The newest version of a domain that onnx defines; 0 for domains of others."""
    return max((v for d, v in OP_SET_ID_VERSION_MAP if d == (domain or "ai.onnx")), default=0)


@cache
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@cache
def _first(op_type: str, domain: str) -> int:
    """The first version that has an operator; 0 where none has."""
    return next((v for v in range(1, _newest(domain) + 1) if _schema(op_type, v, domain) is not None), 0)


@dataclass(frozen=True)
class _Signature:
    """What a schema says of a node's inputs, outputs and attributes."""

    since: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: dict[int, str]
    types: dict[str, int]
    required: frozenset[str]

    def misfits(self, node: Signature) -> list[str]:
        """What is not as the schema says, in words."""
        return list(self._misfits(node))

    def _misfits(self, node: Signature) -> Iterator[str]:
        if not self.inputs[0] <= node.inputs <= self.inputs[1]:
            yield f"{node.op_type} has {plural(node.inputs, 'input')}, its operator takes {_span(*self.inputs)}"
        for index in node.absent:
            if index in self.needed:
                yield f"{node.op_type} lacks its input '{self.needed[index]}'"
        if not self.outputs[0] <= node.outputs <= self.outputs[1]:
            yield f"{node.op_type} has {plural(node.outputs, 'output')}, its operator has {_span(*self.outputs)}"
        for name in sorted(self.required - {name for name, *_ in node.attributes}):
            yield f"{node.op_type} lacks its attribute '{name}'"
        for name, kind, ref in node.attributes:
            if name not in self.types:
                if not (node.op_type in _PAIRS and name in _LATER):
                    yield f"{node.op_type} has no attribute '{name}' at version {self.since}"
            elif kind and kind != self.types[name] and not ref:
                kinds = [_kind(number) for number in (kind, self.types[name])]
                yield f"its attribute '{name}' is of type {kinds[0]}, not {kinds[1]}"


@cache
def _signature(op_type: str, opset: int, domain: str) -> _Signature | None:
    schema = _schema(op_type, opset, domain)
    if schema is None:
        return None
    types = {name: int(a.type.value) for name, a in schema.attributes.items()}  # type: ignore[attr-defined]
    required = frozenset(name for name, a in schema.attributes.items() if a.required)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    needed = {i: formal.name for i, formal in enumerate(schema.inputs) if formal.option == single}
    inputs, outputs = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    return _Signature(schema.since_version, inputs, outputs, needed, types, required)


def _kind(number: int) -> str:
    return next((name for name, known in AttributeProto.AttributeType.items() if known == number), str(number))


# Attributes of Q/DQ that came with later opsets are OQ306.
_PAIRS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_LATER = frozenset({"axis", "block_size", "saturate", "output_dtype", "precision"})


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}" if high < 1000 else f"at least {low}"
