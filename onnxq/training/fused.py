"""Pairs of a finished training graph on the kernels of QuantizeLinear and DequantizeLinear.

The arithmetic that a gradient is written for, Div, Clip, Round and Mul, takes 2.7 times as long as QuantizeLinear and
DequantizeLinear, which compute the same (4.8 M values, one thread: 49 ms and 18 ms), and keeps what was divided and
what was clipped until the gradient needs it. So where a scale is not learned the pair comes back, and the mask of the
gradient, "nothing was clipped", is asked of the value itself: ``Equal(x, Clip(x, lo * s, hi * s))``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, remove_dead
from onnxq.look import Array, constant, onnx_op

_TYPES: dict[int, tuple[type, int]] = {255: (np.uint8, 10), 65535: (np.uint16, 21)}
"""By the number of steps: a type that holds them, and the first opset whose QuantizeLinear writes it."""


@dataclass(frozen=True)
class _Chain:
    """``y = d * s``, ``d = Round(c)``, ``c = Clip(u)``, ``u = x / s`` with a constant scalar scale.

    Attributes:
        x: What is quantized.
        scale: The scale.
        low: Lower bound of c; rounded, the smallest integer without its zero point.
        high: Upper bound of c.
        muls: The nodes that make y.
        masks: The nodes that compare u and c.
        clip: The node that makes c.
    """

    x: ir.Value
    scale: ir.Value
    low: float
    high: float
    muls: tuple[ir.Node, ...]
    masks: tuple[ir.Node, ...]
    clip: ir.Node


def fused(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with pairs of one constant scale and 8 or 16 bits as nodes; for sessions with true semantics."""
    model = ir.from_proto(proto)
    graph, namer = model.graph, Namer(model)
    zeros: dict[tuple[type, int], ir.Value] = {}
    for chain in list(_chains(model)):
        kind, _ = _TYPES[round(chain.high) - round(chain.low)]
        key = (kind, -round(chain.low))
        if key not in zeros:
            zeros[key] = add_initializer(graph, "zero_point", np.asarray(-round(chain.low)).astype(kind), namer)
        parameters = [chain.scale, zeros[key]]
        q = _put(graph, chain.muls[0], "QuantizeLinear", [chain.x, *parameters], namer)
        for mul in chain.muls:
            y = _put(graph, mul, "DequantizeLinear", [q, *parameters], namer)
            old = mul.outputs[0]
            y.name, old.name = old.name, namer("replaced")
            old.replace_all_uses_with(y, replace_graph_outputs=True)
        scale = constant(chain.scale)
        assert scale is not None
        for mask in chain.masks:
            bounds = [add_initializer(graph, "bound", np.float32(n) * scale, namer) for n in (chain.low, chain.high)]
            inside = _put(graph, mask, "Clip", [chain.x, *bounds], namer)
            mask.replace_input_with(0, chain.x)
            mask.replace_input_with(1, inside)
    remove_dead(model)
    return ir.to_proto(model)


def _put(graph: ir.Graph, before: ir.Node, op_type: str, inputs: list[ir.Value], namer: Namer) -> ir.Value:
    node = ir.Node("", op_type, inputs, name=namer(op_type))
    node.outputs[0].name = namer(f"{op_type}.out")
    graph.insert_before(before, node)
    return node.outputs[0]


def _chains(model: ir.Model) -> Iterator[_Chain]:
    opset = model.opset_imports.get("", 0)
    for clip in model.graph:
        if not onnx_op(clip, "Clip") or len(clip.inputs) != 3:
            continue
        u, c = clip.inputs[0], clip.outputs[0]
        div = u.producer() if u is not None else None
        rounds = [node for node in c.consumers() if onnx_op(node, "Round")]
        if div is None or u is None or not onnx_op(div, "Div") or len(rounds) != 1:
            continue
        d, (x, scale) = rounds[0].outputs[0], div.inputs
        low, high, step = (_number(v) for v in (clip.inputs[1], clip.inputs[2], scale))
        if x is None or scale is None or low is None or high is None or step is None:
            continue
        masks = [node for node in c.consumers() if node is not rounds[0]]
        readers = [*masks, *(node for node in u.consumers() if node is not clip)]
        if (
            _TYPES.get(round(high) - round(low), (None, opset + 1))[1] <= opset
            and all(onnx_op(node, "Equal") and set(node.inputs) == {u, c} for node in readers)
            and all(onnx_op(node, "Mul") and node.inputs[1] is scale for node in d.consumers())
            and not any(v.is_graph_output() for v in (u, c, d))
        ):
            yield _Chain(x, scale, low, high, tuple(d.consumers()), tuple(masks), clip)


def _number(value: ir.Value | None) -> float | None:
    """A constant scalar."""
    found: Array | None = constant(value)
    return float(found) if found is not None and found.ndim == 0 else None
