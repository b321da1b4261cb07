"""drop-identity: nodes that hand their input on unchanged go away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from onnxq.edit import (
    Namer,
    all_graphs,
    attr_int,
    attr_ints,
    constant,
    dims_of,
    may_become_output,
    remove_dead,
    replace_uses,
)
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class DropIdentity(Pass):
    """Identity | Dropout (inference) | Cast, Transpose, Reshape, … that change nothing -> nothing.

    Only what provably changes neither values nor type nor shape goes; where that needs shapes, run `infer-shapes`
    before. Graph outputs keep their names: the node that feeds the dropped one makes the output instead. An Identity
    between a graph input (or an initializer, or another output) and a graph output stays: nothing else can carry the
    name.
    """

    name: ClassVar[str] = "drop-identity"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Drop in all scopes; one note says how many of which op."""
        namer = Namer(model)
        dropped: dict[str, Any] = {}
        opset = model.opset_imports.get("", 1)
        for graph in all_graphs(model):
            for node in graph:
                if not _changes_nothing(node, opset, ctx):
                    continue
                source, output = node.inputs[0], node.outputs[0]
                assert source is not None
                if output.is_graph_output() and not may_become_output(source, graph):
                    continue
                source.type, source.shape = source.type or output.type, source.shape or output.shape
                replace_uses(output, source, namer)
                graph.remove(node, safe=True)
                dropped[node.op_type] = dropped.get(node.op_type, 0) + 1
        if not dropped:
            return False
        remove_dead(model)
        listed = ", ".join(f"{count} {op}" for op, count in sorted(dropped.items()))
        ctx.note("identities-dropped", None, f"nodes that changed nothing are gone: {listed}", **dropped)
        return True


def _changes_nothing(node: ir.Node, opset: int, ctx: Context) -> bool:
    check = _CHECKS.get(node.op_type) if node.domain == "" else None
    if check is None or not node.inputs or node.inputs[0] is None:
        return False
    if any(attr.is_ref() for attr in node.attributes.values()) or not check(node, opset):
        return False
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        ctx.note("identity-kept", node, f"changes nothing, but its output '{node.outputs[1].name}' is used")
        return False
    return True


def _dropout(node: ir.Node, opset: int) -> bool:
    """Inference: since opset 12 an input decides, before 7 an attribute (default: training), in between always."""
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        training = constant(node.inputs[2])
        return training is not None and not training.any()
    return opset >= 7 or attr_int(node, "is_test", 0) == 1


def _cast(node: ir.Node, opset: int) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype is not None and attr_int(node, "to", 0) == source.dtype.value


def _transpose(node: ir.Node, opset: int) -> bool:
    perm = attr_ints(node, "perm")
    dims = dims_of(node.inputs[0])
    if perm is None:
        return dims is not None and len(dims) < 2
    return perm == list(range(len(perm)))


def _reshape(node: ir.Node, opset: int) -> bool:
    dims, target = dims_of(node.inputs[0]), constant(node.inputs[1])
    if dims is None or target is None or len(target) != len(dims):
        return False
    copies = 0 if attr_int(node, "allowzero", 0) else 1
    same = [int(t) == d or (t == 0 and copies) for t, d in zip(target, dims, strict=True)]
    return same.count(False) == 0 or (same.count(False) == 1 and int(target[same.index(False)]) == -1 and 0 not in dims)


def _flatten(node: ir.Node, opset: int) -> bool:
    dims = dims_of(node.inputs[0])
    return dims is not None and len(dims) == 2 and attr_int(node, "axis", 1) in (1, -1)


def _expand(node: ir.Node, opset: int) -> bool:
    dims, target = dims_of(node.inputs[0]), constant(node.inputs[1])
    if dims is None or target is None or len(target) > len(dims):
        return False
    return all(t in (1, d) for t, d in zip(target.tolist()[::-1], dims[::-1], strict=False))


def _pad(node: ir.Node, opset: int) -> bool:
    pads = attr_ints(node, "pads") if len(node.inputs) < 2 else constant(node.inputs[1])
    return pads is not None and not any(pads)


def _single(node: ir.Node, opset: int) -> bool:
    return len(node.inputs) == 1


_CHECKS: dict[str, Callable[[ir.Node, int], bool]] = {
    "Identity": _single,
    "Dropout": _dropout,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Pad": _pad,
    "Concat": _single,
    "Sum": _single,
    "Mean": _single,
    "Max": _single,
    "Min": _single,
}
