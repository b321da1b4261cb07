"""Graph edits over `onnx_ir` that every pass shares: fresh names, initializers, rewiring.

All of them cost what they touch: nothing here scans the model per call, except the functions that take a model.
The read-only half is `onnxq.look`, and what nothing reads goes away in `onnxq.dead`; their names are available here,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from onnxq.dead import detach, remove_dead
from onnxq.facts import Edge
from onnxq.look import (
    Array,
    all_graphs,
    all_nodes,
    attr_float,
    attr_int,
    attr_ints,
    attr_str,
    bodies,
    constant,
    constant_tensor,
    dims_of,
    graph_of,
    is_constant,
    nested_graphs,
    only_use,
    onnx_op,
    tensor_of_constant,
    uses,
)
from onnxq.provenance import inherit

__all__ = [
    "PASS_KEY",
    "Array",
    "Fresh",
    "Namer",
    "Where",
    "add_initializer",
    "all_graphs",
    "all_nodes",
    "attr_float",
    "attr_int",
    "attr_ints",
    "attr_str",
    "become_initializer",
    "bodies",
    "constant",
    "constant_tensor",
    "copy_metadata",
    "detach",
    "detached",
    "dims_of",
    "graph_of",
    "insert_on_edge",
    "is_constant",
    "may_become_output",
    "nested_graphs",
    "only_use",
    "onnx_op",
    "plain_initializers",
    "remove_dead",
    "rename",
    "replace_initializer",
    "replace_uses",
    "take_defaults",
    "tensor_of_constant",
    "uses",
]

Where = Callable[[Edge], bool]
Fresh = Callable[[str], str]
"""A base name in, a name to use out; a `Namer` is one."""

PASS_KEY = "onnxq.pass"


class Namer:
    """Fresh names, unique over nodes, values and initializers of all scopes; the same calls give the same names.

    The model is looked through when the first name is asked for.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def __call__(self, base: str) -> str:
        """``base`` if it is free, else ``base_1``, ``base_2``, …; the name counts as used from now on."""
        if not self._used:
            self._used = _names_of(self._model)
        name = base
        while name in self._used:
            self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{self._next[base]}"
        self._used.add(name)
        return name


def _names_of(model: ir.Model) -> set[str]:
    names = {""}
    for graph in all_graphs(model):
        names.update(v.name or "" for v in graph.inputs)
        names.update(graph.initializers)
        for node in graph:
            names.add(node.name or "")
            names.update([v.name or "" for v in node.outputs])
    return names


def rename(value: ir.Value, name: str) -> None:
    """Rename a value without writing the name into the caller's message, which its tensor may view."""
    if value.const_value is not None:
        value.const_value = detached(value.const_value)
    value.name = name


