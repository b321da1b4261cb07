"""Fewer nodes for the same values: what differentiation node by node leaves behind.

The seed axis onnx-ad appends has one element, so every Transpose, Expand, Squeeze and Unsqueeze that only moves axes of
one element is a Reshape, and a chain of those is one Reshape or nothing.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from onnxq.edit import Namer, add_initializer, remove_dead
from onnxq.look import attr_ints, onnx_op

_VIEWS = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand")


def merged(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which nodes of one op, inputs and attributes are one node."""
    graph = ir.from_proto(model)
    common.CommonSubexpressionEliminationPass()(graph)
    return ir.to_proto(graph)


def slim(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without nodes that nothing reads, duplicates, and chains of nodes that only change a shape."""
    work = ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))
    _flatten_views(work)
    common.CommonSubexpressionEliminationPass()(work)
    remove_dead(work)
    for value in (output for node in work.graph for output in node.outputs):
        if value not in work.graph.outputs:
            value.shape = value.type = None  # not needed any more: onnxruntime infers them
    return ir.to_proto(work)


def _flatten_views(model: ir.Model) -> None:
    """Every node that only changes the shape becomes a Reshape of the first value of its chain, or goes."""
    graph, namer = model.graph, Namer(model)
    roots: dict[ir.Value, ir.Value] = {}
    targets: dict[tuple[int, ...], ir.Value] = {}
    for node in tuple(graph):
        out = node.outputs[0]
        shape = _kept(node)
        if shape is None or out.is_graph_output():
            continue
        source = node.inputs[0]
        assert source is not None
        new = root = roots.get(source, source)
        if _static(root) != shape:
            if shape not in targets:
                targets[shape] = add_initializer(graph, "shape", np.array(shape, np.int64), namer)
            view = ir.node("Reshape", [root, targets[shape]], name=namer("view"))
            graph.insert_before(node, view)
            new = view.outputs[0]
            new.name, new.type, new.shape = namer("view.out"), out.type, out.shape
        roots[new] = root
        out.replace_all_uses_with(new)
        graph.remove(node, safe=True)


def _kept(node: ir.Node) -> tuple[int, ...] | None:
    """The shape of the output if it holds the elements of the first input in their order, else None."""
    if not onnx_op(node, *_VIEWS):
        return None
    before, after = _static(node.inputs[0]), _static(node.outputs[0])
    if before is None or after is None or prod(before) != prod(after) or not prod(after):
        return None
    if node.op_type != "Transpose":
        return after
    perm = attr_ints(node, "perm") or list(range(len(before)))[::-1]
    moved = [axis for axis in perm if before[axis] != 1]
    return after if moved == sorted(moved) else None


def _static(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(int(d) for d in value.shape.numpy())
