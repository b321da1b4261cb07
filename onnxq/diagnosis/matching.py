"""Which value of a quantized model stands for which value of the float model.

By provenance where onnxq wrote the quantized model: values that a pass renamed or moved lead back (`onnxq.provenance`).
By name otherwise: other tools keep the names of what they quantize. In both cases a value is followed through the Q/DQ
pair behind it, for its readers see what comes out of the pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.border.part import reads
from onnxq.layers import is_float
from onnxq.look import onnx_op
from onnxq.provenance import SOURCE_KEY, source_of
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q


@dataclass(frozen=True, eq=False)
class Match:
    """One value of the float model in the quantized model.

    Attributes:
        name: Its name in the float model.
        reference: The value of the float model.
        computed: The value of the quantized model that stands for it, in front of its Q/DQ pair.
        seen: What its readers get: behind the pair, or ``computed`` where there is none.
    """

    name: str
    reference: ir.Value
    computed: ir.Value
    seen: ir.Value

    @property
    def measured(self) -> bool:
        """Whether it holds floats, and may differ."""
        made = self.seen.producer() is not None
        return made and (self.reference.dtype is None or is_float(self.reference))


@dataclass(frozen=True)
class Matching:
    """All matches between two models.

    Attributes:
        how: ``provenance`` or ``names``.
        matches: In the order of the float model.
        alone: Names of the float model's values that nothing stands for: fused away, or renamed without a trace.
    """

    how: str
    matches: tuple[Match, ...]
    alone: tuple[str, ...]


def match(reference: ir.Model, candidate: ir.Model) -> Matching:
    """Match the values of two main graphs; constants are none of them."""
    marked = "onnxq.version" in candidate.metadata_props
    found: dict[str, ir.Value] = {}
    for value in variables(candidate.graph):
        # The last one, where several stand for the same: it is what readers and graph outputs get.
        found[source_of(value) if marked else value.name or ""] = value
    found.pop("", None)
    matches, alone = [], []
    for value in variables(reference.graph):
        name = source_of(value) if SOURCE_KEY in value.metadata_props else value.name or ""
        other = found.get(name)
        if other is not None:
            computed = before_pairs(other)
            seen = other if computed is not other else behind_pair(other)
            matches.append(Match(value.name or name, value, computed, seen))
        elif name:
            alone.append(name)
    return Matching("provenance" if marked else "names", tuple(matches), tuple(alone))


def variables(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs and node outputs of a graph that do not follow from constants alone."""
    fixed = constants(graph)
    yield from (value for value in graph.inputs if value not in fixed)
    for node in graph:
        yield from (value for value in node.outputs if value.name and value not in fixed)


def constants(graph: ir.Graph) -> set[ir.Value]:
    """Initializers of a graph, and what its nodes compute from nothing else."""
    fixed = {value for value in graph.initializers.values() if not value.is_graph_input()}
    for node in graph:
        read = [value for value in reads(node) if value.graph is graph]
        if all(value in fixed for value in read) and (read or onnx_op(node, "Constant")):
            fixed.update(node.outputs)
    return fixed


def before_pairs(value: ir.Value) -> ir.Value:
    """The value in front of the Q/DQ pairs that make this one; the value itself if none do."""
    while True:
        dq = value.producer()
        q = dq.inputs[0].producer() if dq is not None and is_q(dq, DEQUANTIZE) and dq.inputs[0] else None
        if q is None or not is_q(q, QUANTIZE) or q.inputs[0] is None:
            return value
        value = q.inputs[0]


def behind_pair(value: ir.Value) -> ir.Value:
    """What the readers of a value get: behind the pair where all of them read it through one, else the value itself."""
    readers = value.consumers()
    if value.is_graph_output() or not readers or not all(is_q(node, QUANTIZE) for node in readers):
        return value
    for q in readers:
        for dq in q.outputs[0].consumers():
            if is_q(dq, DEQUANTIZE) and dq.graph is value.graph:
                return dq.outputs[0]
    return value
