"""A zero point for each pair alone, and back.

onnxruntime's training build replaces the zero point of a pair by one of its own when it fuses the pair, and does not
find that of the next pair that shares it: "Expected: zero point initializer with name ... to be present in the graph".
Scales may be shared. (Measured with onnxruntime-training-cpu 1.19.2.)
"""

from __future__ import annotations

import onnx_ir as ir

from onnxq.edit import Namer, add_initializer
from onnxq.look import constant_tensor, graph_of
from onnxq.pairs import parameter
from onnxq.states import QUANTIZE, is_q
from onnxq.trainable import record
from onnxq.trainable.unique_pairs import dequantizers


def separate(graph: ir.Graph, namer: Namer) -> int:
    """Copy zero points until no two pairs share one; the QuantizeLinear remembers its old one. Returns how many."""
    left: dict[ir.Value, int] = {}
    count = 0
    for q, pair, zero in _pairs(graph):
        tensor = constant_tensor(zero)
        if tensor is None or zero.name is None:
            continue
        mine = [node for node in pair if parameter(node, 2) is zero]
        left.setdefault(zero, len(zero.uses()))
        if len(mine) == left[zero]:
            continue
        left[zero] -= len(mine)
        copy = add_initializer(graph_of(zero), zero.name, tensor.numpy(), namer)
        for node in mine:
            node.replace_input_with(2, copy)
        record.write(q.metadata_props, zero_point=zero.name)
        count += 1
    return count


def unite(graph: ir.Graph) -> int:
    """Inverse of `separate`, where the old zero point is still there; returns how many."""
    count = 0
    for q, pair, zero in _pairs(graph):
        old = graph.initializers.get(record.read(q.metadata_props).get("zero_point", ""))
        if old is None:
            continue
        for node in pair:
            if parameter(node, 2) is zero:
                node.replace_input_with(2, old)
        count += 1
    return count


def _pairs(graph: ir.Graph) -> list[tuple[ir.Node, list[ir.Node], ir.Value]]:
    """QuantizeLinear, all nodes of its pair, zero point."""
    found = []
    for q in graph:
        zero = parameter(q, 2) if is_q(q, QUANTIZE) else None
        behind = dequantizers(q) if zero is not None else ""
        if zero is not None and not isinstance(behind, str):
            found.append((q, [q, *behind], zero))
    return found