def detached(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same data under a name of its own: `onnx_ir` writes a value's name into the message its tensor views."""
    if type(tensor) is not ir.serde.TensorProtoTensor:  # `isinstance` takes 1 us on classes that implement a protocol
        return tensor
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), name=tensor.name)
    view = tensor
    return ir.LazyTensor(
        lambda: view,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def plain_initializers(model: ir.Model) -> bool:
    """Bring IR version 3, which lists every constant among the inputs, to version 4, which does not.

    Call it before adding an initializer. From version 4 on an input with an initializer is a default that the caller
    may override; what version 3 lists are constants, so they leave the inputs.

    Returns:
        Whether the model was older than IR version 4.
    """
    if model.ir_version >= 4:
        return False
    model.ir_version = 4
    take_defaults(model)
    return True


def take_defaults(model: ir.Model, only: Collection[ir.Value] | None = None) -> list[ir.Value]:
    """Take the initializers of the main graph, or ``only`` some, out of its inputs; returns them."""
    graph = model.graph
    taken = [v for v in graph.inputs if v.is_initializer() and (only is None or v in only)]
    if taken:
        kept = [v for v in graph.inputs if v not in taken]
        graph.inputs.clear()
        graph.inputs.extend(kept)
    return taken


def add_initializer(graph: ir.Graph, name: str, data: Array | ir.TensorProtocol, namer: Namer) -> ir.Value:
    """Put a constant into a graph under a fresh name derived from ``name``."""
    value = _initializer(namer(name), data)
    graph.initializers.add(value)
    return value


def become_initializer(output: ir.Value, data: Array | ir.TensorProtocol) -> ir.Value:
    """Let an initializer of the same name, in the same graph, stand in for what a node makes.

    The node is left without uses of that output; remove it. Not for graph outputs, nor in the body of a local function,
    which cannot hold initializers.
    """
    value = _initializer(output.name or "constant", data)
    value.metadata_props.update(output.metadata_props)
    value.doc_string = output.doc_string
    output.replace_all_uses_with(value)
    graph_of(output).initializers.add(value)
    return value


def replace_initializer(
    value: ir.Value, data: Array | ir.TensorProtocol, namer: Namer, where: Where | None = None
) -> ir.Value:
    """Give the uses of an initializer or Constant output (all, or those that ``where`` accepts) another tensor.

    The new value takes the old one's name and place when nothing else holds on to the old one; else the old one stays
    and the new one gets a fresh name. It is always a new `ir.Value`: type and shape follow the new tensor.
    """
    graph = graph_of(value)
    chosen = [edge for edge in uses(value) if where is None or where(edge)]
    stays = not value.is_initializer() or value.is_graph_input() or value.is_graph_output()
    stays = stays or len(chosen) < len(value.uses())
    new = _initializer(namer(value.name or "constant") if stays else value.name or "constant", data)
    new.metadata_props.update(value.metadata_props)
    new.doc_string = value.doc_string
    graph.initializers[cast("str", new.name)] = new
    for edge in chosen:
        edge.node.replace_input_with(edge.index, new)
    return new


def _initializer(name: str, data: Array | ir.TensorProtocol) -> ir.Value:
    # `ir.tensor` would ask twice whether an array fits a protocol, which costs six times the rest.
    tensor = ir.Tensor(np.asarray(data)) if isinstance(data, (np.ndarray, np.generic)) else detached(data)
    tensor.name = name
    shape = cast("ir.Shape", tensor.shape)
    shape.freeze()  # shared, as the reader of `onnx_ir` does
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)


def insert_on_edge(edge: Edge, chain: Sequence[ir.Node]) -> None:
    """Put nodes in front of one use: the last node's first output takes the edge.

    The first node should already read ``edge.value``. Other uses of the value keep it.
    """
    graph = edge.node.graph
    if graph is None or not chain:
        raise ValueError("insert_on_edge needs a node that is in a graph, and at least one node to insert")
    graph.insert_before(edge.node, chain)
    edge.node.replace_input_with(edge.index, chain[-1].outputs[0])


def may_become_output(new: ir.Value, graph: ir.Graph) -> bool:
    """Whether a value can take over an output of ``graph``: a node of that very graph makes it, and it is none yet."""
    node = new.producer()
    return node is not None and node.graph is graph and not new.is_graph_output()


def replace_uses(value: ir.Value, new: ir.Value, namer: Fresh, where: Where | None = None) -> None:
    """Let ``new`` stand in for ``value``: at all uses in all scopes, or at those that ``where`` accepts.

    Without ``where`` graph outputs move too, and keep name, type and shape: ``new`` takes them over where it can
    (`may_become_output`); else an Identity carries it to the output. Then ``new`` also counts as what ``value`` stood
    for (`onnxq.provenance`).
    """
    if where is None:
        inherit(new, value)
    for edge in uses(value):
        if where is None or where(edge):
            edge.node.replace_input_with(edge.index, new)
    if where is not None or not value.is_graph_output():
        return
    graph = graph_of(value)
    if not may_become_output(new, graph):
        carrier = ir.node("Identity", [new], name=namer(f"{value.name}_identity"))
        graph.append(carrier)
        new = carrier.outputs[0]
    old_name, value.name = value.name, new.name or namer(f"{value.name}_replaced")
    new.name = old_name
    new.type, new.shape = value.type or new.type, value.shape or new.shape
    new.metadata_props.update(value.metadata_props)
    for i, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[i] = new


def copy_metadata(new: ir.Node, old: ir.Node | Iterable[ir.Node], pass_name: str) -> None:
    """Carry metadata and doc string of the replaced node(s) over, earlier ones first; note which pass made the node."""
    for node in (old,) if isinstance(old, ir.Node) else old:
        for key, text in node.metadata_props.items():
            new.metadata_props.setdefault(key, text)
        new.doc_string = new.doc_string or node.doc_string
    new.metadata_props[PASS_KEY] = pass_name
