"""Is a model valid? Structure by object, then the onnx checker by name; weights are neither read nor copied."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from onnxq.look import all_graphs, bodies

SMALL = 1024
"""Tensors up to this many bytes go to the checker as they are."""


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
    """A message in which large tensors are empty and say their shape in the doc string; the model stays as it is."""
    copy = model.clone()
    for graph in all_graphs(copy):
        for value in graph.initializers.values():
            if value.const_value is not None and _large(value.const_value):
                value.const_value = _emptied(value.const_value)
        for node in graph:
            for attr in tuple(node.attributes.values()):
                if attr.type == ir.AttributeType.TENSOR and not attr.is_ref() and _large(attr.as_tensor()):
                    node.attributes[attr.name] = ir.AttrTensor(attr.name, _emptied(attr.as_tensor()))
    return ir.to_proto(copy)


def _large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes > SMALL


def _emptied(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    dims = tensor.shape.numpy()
    empty = np.empty((0, *dims[1:]), tensor.dtype.numpy())
    return ir.Tensor(empty, dtype=tensor.dtype, name=tensor.name, doc_string=str(dims))


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
