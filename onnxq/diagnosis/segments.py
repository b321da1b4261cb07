"""The float model with twins of the quantized model's layers beside its own: all local errors in one run.

A segment is what lies between a value of the quantized model and the nearest values before it that the float model has,
too. Its twin in the float model reads those values from the float model, so its result is off by nothing but what the
segment itself rounds. Further twins tell apart what its constants, its inputs and the pair behind it add to that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.border.part import reads
from onnxq.diagnosis.matching import Match, constants
from onnxq.edit import Namer, add_initializer, rename
from onnxq.look import nested_graphs, onnx_op
from onnxq.ops import info
from onnxq.states import DEQUANTIZE, INTEGER_OPS, QUANTIZE, is_q

Values = Mapping[ir.Value, ir.Value]
Pairs = Mapping[ir.Node, ir.Value]
"""A DequantizeLinear of a run-time value -> what goes into the quantizing node before it."""

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


@dataclass(frozen=True)
class Twins:
    """Values of the extended float model; None for what does not apply to a value, or cannot be told apart.

    Attributes:
        local: The whole segment, with the pair behind it.
        weights: The segment without pairs: only its constants are rounded.
        inputs: The float model's own nodes, on inputs that went through their pairs.
        rounding: The float value itself, through the pair behind it.
        node: The node of the float model that does the work: the first with weights, else the last one; that of the
            quantized model where the float one has no name, or calls a function.
    """

    local: ir.Value | None = None
    weights: ir.Value | None = None
    inputs: ir.Value | None = None
    rounding: ir.Value | None = None
    node: ir.Node | None = None

    @property
    def values(self) -> dict[str, ir.Value]:
        """Those that are there, by name."""
        kinds = ("local", "weights", "inputs", "rounding")
        return {kind: value for kind in kinds if (value := getattr(self, kind)) is not None}


class Extension:
    """Adds twins to a float model.

    Args:
        model: The float model; it is extended in place.
        quantized: The quantized model, of the same opsets and without functions; only its tensors are renamed.
        matches: The values that both have.
    """

    def __init__(self, model: ir.Model, quantized: ir.Model, matches: Sequence[Match]) -> None:
        self._graph, self._namer = model.graph, Namer(model)
        self._computed = {match.computed: match.reference for match in matches}
        self._references = {match.reference: match.reference for match in matches}
        self._constants, self._fixed = constants(quantized.graph), constants(model.graph)
        self._functions = set(model.functions)
        self._order = {node: i for graph in (model.graph, quantized.graph) for i, node in enumerate(graph)}
        self._copied: dict[ir.Value, ir.Value] = {}
        self._rounded: dict[ir.Node, ir.Value] = {}
        for domain, version in quantized.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
        model.ir_version = max(model.ir_version, quantized.ir_version)

    def add(self, match: Match) -> Twins:
        """Add the twins of one value."""
        rounding = self._through_pair(match, match.reference) if match.seen is not match.computed else None
        nodes = self._segment(match.computed, self._computed)
        if not nodes:
            return Twins(rounding=rounding)
        twin = self._copy(nodes, self._computed)[match.computed]
        pairs, weights, inputs = _pairs(nodes, self._constants), None, None
        if _separable(nodes, pairs):
            if any(_rounds_constants(node, pairs) for node in nodes):
                alone = self._copy(nodes, self._computed, pairs)[match.computed] if pairs else twin
                weights = self._bounded(match, alone)
            inputs = self._on_rounded_inputs(match.reference, pairs)
        node = self._main(self._segment(match.reference, self._references), nodes)
        return Twins(self._through_pair(match, twin), weights, inputs, rounding, node)

    def _segment(self, target: ir.Value, stops: Collection[ir.Value]) -> list[ir.Node]:
        """The nodes that make a value from ``stops`` and constants, in graph order."""
        found: set[ir.Node] = set()
        todo = [target]
        while todo:
            value = todo.pop()
            node = value.producer()
            if (
                node is None
                or node in found
                or node.graph is not target.graph
                or (value is not target and value in stops)
            ):
                continue
            found.add(node)
            todo.extend(reads(node))
        return sorted(found, key=self._order.__getitem__)

    def _copy(self, nodes: Sequence[ir.Node], known: Values, bypassed: Pairs | None = None) -> dict[ir.Value, ir.Value]:
        """Append copies of nodes to the float model; returns what stands for each of their values.

        Args:
            nodes: Of either model, in order.
            known: What stands for values that are made elsewhere.
            bypassed: DequantizeLinear nodes that hand on what went into their pair.
        """
        made: dict[ir.Value, ir.Value] = {}

        def stand_in(value: ir.Value) -> ir.Value:
            return made.get(value) or known.get(value) or self._outer(value)

        for node in nodes:
            if bypassed and node in bypassed:
                made[node.outputs[0]] = stand_in(bypassed[node])
                continue
            inputs = [None if value is None else stand_in(value) for value in node.inputs]
            attributes = [self._attribute(attr, made, known) for attr in node.attributes.values()]
            new = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs))
            for old, out in zip(node.outputs, new.outputs, strict=True):
                out.name, out.type = self._namer(f"{old.name}_twin") if old.name else "", old.type
                made[old] = out
            self._graph.append(new)
        return made

    def _outer(self, value: ir.Value) -> ir.Value:
        """A value of the float model itself, or a copy of a constant of the quantized model."""
        if value.graph is self._graph:
            return value
        if value not in self._copied:
            assert value.const_value is not None, f"'{value.name}' is neither matched nor constant"
            self._copied[value] = add_initializer(self._graph, f"{value.name}_twin", value.const_value, self._namer)
        return self._copied[value]

    def _attribute(self, attr: ir.Attr, made: Values, known: Values) -> ir.Attr:
        """The attribute; bodies are copied, and read the stand-ins."""
        if attr.is_ref() or attr.type not in (_GRAPH, _GRAPHS):
            return attr
        graphs = [attr.as_graph()] if attr.type is _GRAPH else list(attr.as_graphs())
        copies = [graph.clone(allow_outer_scope_values=True) for graph in graphs]
        for copy in copies:
            scopes = list(nested_graphs(copy))
            for scope in scopes:
                for value in (*scope.inputs, *scope.initializers.values(), *(v for n in scope for v in n.outputs)):
                    if value.name:
                        rename(value, self._namer(value.name))
            for scope in scopes:
                for node in scope:
                    for i, outer in enumerate(node.inputs):
                        if outer is not None and outer.graph not in scopes:
                            node.replace_input_with(i, made.get(outer) or known.get(outer) or self._outer(outer))
        return ir.Attr(attr.name, attr.type, copies[0] if attr.type is _GRAPH else copies)

    def _through_pair(self, match: Match, value: ir.Value) -> ir.Value:
        """``value`` behind the pair that stands behind the match; itself where there is none."""
        if match.seen is match.computed:
            return value
        nodes = self._segment(match.seen, {match.computed})
        return self._copy(nodes, {match.computed: value})[match.seen]

    def _bounded(self, match: Match, value: ir.Value) -> ir.Value:
        """``value`` behind the float model's Relu or Clip, where the quantized one leaves that to the pair."""
        node, other = match.reference.producer(), match.computed.producer()
        if node is None or not onnx_op(node, "Relu", "Clip") or onnx_op(other, node.op_type) or not node.inputs[0]:
            return value
        return self._copy([node], {node.inputs[0]: value})[match.reference]

    def _on_rounded_inputs(self, reference: ir.Value, pairs: Pairs) -> ir.Value | None:
        """The float model's nodes that make a value, reading rounded inputs; None where they read none."""
        rounded: dict[ir.Value, ir.Value] = {}
        for dq, source in pairs.items():
            if source in self._computed:
                rounded.setdefault(self._computed[source], self._round(dq))
        nodes = self._segment(reference, self._references)
        if not any(value in rounded for node in nodes for value in reads(node)):
            return None
        return self._copy(nodes, rounded)[reference]

    def _main(self, own: Sequence[ir.Node], nodes: Sequence[ir.Node]) -> ir.Node:
        node = _worker(own, self._fixed) if own else None
        known = node is not None and node.name and node.op_identifier() not in self._functions
        return node if node is not None and known else _worker(nodes, self._constants)

    def _round(self, dq: ir.Node) -> ir.Value:
        """The float value that a pair of the quantized model reads, through a copy of that pair."""
        if dq not in self._rounded:
            nodes = self._segment(dq.outputs[0], self._computed)
            self._rounded[dq] = self._copy(nodes, self._computed)[dq.outputs[0]]
        return self._rounded[dq]


