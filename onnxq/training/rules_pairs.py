"""The gradient of a whole fake-quantized value: ``Div(s) -> Clip -> Add(residue) -> Mul(s)`` as one step.

Node by node the gradient would be multiplied by s and divided by it again; as one step it is only masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from onnxq.training.rules import Tape
from onnxq.training.rules_elementwise import mask

RESIDUE = ".residue"
"""How the name of a residue input ends."""


@dataclass(frozen=True)
class FakeQuant:
    """Names in one chain ``y = d · s``, ``d = c + residue``, ``c = Clip(u)``, ``u = x / s``."""

    x: str
    s: str
    u: str
    c: str
    d: str


def find_pairs(graph: onnx.GraphProto) -> dict[str, FakeQuant]:
    """The chains whose inner values nothing else reads, by the name of ``y``."""
    made = {name: node for node in graph.node for name in node.output}
    readers = {v.name: 2 for v in graph.output}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    found = {}
    for node in graph.node:
        steps = [node]
        for op_type in ("Mul", "Add", "Clip", "Div"):
            step = steps[-1]
            if step.op_type != op_type or (len(steps) > 1 and readers[step.output[0]] != 1):
                break
            if op_type == "Div":
                y, add, clip, div = steps
                if div.input[1] == y.input[1] and add.input[1].endswith(RESIDUE):
                    found[y.output[0]] = FakeQuant(
                        div.input[0], y.input[1], div.output[0], clip.output[0], add.output[0]
                    )
                break
            if step.input[0] not in made:
                break
            steps.append(made[step.input[0]])
    return found


def fake_quant(tape: Tape, pair: FakeQuant, gradient: str, wanted: Sequence[str]) -> list[tuple[str, str]]:
    """x: the gradient where nothing was clipped (all of it inside the bounds, the bounds included). s: that times
    ``d - u`` inside and ``d`` outside, summed over the values that share a scale: Esser et al., Learned Step Size
    Quantization, 2020, equation 3.
    """
    shape = tape.shape(pair.u)
    inside = mask(tape, pair.u, pair.c)
    found = []
    if pair.x in wanted:
        found.append((pair.x, tape.reduced_to(tape.op("Mul", gradient, inside), shape, tape.shape(pair.x))))
    if pair.s in wanted:
        step = tape.op("Sub", pair.d, tape.op("Mul", inside, pair.u))
        found.append((pair.s, tape.reduced_to(tape.op("Mul", gradient, step), shape, tape.shape(pair.s))))
    return found
