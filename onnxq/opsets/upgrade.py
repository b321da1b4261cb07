"""Opset upgrade on the IR: which nodes mean something else at a newer opset, and what to put in their place.

onnx's own converter works on a whole message: it copies the weights, drops metadata and local functions, and leaves
If and Loop bodies as they are. Here a node is looked at only if its operator changed between the two opsets. If the
schemas say that every old node is a valid new one of the same meaning, it stays as it is; else `ADAPTERS` has a
replacement.
"""

from __future__ import annotations

from functools import lru_cache

import onnx
import onnx_ir as ir
from onnx import defs

from onnxq.edit import Namer, copy_metadata, detach, nested_graphs, plain_initializers
from onnxq.opsets.adapters import ADAPTERS
from onnxq.opsets.rewrite import NeedsShapes, Refused, Rewrite

_INT32 = range(1, 1 << 31)

OLDEST = 6
"""The oldest opset that can be upgraded."""


class Obstacle(Exception):
    """One node that cannot be brought to opset ``version``, and why."""

    def __init__(self, node: ir.Node, version: int, why: str) -> None:
        super().__init__(why)
        self.node, self.version, self.why = node, version, why


def schema(op_type: str, version: int) -> defs.OpSchema | None:
    """The schema of a standard operator at an opset, None if there is none."""
    if version not in _INT32:
        return None
    try:
        return defs.get_schema(op_type, version, "")
    except defs.SchemaError:
        return None


def newest() -> int:
    """The newest standard opset of the installed onnx."""
    return int(defs.onnx_opset_version())


def min_ir_version(opset: int) -> int:
    """The IR version that an opset of the standard domain needs."""
    return int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], ignore_unknown=True))


@lru_cache(maxsize=4096)
def breaks(op_type: str, start: int, to: int) -> tuple[int, ...]:
    """The opsets in ``start < version <= to`` at which old nodes of this op need a look."""
    old, last = schema(op_type, start), schema(op_type, to)
    if old is None or (last is not None and last.since_version == old.since_version):
        return ()
    found = []
    for version in range(start + 1, to + 1):
        new = schema(op_type, version)
        if new is None or new.since_version != version:
            continue
        if (op_type, version) in ADAPTERS or not same_meaning(old, new):
            found.append(version)
        old = new
    return tuple(found)


def same_meaning(old: defs.OpSchema, new: defs.OpSchema) -> bool:
    """Whether every node that fits the old schema fits the new one and, as far as schemas tell, means the same."""
    optional = defs.OpSchema.FormalParameterOption.Optional
    if new.deprecated or len(new.inputs) < len(old.inputs) or len(new.outputs) < len(old.outputs):
        return False
    if any(extra.option != optional for extra in new.inputs[len(old.inputs) :]):
        return False
    for name, attribute in old.attributes.items():
        later = new.attributes.get(name)
        if later is None or later.default_value != attribute.default_value or later.required > attribute.required:
            return False
    return not any(a.required and name not in old.attributes for name, a in new.attributes.items())


def upgrade(model: ir.Model, to: int, pass_name: str, *, inferred: bool) -> int:
    """Bring every standard node, also in bodies and local functions, to opset ``to``; all or nothing.

    The opset imports of model and functions and the IR version follow. A node with a `version` of its own starts there.

    Args:
        model: Changed in place, unless an error is raised.
        to: The opset to reach, not below any opset in use.
        pass_name: For the metadata of new nodes.
        inferred: Whether types and shapes are as good as they get.

    Returns:
        How many nodes were replaced.

    Raises:
        Obstacle: A node cannot be upgraded.
        NeedsShapes: Types or shapes are missing, and ``inferred`` is False.
    """
    scopes = [(model.graph, model.opset_imports), *((f.graph, f.opset_imports) for f in model.functions.values())]
    done: list[tuple[ir.Node, Rewrite]] = []
    made: list[ir.Node] = []
    try:
        for root, imports in scopes:
            start = imports.get("", imports.get("ai.onnx", to))
            for graph in nested_graphs(root):
                for node in graph:
                    rewrite = _convert(node, node.version or start, to, made, inferred) if node.domain == "" else None
                    if rewrite is not None:
                        done.append((node, rewrite))
    except (Obstacle, NeedsShapes):
        for node in made:
            detach(node)
        raise
    plain_initializers(model)
    if done:
        namer = Namer(model)
        for node, rewrite in done:
            _put_in_place(node, rewrite, namer, pass_name)
    for root, imports in scopes:
        imports.pop("ai.onnx", None)
        imports[""] = to
        for graph in nested_graphs(root):
            for node in graph:
                if node.version is not None and node.domain == "":
                    node.version = None
    model.ir_version = max(model.ir_version, min_ir_version(to))
    return len(done)


def _convert(node: ir.Node, start: int, to: int, made: list[ir.Node], inferred: bool) -> Rewrite | None:
    for version in breaks(node.op_type, start, to):
        rewrite = Rewrite(node, made, inferred=inferred)
        try:
            if start < OLDEST:
                raise Refused(f"opset {start} is older than {OLDEST}")
            if any(attr.is_ref() for attr in node.attributes.values()):
                raise Refused("it takes attributes from the call of a local function; inline functions first")
            if (node.op_type, version) not in ADAPTERS:
                raise Refused(f"{node.op_type} has no equal since opset {version}")
            ADAPTERS[node.op_type, version](rewrite)
        except Refused as error:
            raise Obstacle(node, version, str(error)) from None
        if rewrite.nodes:
            _convert_onwards(rewrite, version, to, made, inferred)
            return rewrite
    return None


def _convert_onwards(rewrite: Rewrite, version: int, to: int, made: list[ir.Node], inferred: bool) -> None:
    """The replacement is right at ``version``; bring each of its nodes on to ``to``."""
    nodes: list[ir.Node] = []
    for node in rewrite.nodes:
        try:
            inner = _convert(node, version, to, made, inferred)
        except Obstacle as obstacle:
            raise Obstacle(rewrite.node, obstacle.version, obstacle.why) from None
        if inner is None:
            nodes.append(node)
            continue
        for old, new in zip(node.outputs, inner.outputs, strict=True):
            new.name = old.name
            old.replace_all_uses_with(new)
            rewrite.outputs = [new if v is old else v for v in rewrite.outputs]
        detach(node)
        nodes.extend(inner.nodes)
    rewrite.nodes = nodes


def _put_in_place(node: ir.Node, rewrite: Rewrite, namer: Namer, pass_name: str) -> None:
    """Insert the replacement; it takes over the node's name, outputs, types, shapes and metadata."""
    graph = node.graph
    assert graph is not None
    base = node.name or node.op_type
    heir = next((n for n in rewrite.nodes if n.op_type == node.op_type), rewrite.outputs[0].producer())
    for new in rewrite.nodes:
        what = new.outputs[0].name if new.op_type == "Constant" else new.op_type
        new.name = node.name if new is heir else namer(f"{base}_{what}")
        for value in new.outputs:
            if value not in rewrite.outputs:
                value.name = namer(f"{base}_{what}_output")
        copy_metadata(new, node, pass_name)
    graph.insert_before(node, rewrite.nodes)
    for old, value in zip(node.outputs, rewrite.outputs, strict=True):
        value.type, value.shape, value.doc_string = old.type or value.type, old.shape or value.shape, old.doc_string
        value.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        value.name = old.name
    graph.remove(node, safe=True)
