"""One DequantizeLinear behind each QuantizeLinear and one reader behind each pair, and back.

onnxruntime's training build refuses a QuantizeLinear with a second DequantizeLinear. A DequantizeLinear with several
readers is taken, but each reader has a pair of its own here all the same: then every pair can be rewritten alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer
from onnxq.facts import Edge
from onnxq.look import constant, uses
from onnxq.pairs import parameter
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.trainable import record


class Numbers(dict[ir.Node, int]):
    """A number for each pair node, by which its copies are known later; made when it is asked for."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def __missing__(self, node: ir.Node) -> int:
        self[node] = self.first + len(self)
        return self[node]


def dequantizers(q: ir.Node) -> list[ir.Node] | str:
    """The DequantizeLinear nodes behind a QuantizeLinear, or in words who else reads its integers."""
    out, found = q.outputs[0], []
    if out.is_graph_output():
        return f"its integers are the graph output '{out.name}'"
    for node, index in out.uses():
        if index or not is_q(node, DEQUANTIZE):
            return f"{node.op_type} '{node.name}' reads its integers"
        found.append(node)
    return found or "nobody reads its integers"


def split(q: ir.Node, behind: Sequence[ir.Node], numbers: Numbers, namer: Namer) -> list[ir.Node]:
    """Give each reader of each DequantizeLinear a pair of its own; the first keeps the nodes that are there.

    Args:
        q: The QuantizeLinear.
        behind: The DequantizeLinear nodes that read it, all in its graph.
        numbers: Numbers by which the pairs find together again.
        namer: Fresh names.

    Returns:
        The DequantizeLinear nodes, old and new.
    """
    pairs: list[ir.Node] = []
    several = len(behind) > 1 or any(len(dq.outputs[0].uses()) + dq.outputs[0].is_graph_output() > 1 for dq in behind)
    if not several:
        return list(behind)
    for dq in behind:
        readers = uses(dq.outputs[0])
        kept = readers[:1] if not dq.outputs[0].is_graph_output() else []
        record.write(dq.metadata_props, q=numbers[q], dq=numbers[dq])
        if pairs:
            own = _copy(q, namer)
            dq.replace_input_with(0, own.outputs[0])
            _insert_before(dq, own)
        pairs.append(dq)
        last = dq
        for edge in readers[len(kept) :]:
            own, beside = _copy(q, namer), _copy(dq, namer)
            beside.replace_input_with(0, own.outputs[0])
            graph = last.graph
            assert graph is not None
            graph.insert_after(last, (own, beside))
            edge.node.replace_input_with(edge.index, beside.outputs[0])
            pairs.append(beside)
            last = beside
    return pairs


def _insert_before(node: ir.Node, new: ir.Node) -> None:
    assert node.graph is not None
    node.graph.insert_before(node, new)


def _copy(node: ir.Node, namer: Namer) -> ir.Node:
    new = ir.Node(
        node.domain, node.op_type, node.inputs, node.attributes.values(), name=namer(node.name or node.op_type)
    )
    new.metadata_props.update(node.metadata_props)
    new.metadata_props[PASS_KEY] = "to-trainable"
    new.doc_string = node.doc_string
    out, old = new.outputs[0], node.outputs[0]
    out.name, out.type, out.shape = namer(old.name or node.op_type), old.type, old.shape
    out.metadata_props.update(old.metadata_props)
    return new


def merge(model: ir.Model) -> int:
    """Let pairs that `split` made of one be one again, as far as they still round the same value alike.

    Returns:
        How many nodes went out of use.
    """
    count = 0
    quantizers: dict[tuple[int, ir.Value], list[ir.Node]] = {}
    readers: dict[tuple[int, ir.Value, object], list[ir.Node]] = {}
    for dq in [n for n in model.graph.all_nodes() if is_q(n, DEQUANTIZE)]:
        known = record.read(dq.metadata_props)
        q = dq.inputs[0].producer() if dq.inputs[0] is not None else None
        if "q" not in known or q is None or not is_q(q, QUANTIZE) or q.inputs[0] is None:
            continue
        first = _first(quantizers.setdefault((known["q"], q.inputs[0]), []), q)
        if first is not q:
            dq.replace_input_with(0, first.outputs[0])
            count += 1
        same = _first(readers.setdefault((known["dq"], first.outputs[0], dq.graph), []), dq)
        if same is not dq:
            _hand_over(dq, same)
            count += 1
        else:
            _share(dq, first)
    return count


def _first(known: list[ir.Node], node: ir.Node) -> ir.Node:
    """The node among ``known`` with the same parameters, else the node itself, which is known from now on."""
    for other in known:
        if other is node or _alike(other, node):
            return other
    known.append(node)
    return node


def _alike(a: ir.Node, b: ir.Node) -> bool:
    if {k: v.value for k, v in a.attributes.items()} != {k: v.value for k, v in b.attributes.items()}:
        return False
    return all(_equal(parameter(a, i), parameter(b, i)) for i in (1, 2))


def _equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    if a is b:
        return True
    one, other = constant(a), constant(b)
    if one is None or other is None:
        return False
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))


def _share(dq: ir.Node, q: ir.Node) -> None:
    """Read the very constants that the QuantizeLinear reads, where they are equal."""
    for index in (1, 2):
        own, other = parameter(dq, index), parameter(q, index)
        if own is not None and other is not None and own is not other and _equal(own, other):
            dq.replace_input_with(index, other)


def _hand_over(old: ir.Node, new: ir.Node) -> None:
    for edge in uses(old.outputs[0]):
        _take(edge, new)


def _take(edge: Edge, node: ir.Node) -> None:
    edge.node.replace_input_with(edge.index, node.outputs[0])
