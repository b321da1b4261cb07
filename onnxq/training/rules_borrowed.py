"""Gradients from onnx-ad, one node at a time.

`onnx_ad.reverse` differentiates a model of that single node; the resulting nodes are spliced into the tape. Working
node by node keeps onnx-ad to its public function, puts its trailing seed axis inside the fragment only, and lets every
node that has no gradient be found before anything runs.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import onnx
from onnx import helper

from onnxq.errors import CapabilityError
from onnxq.training.rules import FLOATS, NoGradient, Tape

PREFIX = "adjoint of "
KNOWN = 4096
"""Initializers of at most this many elements are shown to onnx-ad (axes, shapes, scales); larger ones are inputs."""


def onnx_ad() -> ModuleType:
    """The onnx-ad package.

    Raises:
        CapabilityError: It is not installed.
    """
    try:
        return importlib.import_module("onnx_ad")
    except ImportError as error:
        raise CapabilityError("training needs the package onnx-ad: pip install 'onnxq[qat]'") from error


def borrowed(
    tape: Tape, node: onnx.NodeProto, gradients: dict[str, str], wanted: list[str], reads: list[str]
) -> dict[str, str]:
    """Gradients of the values ``wanted``, emitted on the tape.

    Args:
        tape: Where to emit.
        node: The node.
        gradients: The gradient of each output that has one.
        wanted: Inputs (or captured values) to differentiate.
        reads: All values the node reads, those captured by its subgraphs included.

    Raises:
        NoGradient: onnx-ad refuses the node.
        CapabilityError: onnx-ad is not installed.
    """
    ad = onnx_ad()
    fragment = _fragment(tape, node, reads)
    try:
        result = ad.reverse(fragment, inputs=wanted, outputs=list(gradients), prefix=PREFIX, dim="seed", layout="onnx")
    except (ad.UnsupportedOperator, ad.UnrollTooLarge, ValueError, TypeError, KeyError) as error:
        raise NoGradient(str(error)) from error
    return _splice(tape, node, result.graph, gradients, wanted, reads)


def _fragment(tape: Tape, node: onnx.NodeProto, reads: list[str]) -> onnx.ModelProto:
    """A model of the one node; small constants it reads are initializers, everything else is an input."""
    constants = [t for name in reads if (t := tape.stored(name)) is not None and _elements(t) <= KNOWN]
    inside = {t.name for t in constants}
    inputs = [_typed(tape, name) for name in reads if name not in inside]
    outputs = [_typed(tape, name) for name in node.output if name and tape.type(name)]
    graph = helper.make_graph([node], "fragment", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", tape.opset)])


def _elements(tensor: onnx.TensorProto) -> int:
    total = 1
    for d in tensor.dims:
        total *= d
    return total


def _typed(tape: Tape, name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, tape.type(name), tape.shape(name))


def _splice(
    tape: Tape,
    node: onnx.NodeProto,
    graph: onnx.GraphProto,
    gradients: dict[str, str],
    wanted: list[str],
    reads: list[str],
) -> dict[str, str]:
    """Append the fragment's nodes under fresh names; the node itself is not computed a second time."""
    names = {name: name for name in reads}
    for output, gradient in gradients.items():
        names[PREFIX + output] = tape.op("Unsqueeze", gradient, tape.ints([-1])) if tape.opset >= 13 else tape.op(
            "Unsqueeze", gradient, axes=[len(tape.shape(output))]
        )  # fmt: skip
    for tensor in graph.initializer:
        if tensor.name not in names:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = names[tensor.name] = tape.name("grad/const")
            tape.initializers.append(copy)
    for inner in graph.node:
        if inner.op_type == node.op_type and list(inner.output) == list(node.output):
            names.update({name: name for name in node.output})
            continue
        for name in inner.output:
            if name:
                names[name] = tape.name(f"grad/{inner.op_type}")
        copy_node = onnx.NodeProto()
        copy_node.CopyFrom(inner)
        copy_node.name = ""
        _rename(copy_node, names)
        tape.nodes.append(copy_node)
    return {name: tape.reshape(names[PREFIX + name], tape.shape(name)) for name in wanted}


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Give inputs and outputs their new names, through subgraphs (whose own names onnx-ad keeps apart from ours)."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            for inner in graph.node:
                _rename(inner, names)
            for value in graph.output:
                value.name = names.get(value.name, value.name)


def reads(node: onnx.NodeProto) -> list[str]:
    """What a node reads: its inputs and what its subgraphs capture, each once, in order."""
    found = {name: None for name in node.input if name}
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            found.update(dict.fromkeys(captured(graph)))
    return list(found)


def captured(graph: onnx.GraphProto) -> list[str]:
    """Values of outer scopes that a graph reads, in order."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    found = {name: None for node in graph.node for name in reads(node) if name not in own}
    found.update({v.name: None for v in graph.output if v.name not in own})
    return list(found)


def differentiable(tape: Tape, name: str) -> bool:
    """Whether a value is of a floating-point type."""
    return tape.type(name) in FLOATS
