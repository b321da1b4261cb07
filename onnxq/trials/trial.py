"""A float session in which every planned pair has a switch: one load, any number of plans tried.

Each planned value becomes ``Where(on, DQ(Q(x, scale, zero)), x)``; switches, scales and zero points are inputs of the
session. A reader of another type has a second pair with a switch of its own behind the first. So a plan with some
layers left float, or with other ranges, costs one run over the samples and no graph surgery. Weights stay float: what
their rounding costs is mostly taken back by `gptq`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, replace_uses
from onnxq.facts import Edge, Encodings, Plan
from onnxq.look import all_nodes, onnx_op
from onnxq.numerics.spec import QType, TensorSpec
from onnxq.session import Runtime, Session, open_session
from onnxq.weights import onnx_dtype

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
Pair = tuple[ir.Value, TensorSpec]

IR_VERSION = 10
SQUASHES = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "ArgMax", "Identity", "Cast"})
SQUASHES |= {"Reshape", "Squeeze", "Flatten", "Transpose", "Unsqueeze"}
ON, SCALE, ZERO = "onnxq_on", "onnxq_scale", "onnxq_zero_point"


class Trial:
    """An open trial session; made by `open_trial`.

    Attributes:
        pairs: Values and specs of the pairs, in the order of the switches.
        samples: The feeds that plans are tried on.
    """

    def __init__(
        self,
        session: Session,
        pairs: Sequence[Pair],
        samples: Sequence[Feeds],
        exact: list[list[Array]],
    ) -> None:
        self.pairs, self.samples = list(pairs), list(samples)
        self._session, self._exact = session, exact
        self._inputs = set(session.inputs)

    def noise(self, plan: Plan, encodings: Encodings) -> float:
        """Error of a plan: noise energy over signal energy of each float output, averaged over the outputs.

        Args:
            plan: A plan of the same model that quantizes no more than the one the trial was opened with.
            encodings: Those of its activations and bridges.
        """
        chosen = {(v, spec): encodings.activations[v] for v, spec in plan.activations.items()}
        chosen |= {(edge.value, spec): encodings.bridges[edge] for edge, spec in plan.bridges.items()}
        used = [chosen.get(pair) for pair in self.pairs]
        parameters: dict[str, Array] = {
            ON: np.array([e is not None for e in used], bool),
            SCALE: np.array([1.0 if e is None else float(e.scale) for e in used], np.float32),
            ZERO: np.array([0.0 if e is None else float(e.zero_point) for e in used], np.float32),
        }
        switches = {name: array for name, array in parameters.items() if name in self._inputs}
        noise = np.zeros(len(self._session.outputs))
        signal = np.zeros(len(self._session.outputs))
        for feeds, reference in zip(self.samples, self._exact, strict=True):
            for i, (exact, got) in enumerate(zip(reference, self._session.run({**feeds, **switches}), strict=True)):
                if exact.dtype.kind == "f" and exact.shape == got.shape:
                    finite = np.isfinite(exact) & np.isfinite(got)
                    x, y = exact[finite].astype(np.float64), got[finite].astype(np.float64)
                    noise[i] += float(((x - y) ** 2).sum())
                    signal[i] += float((x**2).sum())
        counts = signal > 0
        return float(np.mean(noise[counts] / signal[counts])) if counts.any() else 0.0


def decibels(noise: float) -> float:
    """Signal to noise ratio in dB of a noise share; infinite without noise."""
    return -10 * math.log10(noise) if noise > 0 else math.inf


@contextmanager
def open_trial(model: ir.Model, plan: Plan, samples: Sequence[Feeds], runtime: Runtime) -> Iterator[Trial]:
    """Load the trial of a plan; ``model`` stays as it is.

    Args:
        model: The prepared float model the plan is about.
        plan: The plan that quantizes most.
        samples: Feeds to try on; they stay in memory.
        runtime: How to run.

    Raises:
        InputError: onnxruntime cannot load or run it.
    """
    watched = measured_values(model)
    with open_session(model, runtime, outputs=list(watched)) as session:
        exact = [session.run(feeds) for feeds in samples]
    copy = model.clone()
    copy.ir_version = max(copy.ir_version or 0, IR_VERSION)
    nodes = dict(zip(all_nodes(model), all_nodes(copy), strict=True))
    twins = {a: b for old, new in nodes.items() for a, b in zip(old.outputs, new.outputs, strict=True)}
    twins |= dict(zip(model.graph.inputs, copy.graph.inputs, strict=True))
    readers: dict[ir.Value, list[Edge]] = {}
    for edge, value in plan.readers.items():
        readers.setdefault(value, []).append(edge)
    pairs: list[Pair] = []
    builder = _Builder(copy)
    for value, spec in plan.activations.items():
        here: dict[TensorSpec, list[Edge]] = {spec: []}
        for edge in readers.get(value, []):
            here.setdefault(plan.bridges.get(edge, spec), []).append(Edge(nodes[edge.node], edge.index))
        source = twins[value]
        for number, (kind, edges) in enumerate(here.items()):
            made = builder.pair(source, kind.qtype, len(pairs), edges, number == 0 and value in plan.outputs)
            pairs.append((value, kind))
            source = made if number == 0 else source
    # As its reader gets it, so behind the pair.
    seen = [copy.graph.outputs[use] if isinstance(use, int) else nodes[use.node].inputs[0] for use in watched.values()]
    with open_session(copy, runtime, outputs=[v for v in seen if v is not None]) as session:
        yield Trial(session, pairs, samples, exact)


def measured_values(model: ir.Model) -> dict[ir.Value, Edge | int]:
    """The values that noise is measured on: float outputs, looked through what squashes or picks.

    Behind a Softmax one changed answer outweighs everything else; in front of it errors add up as they are made.

    Returns:
        The use that stands for each value: input 0 of the node that was looked through, or the number of the output.
    """
    found: dict[ir.Value, Edge | int] = {}
    for i, value in enumerate(model.graph.outputs):
        use: Edge | int = i
        node = value.producer()
        while onnx_op(node, *SQUASHES) and node is not None and node.inputs[0] is not None:
            value, use = node.inputs[0], Edge(node, 0)
            node = value.producer()
        if node is not None:
            found.setdefault(value, use)
    return found


class _Builder:
    """Puts switches into the copy."""

    def __init__(self, model: ir.Model) -> None:
        self._graph, self._namer = model.graph, Namer(model)
        self._first = model.graph[0]
        kinds = {ON: ir.DataType.BOOL, SCALE: ir.DataType.FLOAT, ZERO: ir.DataType.FLOAT}
        self._inputs = {
            name: ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([None])) for name, kind in kinds.items()
        }
        model.graph.inputs.extend(self._inputs.values())

    def pair(self, source: ir.Value, qtype: QType, index: int, readers: list[Edge], is_output: bool) -> ir.Value:
        """``readers`` (and the graph output) get ``Where(on, DQ(Q(source)), source)``, which is returned."""
        picked = [self._pick(name, index) for name in (SCALE, ZERO, ON)]
        scale, number, on = (node.outputs[0] for node in picked)
        # Numbers of 4 bits and 8-bit floats cannot be fed.
        zero = ir.node("Cast", [number], {"to": onnx_dtype(qtype)})
        self._graph.insert_before(self._graph[0], (*picked, zero))
        q = ir.node("QuantizeLinear", [source, scale, zero.outputs[0]])
        dq = ir.node("DequantizeLinear", [q.outputs[0], scale, zero.outputs[0]])
        either = ir.node("Where", [on, dq.outputs[0], source])
        either.outputs[0].type = source.type
        producer = source.producer()
        if producer is None:
            self._graph.insert_before(self._first, (q, dq, either))
        else:
            self._graph.insert_after(producer, (q, dq, either))
        if is_output:
            replace_uses(source, either.outputs[0], self._namer)
            q.replace_input_with(0, source)
            either.replace_input_with(2, source)
        else:
            for edge in readers:
                edge.node.replace_input_with(edge.index, either.outputs[0])
        return either.outputs[0]

    def _pick(self, name: str, index: int) -> ir.Node:
        """One element of a switch vector, rank 0."""
        place = add_initializer(self._graph, f"{name}_{index}", np.array(index, np.int64), self._namer)
        return ir.node("Gather", [self._inputs[name], place])
