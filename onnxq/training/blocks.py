"""Where a quantized model can be cut into blocks that are trained one after the other.

A cut is a value that all paths from the layers before it lead through: what lies between two cuts is a residual block
with its shortcut, or a single layer where there is no shortcut. Values that no layer is in front of, such as masks made
of an input, do not count: each block that needs them makes them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.border.part import reads
from onnxq.diagnosis.matching import Match, match
from onnxq.states import CARRIERS, DEQUANTIZE, is_q, source_of


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a quantized model, and the part of the float model that it stands for.

    Attributes:
        begin: The value it begins with, in front of its pair; None for the model's inputs.
        end: The value it ends with; None for the model's outputs.
        layers: Its nodes with quantized weights, in graph order.
    """

    begin: Match | None
    end: Match | None
    layers: tuple[ir.Node, ...]

    def quantized(self, model: ir.Model, *, before_pair: bool = False) -> ir.Model:
        """Its nodes, with the pair behind its end unless ``before_pair``, as a model of their own."""
        begin = self.begin.computed if self.begin else None
        if self.end is None:
            return part(model, begin, list(model.graph.outputs))
        return part(model, begin, [self.end.computed if before_pair else self.end.seen])

    def exact(self, model: ir.Model) -> ir.Model:
        """The same part of the float model."""
        begin = self.begin.reference if self.begin else None
        return part(model, begin, [self.end.reference] if self.end else list(model.graph.outputs))


def blocks(quantized: ir.Model, reference: ir.Model, *, layers: int = 1) -> list[Block]:
    """Cut a Q/DQ model at values that its float model has, too.

    Args:
        quantized: The Q/DQ model, weights as integers or as floats in front of pairs.
        reference: The float model.
        layers: Layers with weights that a block has at least (the last one may have fewer); what follows a layer
            without weights of its own belongs to it.

    Returns:
        Blocks in graph order, together the whole model; none for a model without quantized weights.
    """
    found: list[Block] = []
    begin = last = None
    inside: list[ir.Node] = []
    for end, weighted in _segments(quantized.graph, _matches(quantized, reference)):
        if weighted and len(inside) >= layers and last is not None:
            found.append(Block(begin, last, tuple(inside)))
            begin, inside = last, []
        inside += weighted
        last = end
    return [*found, Block(begin, None, tuple(inside))] if inside else found


def part(model: ir.Model, begin: ir.Value | None, ends: Sequence[ir.Value]) -> ir.Model:
    """The nodes that make some values of a main graph, as a model of its own; tensors are shared, nodes are copies.

    Args:
        model: The model; it stays as it is.
        begin: A value to take as an input; its copy has a type, but no shape.
        ends: The outputs, made by nodes.

    Returns:
        A model whose inputs are ``begin``, where it is read, and the model's inputs that are needed beside it.
    """
    graph = model.graph
    inputs = [value for value in _leaves(graph, begin, ends) if value is begin or not value.is_initializer()]
    copy = ir.Model(
        ir.convenience.extract(graph, inputs, list(ends)),
        ir_version=model.ir_version,
        functions=[function.clone() for function in model.functions.values()],
    )
    for value in copy.graph.inputs:
        if begin is not None and value.name == begin.name:
            value.shape = None
    for value in (*copy.graph.inputs, *copy.graph.outputs):
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    return copy


def quantized_weights(node: ir.Node) -> Iterator[ir.Value]:
    """Inputs of a layer that are dequantized constants; int32 ones are biases, no weights."""
    if node.op_type in CARRIERS:
        return
    for value in node.inputs:
        tensor, path = source_of(value)
        dequantized = any(is_q(carrier, DEQUANTIZE) for carrier in path)
        if value is not None and tensor is not None and dequantized and tensor.dtype != ir.DataType.INT32:
            yield value


def _segments(graph: ir.Graph, matches: dict[ir.Value, Match]) -> Iterator[tuple[Match | None, list[ir.Node]]]:
    """What lies between neighbouring cuts: the cut behind it (None: the outputs), its layers."""
    left: dict[ir.Value, int] = {}
    """Values behind a layer -> nodes that have yet to read them."""
    readers = _readers(graph)
    weighted: list[ir.Node] = []
    for node in graph:
        read = {value for value in reads(node) if value in left}
        if any(True for _ in quantized_weights(node)):
            weighted.append(node)
        elif not read:
            continue
        for value in read:
            left[value] -= 1
            if not left[value]:
                del left[value]
        left.update((out, readers[out]) for out in node.outputs if readers.get(out))
        if len(left) == 1:
            (value,) = left
            if value in matches and value in node.outputs:
                yield matches[value], weighted
                weighted = []
    yield None, weighted


def _readers(graph: ir.Graph) -> dict[ir.Value, int]:
    """How many nodes read a value, also from their bodies; an output of the graph has one reader more."""
    count: dict[ir.Value, int] = {}
    for value in [*graph.outputs, *(value for node in graph for value in set(reads(node)))]:
        count[value] = count.get(value, 0) + 1
    return count


def _matches(quantized: ir.Model, reference: ir.Model) -> dict[ir.Value, Match]:
    """Where both models can be cut: values of floats that nodes make, and that are no outputs."""
    found = match(reference, quantized).matches
    return {
        m.computed: m
        for m in found
        if m.measured and m.computed.producer() is not None and not m.computed.is_graph_output()
    }


def _leaves(graph: ir.Graph, begin: ir.Value | None, ends: Sequence[ir.Value]) -> list[ir.Value]:
    """``begin`` and inputs of the graph that some values are made of, in this order."""
    seen: set[ir.Value] = set(ends)
    todo = list(ends)
    while todo:
        value = todo.pop()
        node = value.producer()
        if value is begin or node is None or node.graph is not graph:
            continue
        new = {inner for inner in reads(node) if inner not in seen}
        seen |= new
        todo += new
    return [value for value in (begin, *graph.inputs) if value is not None and value in seen]
