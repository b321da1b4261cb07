"""The part of a main graph that makes some of its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.look import bodies


@dataclass(frozen=True)
class Part:
    """What a session needs that returns some values.

    Attributes:
        outputs: Values to return, made by nodes of the main graph.
        nodes: The nodes behind them, in graph order.
        values: The outputs, and all that those nodes read, also from inside their bodies.
    """

    outputs: Sequence[ir.Value]
    nodes: Sequence[ir.Node]
    values: frozenset[ir.Value]


def part_for(graph: ir.Graph, outputs: Sequence[ir.Value]) -> Part:
    """The part of a main graph that makes these values."""
    values, nodes, todo = set(outputs), set[ir.Node](), list(outputs)
    while todo:
        node = todo.pop().producer()
        if node is None or node in nodes or node.graph is not graph:
            continue
        nodes.add(node)
        for value in reads(node):
            if value not in values:
                values.add(value)
                todo.append(value)
    return Part(outputs, [node for node in graph if node in nodes], frozenset(values))


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, also from inside its bodies; what those make themselves is among it."""
    yield from [value for value in node.inputs if value is not None]
    for body in bodies(node):
        yield from body.outputs
        for inner in body:
            yield from reads(inner)
