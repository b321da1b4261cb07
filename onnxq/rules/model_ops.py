"""OQ015 and OQ016: nodes against the schemas of their operators, at the version the model imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import AttributeProto

from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import Attribute, Scope, Wire
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
    for scope, opset, op_types in _standard(wire):
        unknown = {op_type for op_type in op_types if _schema(op_type, opset) is None}
        for index, (domain, op_type) in enumerate(scope.ops if unknown else ()):
            if not domain and op_type in unknown:
                newest = _schema(op_type, onnx.defs.onnx_opset_version())
                why = f"; it is there from version {_first(op_type)} on" if newest else ""
                text = f"{op_type} is no operator of ai.onnx {opset}{why}"
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
    for scope, opset, op_types in _standard(wire):
        schemas = {op_type: _signature(op_type, opset) for op_type in op_types}
        rows = zip(scope.ops, scope.reads, scope.makes, scope.attributes, strict=True)
        for index, ((domain, op_type), reads, makes, attributes) in enumerate(rows):
            known = schemas.get(op_type) if not domain else None
            if known is not None and not known.fits(len(reads), len(makes), attributes):
                for text in known.misfits(op_type, len(reads), len(makes), attributes):
                    yield Finding(scope.place(index), text, numbers={"opset": opset})


def _standard(wire: Wire) -> Iterator[tuple[Scope, int, set[str]]]:
    """Each scope with its opset and its standard operators that are no local functions, where onnx knows the opset."""
    newest = onnx.defs.onnx_opset_version()
    functions = {f.name for f in wire.model.functions if f.domain in ("", "ai.onnx")}
    for scope in wire.scopes:
        opset = scope.imports.get("", 0)
        if 0 < opset <= newest:
            yield scope, opset, {op_type for domain, op_type in set(scope.ops) if not domain} - functions


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@cache
def _first(op_type: str) -> int:
    newest = onnx.defs.onnx_opset_version()
    return next((v for v in range(1, newest + 1) if _schema(op_type, v) is not None), 0)


@dataclass(frozen=True)
class _Signature:
    """What a schema says of a node's inputs, outputs and attributes."""

    since: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    types: dict[str, int]
    required: frozenset[str]

    def fits(self, inputs: int, outputs: int, attributes: Sequence[Attribute]) -> bool:
        """Whether a node is as the schema says."""
        return (
            self.inputs[0] <= inputs <= self.inputs[1]
            and self.outputs[0] <= outputs <= self.outputs[1]
            and all(self.types.get(a.name) == a.type for a in attributes)
            and (not self.required or self.required <= {a.name for a in attributes})
        )

    def misfits(self, op_type: str, inputs: int, outputs: int, attributes: Sequence[Attribute]) -> Iterator[str]:
        """What is not as the schema says, in words."""
        if not self.inputs[0] <= inputs <= self.inputs[1]:
            yield f"{op_type} has {plural(inputs, 'input')}, its operator takes {_span(*self.inputs)}"
        if not self.outputs[0] <= outputs <= self.outputs[1]:
            yield f"{op_type} has {plural(outputs, 'output')}, its operator has {_span(*self.outputs)}"
        for name in sorted(self.required - {a.name for a in attributes}):
            yield f"{op_type} lacks its attribute '{name}'"
        for name, kind, ref in attributes:
            if name not in self.types:
                if not (op_type in _PAIRS and name in _LATER):
                    yield f"{op_type} has no attribute '{name}' at version {self.since}"
            elif kind and kind != self.types[name] and not ref:
                kinds = [_kind(number) for number in (kind, self.types[name])]
                yield f"its attribute '{name}' is of type {kinds[0]}, not {kinds[1]}"


@cache
def _signature(op_type: str, opset: int) -> _Signature | None:
    schema = _schema(op_type, opset)
    if schema is None:
        return None
    types = {name: int(a.type.value) for name, a in schema.attributes.items()}  # type: ignore[attr-defined]
    required = frozenset(name for name, a in schema.attributes.items() if a.required)
    inputs, outputs = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    return _Signature(schema.since_version, inputs, outputs, types, required)


def _kind(number: int) -> str:
    return next((name for name, known in AttributeProto.AttributeType.items() if known == number), str(number))


# Attributes of Q/DQ that came with later opsets are OQ306.
_PAIRS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_LATER = frozenset({"axis", "block_size", "saturate", "output_dtype", "precision"})


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}" if high < 1000 else f"at least {low}"
