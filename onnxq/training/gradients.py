"""The derivative graph: reverse mode over a differentiable twin, as an ONNX model that stock onnxruntime runs.

One walk backwards over the nodes; each node between a parameter and the loss hands the gradient of its outputs to its
inputs, by an own rule (`rules.RULES`) or by onnx-ad (`rules_borrowed`).

A *residue* is a graph input ``r``, its name ending in `RESIDUE`, that is added to a clipped value ``c``: the rounding
that the straight-through estimator does not differentiate. It stands for ``Round(c) - c``; ``c + (Round(c) - c)`` is
exactly ``Round(c)`` in floating point, so the addition becomes that Round and the input disappears.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import helper

from onnxq.errors import OptionError, UnsupportedError
from onnxq.training import rules_conv, rules_elementwise, rules_products, rules_windows  # noqa: F401
from onnxq.training.rules import RULES, NoGradient, Tape
from onnxq.training.rules_blocked import DOMAIN
from onnxq.training.rules_borrowed import borrowed, differentiable, onnx_ad, reads
from onnxq.training.rules_pairs import RESIDUE, FakeQuant, fake_quant, find_pairs
from onnxq.training.slim import merged, slim

__all__ = ["RESIDUE", "derivative", "residues", "settle"]

SHOWN = 20
"""Refused nodes listed by name before the message says how many more there are."""


def derivative(twin: onnx.ModelProto, parameters: Sequence[str], loss: str) -> onnx.ModelProto:
    """The model that computes the loss and its gradient.

    Args:
        twin: A model of static shapes; left as it is. Its residue inputs are replaced by what they stand for.
        parameters: Graph inputs to differentiate, of a floating-point type.
        loss: Graph output of one element.

    Returns:
        A model with the twin's inputs (without the residues) and outputs, and behind them one output ``grad.<name>`` of
        the parameter's own shape and type for each parameter, in the order given. A parameter that does not reach the
        loss has gradient zero.

    Raises:
        UnsupportedError: Nodes between a parameter and the loss have no gradient; all of them are named.
        OptionError: A parameter or the loss is not in the graph, or is not of a floating-point type.
        CapabilityError: onnx-ad is not installed.
    """
    onnx_ad()
    model = onnx.shape_inference.infer_shapes(merged(twin), data_prop=True)
    graph = model.graph
    tape = Tape(graph, opset_of(model))
    _check(tape, graph, parameters, loss)
    gradients = _walk(tape, graph, parameters, loss)
    for name in parameters:
        result = gradients.get(name) or _zeros(tape, name)
        tape.nodes.append(helper.make_node("Identity", [result], [f"grad.{name}"]))
        graph.output.append(helper.make_tensor_value_info(f"grad.{name}", tape.type(name), tape.shape(name)))
    if any(node.domain == DOMAIN for node in tape.nodes):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    graph.node.extend(tape.nodes)
    graph.initializer.extend(tape.initializers)
    graph.ClearField("value_info")
    return slim(settle(model))


def settle(twin: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the twin with every ``Add(c, residue)`` made ``Round(c)`` and the residue inputs removed."""
    model = onnx.ModelProto()
    model.CopyFrom(twin)
    found = residues(model.graph)
    for node in model.graph.node:
        if node.op_type == "Add" and node.input[1] in found:
            del node.input[1:]
            node.op_type = "Round"
    kept = [value for value in model.graph.input if value.name not in found]
    model.graph.ClearField("input")
    model.graph.input.extend(kept)
    return model


def residues(graph: onnx.GraphProto) -> set[str]:
    """Names of the residue inputs."""
    return {value.name for value in graph.input if value.name.endswith(RESIDUE)}


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the default domain."""
    return max(int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx"))


def _check(tape: Tape, graph: onnx.GraphProto, parameters: Sequence[str], loss: str) -> None:
    inputs, outputs = {v.name for v in graph.input}, {v.name for v in graph.output}
    for name in parameters:
        if name not in inputs:
            raise OptionError(f"parameter {name!r} is not a graph input")
        if not differentiable(tape, name):
            raise OptionError(f"parameter {name!r} is not of a floating-point type")
    if loss not in outputs or not differentiable(tape, loss):
        raise OptionError(f"the loss {loss!r} is not a graph output of a floating-point type")


def _walk(tape: Tape, graph: onnx.GraphProto, parameters: Sequence[str], loss: str) -> dict[str, str]:
    """Gradients of the values no node makes, by name; every refused node is in the one error."""
    nodes, pairs = list(graph.node), find_pairs(graph)
    depends = _downstream(tape, nodes, parameters)
    pending: dict[str, list[str]] = {}
    refused: list[str] = []
    pending[loss] = [_full(tape, loss, 1.0)]
    for node in reversed(nodes):
        read = [name for name in reads(node) if name in depends]
        if not read or not any(name in pending for name in node.output):
            continue
        gradients = {name: _total(tape, pending.pop(name)) for name in node.output if name in pending}
        try:
            pair = pairs.get(node.output[0])
            found = (
                _contributions(tape, node, gradients, read)
                if pair is None
                else _through(tape, pair, gradients, depends)
            )
        except NoGradient as reason:
            refused.append(f"{node.op_type} {node.name or node.output[0]!r}: {reason}")
            found = [(name, name) for name in read]  # any value of that shape: the walk only goes on to name the rest
        for name, gradient in found:
            pending.setdefault(name, []).append(gradient)
    if refused:
        more = f"\n  and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        listed = "".join(f"\n  {line}" for line in refused[:SHOWN])
        raise UnsupportedError(
            f"{len(refused)} node(s) between the parameters and the loss have no gradient:{listed}{more}\n"
            "freeze the parameters in front of them, or replace the ops"
        )
    return {name: _total(tape, parts) for name, parts in pending.items()}


def _contributions(
    tape: Tape, node: onnx.NodeProto, gradients: dict[str, str], read: list[str]
) -> Iterable[tuple[str, str]]:
    own = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    parts = own(tape, node, gradients[node.output[0]], [name in read for name in node.input]) if own else None
    if parts is None:
        return borrowed(tape, node, gradients, read, reads(node)).items()
    return [(n, part) for n, part in zip(node.input, parts, strict=False) if part is not None]


def _through(tape: Tape, pair: FakeQuant, gradients: dict[str, str], depends: set[str]) -> list[tuple[str, str]]:
    (gradient,) = gradients.values()
    return fake_quant(tape, pair, gradient, [name for name in (pair.x, pair.s) if name in depends])


def _downstream(tape: Tape, nodes: list[onnx.NodeProto], parameters: Sequence[str]) -> set[str]:
    """Floating-point values that depend on a parameter, the parameters included, and quantized ones."""
    found = set(parameters)
    for node in nodes:
        if not found.isdisjoint(reads(node)):
            quantized = node.op_type == "QuantizeLinear"
            found.update(name for name in node.output if name and (quantized or differentiable(tape, name)))
    return found


def _total(tape: Tape, parts: list[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return tape.op("Add" if len(parts) == 2 else "Sum", *parts)


def _full(tape: Tape, name: str, value: float) -> str:
    """A constant of the value's shape and type."""
    one = tape.number(value, name)
    shape = tape.shape(name)
    return tape.op("Expand", one, tape.ints(shape)) if shape else one


def _zeros(tape: Tape, name: str) -> str:
    return _full(tape, name, 0.0)
