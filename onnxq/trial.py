"""A float session in which every planned pair has a switch: one load, any number of plans tried.

Each planned value becomes ``Where(on, DQ(Q(x, scale, zero)), x)``; switches, scales and zero points are inputs of the
session. So a plan with some layers left float, or with other ranges, costs one run over the samples and no graph
surgery. Weights stay float: what their rounding costs is mostly taken back by `gptq`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, replace_uses
from onnxq.facts import Edge, Plan
from onnxq.look import all_nodes, onnx_op
from onnxq.numerics.spec import Encoding, QType
from onnxq.session import Runtime, Session, open_session
from onnxq.weights import onnx_dtype

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

IR_VERSION = 10
SQUASHES = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "ArgMax", "Identity", "Cast"})
SQUASHES |= {"Reshape", "Squeeze", "Flatten", "Transpose", "Unsqueeze"}
ON, SCALE, ZERO = "onnxq_on", "onnxq_scale", "onnxq_zero_point"


class Trial:
    """An open trial session; made by `open_trial`.

    Attributes:
        values: Planned values, in the order of the switches.
        samples: The feeds that plans are tried on.
    """

    def __init__(
        self,
        session: Session,
        values: Sequence[ir.Value],
        samples: Sequence[Feeds],
        exact: list[list[Array]],
        qtype: QType,
    ) -> None:
        self.values, self.samples = list(values), list(samples)
        self._session, self._exact, self._integers = session, exact, qtype.carrier
        self._inputs = set(session.inputs)

    def noise(self, plan: Plan, encodings: Mapping[ir.Value, Encoding]) -> float:
        """Error of a plan: noise energy over signal energy of each float output, averaged over the outputs.

        Args:
            plan: A plan of the same model that quantizes no more than the one the trial was opened with.
            encodings: One for each planned value.
        """
        on = [v in plan.activations for v in self.values]
        scales = [float(encodings[v].scale) if v in encodings else 1.0 for v in self.values]
        zeros = [int(encodings[v].zero_point) if v in encodings else 0 for v in self.values]
        switches: dict[str, Array] = {ON: np.array(on, bool), SCALE: np.array(scales, np.float32)}
        switches = {k: v for k, v in {**switches, ZERO: np.array(zeros, self._integers)}.items() if k in self._inputs}
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
        readers.setdefault(value, []).append(Edge(nodes[edge.node], edge.index))
    values = list(plan.activations)
    qtype = next(iter(plan.activations.values())).qtype if values else QType.named("uint8")
    builder = _Builder(copy, qtype)
    for index, value in enumerate(values):
        builder.value(twins[value], index, readers.get(value, []), value in plan.outputs)
    # As its reader gets it, so behind the pair.
    seen = [copy.graph.outputs[use] if isinstance(use, int) else nodes[use.node].inputs[0] for use in watched.values()]
    with open_session(copy, runtime, outputs=[v for v in seen if v is not None]) as session:
        yield Trial(session, values, samples, exact, qtype)


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

    def __init__(self, model: ir.Model, qtype: QType) -> None:
        self._graph, self._namer = model.graph, Namer(model)
        self._first = model.graph[0]
        kinds = {ON: ir.DataType.BOOL, SCALE: ir.DataType.FLOAT, ZERO: onnx_dtype(qtype)}
        self._inputs = {
            name: ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([None])) for name, kind in kinds.items()
        }
        model.graph.inputs.extend(self._inputs.values())

    def value(self, value: ir.Value, index: int, readers: list[Edge], is_output: bool) -> None:
        """``readers`` (and the graph output) get ``Where(on, DQ(Q(value)), value)``."""
        scale, zero, on = (self._pick(name, index) for name in (SCALE, ZERO, ON))
        q = ir.node("QuantizeLinear", [value, scale, zero])
        dq = ir.node("DequantizeLinear", [q.outputs[0], scale, zero])
        either = ir.node("Where", [on, dq.outputs[0], value])
        either.outputs[0].type = value.type
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._first, (q, dq, either))
        else:
            self._graph.insert_after(producer, (q, dq, either))
        if is_output:
            replace_uses(value, either.outputs[0], self._namer)
            q.replace_input_with(0, value)
            either.replace_input_with(2, value)
        else:
            for edge in readers:
                edge.node.replace_input_with(edge.index, either.outputs[0])

    def _pick(self, name: str, index: int) -> ir.Value:
        """One element of a switch vector, rank 0."""
        place = add_initializer(self._graph, f"{name}_{index}", np.array(index, np.int64), self._namer)
        node = ir.node("Gather", [self._inputs[name], place])
        self._graph.insert_before(self._first, node)
        return node.outputs[0]
