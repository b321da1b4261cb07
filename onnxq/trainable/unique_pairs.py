"""One QuantizeLinear and one DequantizeLinear for everybody who reads a value at one encoding, and back.

onnxruntime's training build refuses a QuantizeLinear with a second DequantizeLinear. Copies of the QuantizeLinear do
not help: equal nodes are merged (CommonSubexpressionElimination) before pairs are looked for, and the merged one has
two DequantizeLinear behind it. One pair with several readers trains; the gradients of the readers add up. (Measured
with onnxruntime-training-cpu 1.19.2.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer, replace_uses
from onnxq.look import constant, uses
from onnxq.pairs import parameter
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.trainable import record


class Numbers(dict[ir.Node, int]):
    """A number for each pair node, by which records tell them apart; made when it is asked for."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def __missing__(self, node: ir.Node) -> int:
        self[node] = self.first + len(self)
        return self[node]


def equal_quantizers(nodes: Iterable[ir.Node]) -> list[list[ir.Node]]:
    """QuantizeLinear nodes in groups that round the same value alike."""
    groups: dict[Hashable, list[ir.Node]] = {}
    for node in nodes:
        if is_q(node, QUANTIZE):
            groups.setdefault((node.inputs[0], *_numbers(node)), []).append(node)
    return list(groups.values())


def _numbers(node: ir.Node) -> tuple[Hashable, ...]:
    """What a pair node computes with."""
    scale = constant(parameter(node, 1))
    unused = {"axis"} if scale is not None and scale.size == 1 else set()
    attributes = tuple(sorted((k, a.value) for k, a in node.attributes.items() if k not in unused))
    return (node.domain, attributes, *(_content(parameter(node, index)) for index in (1, 2)))


def _content(value: ir.Value | None) -> Hashable:
    array = constant(value)
    return value if array is None else (array.dtype, array.shape, array.tobytes())


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


def merge(graph: ir.Graph, numbers: Numbers, namer: Namer) -> int:
    """Let equal pairs of a graph be one; the pair and its readers remember the others.

    Pairs stay apart where a QuantizeLinear has other readers than DequantizeLinear nodes, or these differ.

    Returns:
        How many nodes went out of use.
    """
    count = 0
    for group in equal_quantizers(graph):
        found = [dequantizers(q) for q in group]
        behind = [(q, dq) for q, some in zip(group, found, strict=True) if isinstance(some, list) for dq in some]
        apart = any(isinstance(some, str) for some in found) or len({_numbers(dq) for _, dq in behind}) > 1
        if apart or len(behind) < 2:
            continue
        (kept, heir), *others = behind
        name = heir.outputs[0].name
        entries = [_hand_over(graph, q, dq, heir, numbers, namer) for q, dq in others]
        record.write(heir.metadata_props, q=numbers[kept], name=name, copies=entries)
        count += len(others) + len(group) - 1
    return count


def _hand_over(
    graph: ir.Graph, q: ir.Node, dq: ir.Node, heir: ir.Node, numbers: Numbers, namer: Namer
) -> dict[str, Any]:
    """Let ``heir`` stand in for a DequantizeLinear; returns what makes it and its QuantizeLinear again."""
    out = dq.outputs[0]
    entry = {
        "id": numbers[dq],
        "q": numbers[q],
        "names": [[n.name or n.op_type, n.outputs[0].name or n.op_type] for n in (q, dq)],
        "attributes": [{name: attr.value for name, attr in n.attributes.items()} for n in (q, dq)],
        "outputs": [i for i, output in enumerate(graph.outputs) if output is out],
    }
    for edge in uses(out):
        reads = record.read(edge.node.metadata_props).get("reads", {})
        record.write(edge.node.metadata_props, reads={**reads, str(edge.index): numbers[dq]})
    replace_uses(out, heir.outputs[0], namer)
    return entry


def split(model: ir.Model, namer: Namer) -> int:
    """Inverse of `merge`; returns how many nodes came back."""
    count = 0
    for heir in [n for n in model.graph if is_q(n, DEQUANTIZE)]:
        known = record.read(heir.metadata_props)
        q = heir.inputs[0].producer() if heir.inputs[0] is not None else None
        if "copies" not in known or q is None:
            continue
        quantizers, copies, last = {known["q"]: q}, {}, heir
        for entry in known["copies"]:
            new = []
            if entry["q"] not in quantizers:
                quantizers[entry["q"]] = _copy(q, entry["names"][0], entry["attributes"][0], namer)
                new.append(quantizers[entry["q"]])
            dq = _copy(heir, entry["names"][1], entry["attributes"][1], namer)
            dq.replace_input_with(0, quantizers[entry["q"]].outputs[0])
            copies[entry["id"]] = dq
            model.graph.insert_after(last, [*new, dq])
            last = dq
            count += len(new) + 1
            if entry["outputs"]:
                _take_outputs(model.graph, heir.outputs[0], dq.outputs[0], entry["outputs"], namer(known["name"]))
        for edge in uses(heir.outputs[0]):
            reads = record.read(edge.node.metadata_props).get("reads", {})
            if reads.get(str(edge.index)) in copies:
                edge.node.replace_input_with(edge.index, copies[reads[str(edge.index)]].outputs[0])
    return count


def _copy(node: ir.Node, names: list[str], attributes: dict[str, int], namer: Namer) -> ir.Node:
    given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
    new = ir.Node(node.domain, node.op_type, node.inputs, given, name=namer(names[0]))
    new.metadata_props[PASS_KEY] = "from-trainable"
    out, old = new.outputs[0], node.outputs[0]
    out.name, out.type, out.shape = namer(names[1]), old.type, old.shape
    return new


def _take_outputs(graph: ir.Graph, old: ir.Value, new: ir.Value, indices: list[int], name: str) -> None:
    """Let a copy deliver graph outputs, under their names; the other gets the name of before."""
    for index in indices:
        if graph.outputs[index] is old:
            old.name, new.name = name, old.name
            graph.outputs[index] = new
