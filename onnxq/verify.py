"""Is a model valid? Structure by object, then the onnx checker by name; weights are neither read nor copied."""

from __future__ import annotations

import hashlib

import onnx_ir as ir
from onnx import ModelProto

from onnxq.look import bodies

SMALL = 1024
"""Initializers up to this many bytes go to the checker; larger ones are only declared."""


def verify(model: ir.Model) -> tuple[str | None, bytes]:
    """What is wrong with a model (None if nothing is), and its `fingerprint`.

    Every input of a node, also one captured from outside a body, must be an input, an initializer or an output of an
    earlier node that is really in the graph; graph outputs likewise. Then `onnx.checker` must accept names, types and
    attributes.
    """
    import onnx

    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        found = _dangling(graph, set())
        if found:
            return found, b""
    message = weight_free(model)
    try:
        onnx.checker.check_model(message)
    except (onnx.checker.ValidationError, ValueError) as error:
        return " ".join(str(error).split()), b""
    return None, fingerprint(message)


def interface(model: ir.Model) -> tuple[tuple[str, ...], ...]:
    """Names of the required inputs and of the outputs, in order."""
    graph = model.graph
    inputs = tuple(v.name or "" for v in graph.inputs if v.name not in graph.initializers)
    return inputs, tuple(v.name or "" for v in graph.outputs)


def fingerprint(message: ModelProto) -> bytes:
    """A digest of the graph and its small constants; recorded shapes and metadata do not count.

    Args:
        message: What `weight_free` makes of a model.
    """
    bare = ModelProto()
    bare.CopyFrom(message)
    bare.ClearField("metadata_props")
    bare.graph.ClearField("value_info")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()


def weight_free(model: ir.Model) -> ModelProto:
    """A message with the large initializers of the main graph turned into inputs; the model stays as it is."""
    copy = model.clone()
    graph = copy.graph
    for name, value in tuple(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > SMALL:
            value.type = value.type or ir.TensorType(tensor.dtype)
            value.shape = value.shape or ir.Shape(tensor.shape.numpy())
            del graph.initializers[name]
            if not value.is_graph_input():
                graph.inputs.append(value)
    return ir.to_proto(copy)


def _dangling(graph: ir.Graph, known: set[ir.Value]) -> str | None:
    own = [*graph.inputs, *graph.initializers.values()]
    known.update(own)
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                return f"node '{node.name}' ({node.op_type}) reads '{value.name}', which {_why(value)}"
        for body in bodies(node):
            found = _dangling(body, known)
            if found:
                return found
        own += node.outputs
        known.update(node.outputs)
    for value in graph.outputs:
        if value not in known:
            return f"output '{value.name}' of graph '{graph.name}' {_why(value)}"
    known.difference_update(own)
    return None


def _why(value: ir.Value) -> str:
    node = value.producer()
    if node is None:
        return "is no input or initializer of a graph around it"
    if node.graph is None:
        return f"comes from a node that was removed: '{node.name}' ({node.op_type})"
    return f"is made later, or in another graph, by '{node.name}' ({node.op_type})"