def _pairs(nodes: Sequence[ir.Node], fixed: Collection[ir.Value]) -> dict[ir.Node, ir.Value]:
    """The pairs of run-time values among the nodes, static and dynamic."""
    out = {}
    for dq in nodes:
        data = dq.inputs[0] if is_q(dq, DEQUANTIZE) else None
        q = data.producer() if data is not None and data not in fixed else None
        if q is not None and _quantizes(q) and q.inputs[0] is not None:
            out[dq] = q.inputs[0]
    return out


def _quantizes(node: ir.Node) -> bool:
    return is_q(node, QUANTIZE) or onnx_op(node, "DynamicQuantizeLinear")


def _separable(nodes: Sequence[ir.Node], pairs: Pairs) -> bool:
    """Whether all integers that the nodes compute go from the quantizing node straight to its DequantizeLinear."""
    inside = set(nodes)
    return all(
        reader in pairs or reader not in inside
        for node in nodes
        if _quantizes(node)
        for reader in node.outputs[0].consumers()
        if not is_q(reader, DEQUANTIZE)
    )


def _rounds_constants(node: ir.Node, pairs: Pairs) -> bool:
    """Whether a node gives back rounded constants, or computes on some."""
    key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return (is_q(node, DEQUANTIZE) and node not in pairs) or key in INTEGER_OPS


def _worker(nodes: Sequence[ir.Node], fixed: Collection[ir.Value]) -> ir.Node:
    """The first node with constant weights, else the last one."""
    for node in nodes:
        row = info(node)
        slots = row.weights if row else ()
        if any(s.index < len(node.inputs) and node.inputs[s.index] in fixed for s in slots):
            return node
    return nodes[-1]
