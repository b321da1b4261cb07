"""OQ015 and OQ016: nodes against the schemas of their operators, at the version the model imports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import onnx
from onnx import AttributeProto

from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import Scope, Wire, WireNode
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
    functions = {(f.domain, f.name) for f in wire.model.functions}
    for scope, node in _standard(wire):
        if (node.domain, node.op_type) in functions:
            continue
        version = scope.imports[node.domain]
        if _schema(node.op_type, node.domain, version) is None:
            newest = _schema(node.op_type, node.domain, onnx.defs.onnx_opset_version())
            why = f"; it is there from version {_first(node.op_type, node.domain)} on" if newest else ""
            text = f"{node.op_type} is no operator of {node.domain or 'ai.onnx'} {version}{why}"
            yield Finding(scope.place(node), text, numbers={"opset": version})


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
    functions = {(f.domain, f.name) for f in wire.model.functions}
    for scope, node in _standard(wire):
        schema = _schema(node.op_type, node.domain, scope.imports[node.domain])
        if schema is None or (node.domain, node.op_type) in functions:
            continue
        for text in _misfits(node, schema):
            yield Finding(scope.place(node), text, numbers={"opset": scope.imports[node.domain]})


def _standard(wire: Wire) -> Iterator[tuple[Scope, WireNode]]:
    """Nodes of domains whose schemas onnx has, where the domain is imported at a version it knows."""
    newest = onnx.defs.onnx_opset_version()
    for scope in wire.scopes:
        for node in scope.nodes:
            if node.domain == "" and 0 < scope.imports.get("", 0) <= newest:
                yield scope, node


@cache
def _schema(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@cache
def _first(op_type: str, domain: str) -> int:
    newest = onnx.defs.onnx_opset_version()
    return next((v for v in range(1, newest + 1) if _schema(op_type, domain, v) is not None), 0)


@cache
def _signature(schema_of: tuple[str, str, int]) -> tuple[int, int, int, int, dict[str, int], tuple[str, ...]]:
    schema = _schema(*schema_of)
    assert schema is not None
    attributes = {name: int(a.type.value) for name, a in schema.attributes.items()}  # type: ignore[attr-defined]
    required = tuple(name for name, a in schema.attributes.items() if a.required)
    return schema.min_input, schema.max_input, schema.min_output, schema.max_output, attributes, required


def _misfits(node: WireNode, schema: onnx.defs.OpSchema) -> Iterator[str]:
    key = (node.op_type, node.domain, schema.since_version)
    min_in, max_in, min_out, max_out, attributes, required = _signature(key)
    if not min_in <= len(node.inputs) <= max_in:
        yield f"{node.op_type} has {plural(len(node.inputs), 'input')}, its operator takes {_span(min_in, max_in)}"
    if not min_out <= len(node.outputs) <= max_out:
        yield f"{node.op_type} has {plural(len(node.outputs), 'output')}, its operator has {_span(min_out, max_out)}"
    if not node.proto.attribute and not required:
        return
    given = {a.name: a for a in node.proto.attribute}
    for name in required:
        if name not in given:
            yield f"{node.op_type} lacks its attribute '{name}'"
    for name, attribute in given.items():
        if name not in attributes:
            if name not in _OURS:
                yield f"{node.op_type} has no attribute '{name}' at version {schema.since_version}"
        elif attribute.type and attribute.type != attributes[name] and not attribute.ref_attr_name:
            kinds = [AttributeProto.AttributeType.Name(t) for t in (attribute.type, attributes[name])]
            yield f"its attribute '{name}' is of type {kinds[0]}, not {kinds[1]}"


# Attributes of Q/DQ that came with later opsets are OQ306.
_OURS = frozenset({"axis", "block_size", "saturate", "output_dtype", "precision"})


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}" if high < 1000 else f"at least {low}"
