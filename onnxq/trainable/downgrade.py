"""Opset downgrade on the IR: nodes that mean the same at an older opset stay as they are, anything else is refused.

Whether a node means the same follows from the schemas of ONNX at both opsets, from `ADAPTERS` (operators that changed
their meaning in between), and for what neither says, values of attributes that came later, from `_LATER`. Sources:
operator texts and schemas of ONNX.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx import defs, helper

from onnxq.edit import nested_graphs
from onnxq.opsets.adapters import ADAPTERS
from onnxq.opsets.upgrade import Obstacle, schema
from onnxq.trainable import record

_LATER = {
    ("Pad", "mode", "wrap"): 19,
    ("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"): 19,
    **{(op, "reduction", mode): 18 for op in ("ScatterElements", "ScatterND") for mode in ("max", "min")},
}
"""Op type, attribute, value -> the opset that brought the value."""


def downgrade(model: ir.Model, to: int) -> int:
    """Bring every standard node, also in bodies and local functions, to opset ``to``; all or nothing.

    Attributes that the older operator does not have go where they say the default; their nodes remember them.

    Returns:
        How many nodes lost attributes.

    Raises:
        Obstacle: A node that opset ``to`` does not have, or not with this meaning.
    """
    scopes = [(model.graph, model.opset_imports), *((f.graph, f.opset_imports) for f in model.functions.values())]
    dropped: list[tuple[ir.Node, list[str]]] = []
    for root, imports in scopes:
        start = imports.get("", imports.get("ai.onnx", to))
        for graph in nested_graphs(root):
            for node in graph:
                if node.domain == "" and node.op_identifier() not in model.functions:
                    names = _fit(node, node.version or start, to)
                    dropped += [(node, names)] if names else []
    for node, names in dropped:
        record.write(node.metadata_props, dropped={name: node.attributes[name].value for name in names})
        for name in names:
            del node.attributes[name]
    for root, imports in scopes:
        imports.pop("ai.onnx", None)
        imports[""] = min(to, imports.get("", to))
        for graph in nested_graphs(root):
            for node in graph:
                if node.version is not None and node.domain == "":
                    node.version = None
    return len(dropped)


def restore(model: ir.Model) -> int:
    """Put back the attributes that `downgrade` dropped; returns at how many nodes."""
    count = 0
    for node in model.graph.all_nodes():
        for name, value in record.read(node.metadata_props).get("dropped", {}).items():
            node.attributes[name] = ir.convenience.convert_attribute(name, value)
            count += 1
    return count


def _fit(node: ir.Node, start: int, to: int) -> list[str]:
    """The attributes that have to go so that the node means the same at opset ``to``.

    Raises:
        Obstacle: None would help.
    """
    if start <= to:
        return []
    new, old = schema(node.op_type, start), schema(node.op_type, to)
    if new is None:
        raise Obstacle(node, to, f"it is no operator of opset {start}")
    if old is None:
        raise Obstacle(node, to, f"it came with opset {new.since_version if new else start}")
    if new.since_version == old.since_version:
        return []
    for version in range(old.since_version + 1, new.since_version + 1):
        if (node.op_type, version) in ADAPTERS:
            raise Obstacle(node, to, f"it changed its meaning at opset {version}")
    _check_count(node, "input", list(node.inputs), old.max_input, to)
    _check_count(node, "output", [v if v.name else None for v in node.outputs], old.max_output, to)
    for kind, values, formals in (("input", node.inputs, old.inputs), ("output", node.outputs, old.outputs)):
        _check_types(node, kind, values, formals, to)
    return _attributes(node, new, old, to)


def _check_count(node: ir.Node, kind: str, values: list[ir.Value | None], most: int, to: int) -> None:
    given = max((i + 1 for i, v in enumerate(values) if v is not None), default=0)
    if given > most:
        raise Obstacle(node, to, f"its {kind} {given} came later")


def _check_types(node: ir.Node, kind: str, values: Any, formals: Any, to: int) -> None:
    for index, value in enumerate(values):
        if value is None or not isinstance(value.type, ir.TensorType) or not formals:
            continue
        text = f"tensor({value.type.dtype.name.lower()})"
        allowed = formals[min(index, len(formals) - 1)].types
        if value.type.dtype != ir.DataType.UNDEFINED and text not in allowed:
            raise Obstacle(node, to, f"its {kind} '{value.name}' is {value.type.dtype.name.lower()}")


def _attributes(node: ir.Node, new: defs.OpSchema, old: defs.OpSchema, to: int) -> list[str]:
    """Attributes that the older operator does not have, all of them at their defaults."""
    drop = []
    for name, attr in node.attributes.items():
        value = None if attr.is_ref() else attr.value
        if _LATER.get((node.op_type, name, value if isinstance(value, str) else ""), 0) > to:
            raise Obstacle(node, to, f"{name}='{value}' came later")
        if name in old.attributes:
            continue
        default = new.attributes[name].default_value if name in new.attributes else None
        known = helper.get_attribute_value(default) if default is not None and default.name else None
        if known is None or value != (known.decode() if isinstance(known, bytes) else known):
            raise Obstacle(node, to, f"{name}={value} came later")
        drop.append(name)
    for name, attribute in old.attributes.items():
        if name in node.attributes:
            continue
        if (
            name not in new.attributes
            or attribute.required
            or new.attributes[name].default_value != attribute.default_value
        ):
            raise Obstacle(node, to, f"the default of {name} was another one")
    return drop
