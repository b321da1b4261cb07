"""Read-only helpers over `onnx_ir` that every pass and rule shares: traversal, uses, constants, attributes, shapes.

All of them cost what they touch: nothing here scans the model per call, except the functions that take a model.
Uses inside If/Loop/Scan bodies are uses of the outer value like any other (`Value.uses` holds them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.facts import Edge

Array = np.ndarray[Any, Any]

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
_DATA = {"value_int": ir.DataType.INT64, "value_ints": ir.DataType.INT64} | {
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
}


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node's attributes (If branches, Loop and Scan bodies), in attribute order."""
    found: list[ir.Graph] = []
    for attr in node.attributes.data.values():
        kind = attr.type
        if kind is _GRAPH and not attr.is_ref():
            found.append(attr.as_graph())
        elif kind is _GRAPHS and not attr.is_ref():
            found.extend(attr.as_graphs())
    return found


def nested_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph and every graph inside it, outer before inner, in node order."""
    yield graph
    for node in graph:
        for body in bodies(node):
            yield from nested_graphs(body)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Main graph, its subgraphs at every level, then the bodies of local functions and their subgraphs."""
    yield from nested_graphs(model.graph)
    for function in model.functions.values():
        yield from nested_graphs(function.graph)


def roots(model: ir.Model) -> list[tuple[ir.Graph, MutableMapping[str, int]]]:
    """Main graph and bodies of local functions, each with the opsets that hold in it and in graphs inside it."""
    return [(model.graph, model.opset_imports), *((f.graph, f.opset_imports) for f in model.functions.values())]


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of `all_graphs`, graph by graph; the nodes of one graph are copied first, so edits are safe."""
    for graph in all_graphs(model):
        yield from tuple(graph)


def graph_of(value: ir.Value) -> ir.Graph:
    """The graph that defines a value."""
    graph = value.graph
    if graph is None:
        raise ValueError(f"value '{value.name}' belongs to no graph")
    return graph


def onnx_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether this is a node of the standard domain with one of these op types."""
    return node is not None and node.domain == "" and node.op_type in op_types


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor behind an initializer or a Constant node, without reading its data; None for anything else.

    An initializer that is also a graph input is only a default the caller may override, so it is not a constant.
    """
    if value is None or value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    node = value.producer()
    return tensor_of_constant(node) if node is not None and onnx_op(node, "Constant") else None


def tensor_of_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds; None for sparse values and for attributes that a function call fills in."""
    if len(node.attributes) != 1:
        return None
    (attr,) = node.attributes.values()
    if attr.is_ref():
        return None
    if attr.name == "value":
        return attr.as_tensor()
    if attr.name in _DATA:
        return ir.tensor(attr.value, dtype=_DATA[attr.name])
    if attr.name == "value_string":
        return ir.StringTensor(np.array(attr.as_string().encode(), dtype=object))
    if attr.name == "value_strings":
        return ir.StringTensor(np.array([text.encode() for text in attr.as_strings()], dtype=object))
    return None


def nbytes(tensor: ir.TensorProtocol) -> int:
    """Bytes of a tensor's data, packed; three times as fast as its own ``nbytes``, and also told for strings."""
    if tensor.dtype is ir.DataType.STRING:
        return sum(map(len, tensor.numpy().flat))
    return -(-tensor.dtype.bitwidth * math.prod(tensor.shape.dims) // 8)  # type: ignore[arg-type]


def constant(value: ir.Value | None) -> Array | None:
    """The array behind an initializer or a Constant node (looked through nothing), else None."""
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def is_constant(value: ir.Value | None) -> bool:
    """Whether `constant` would give an array."""
    return constant_tensor(value) is not None


def attr_int(node: ir.Node, name: str, default: int) -> int:
    """An INT attribute, or the default where it is absent."""
    return node.attributes[name].as_int() if name in node.attributes else default


def attr_ints(node: ir.Node, name: str, default: Sequence[int] | None = None) -> list[int] | None:
    """An INTS attribute as a list, or the default where it is absent."""
    if name in node.attributes:
        return list(node.attributes[name].as_ints())
    return None if default is None else list(default)


def attr_float(node: ir.Node, name: str, default: float) -> float:
    """A FLOAT attribute, or the default where it is absent."""
    return node.attributes[name].as_float() if name in node.attributes else default


def attr_str(node: ir.Node, name: str, default: str) -> str:
    """A STRING attribute, or the default where it is absent."""
    return node.attributes[name].as_string() if name in node.attributes else default


def dims_of(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The known shape, None for each dim that is symbolic, unknown or negative; None without a shape."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) and d >= 0 else None for d in value.shape)


def uses(value: ir.Value) -> list[Edge]:
    """Every use as a node input, in all scopes, in the order they were made. Graph outputs are not among them."""
    return [Edge(node, index) for node, index in value.uses()]


def only_use(value: ir.Value) -> Edge | None:
    """The single use of a value that is not a graph output, else None."""
    if value.is_graph_output() or len(value.uses()) != 1:
        return None
    return uses(value)[0]
