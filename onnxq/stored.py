"""Stored integers: constants that DequantizeLinear nodes read, and what it takes to give them another element type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.edit import Namer, copy_metadata, replace_initializer
from onnxq.errors import OptionError
from onnxq.facts import Edge
from onnxq.look import all_graphs, all_nodes, constant_tensor, graph_of, onnx_op, uses
from onnxq.pairs import parameter
from onnxq.selectors import resolve
from onnxq.states import DEQUANTIZE, is_q

_TYPES = tuple(ir.DataType[name] for name in ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2"))

Convert = Callable[[ir.TensorProtocol], ir.TensorProtocol]


@dataclass(frozen=True)
class Stored:
    """One constant whose integers are dequantized.

    Attributes:
        value: An initializer or the output of a Constant.
        tensor: Its tensor; not read yet.
        nodes: The DequantizeLinear nodes that read it, perhaps behind carriers.
        carriers: The ops between, which hand the integers on.
        obstacle: Why its type cannot change, in words; ``""`` if it can.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    nodes: tuple[ir.Node, ...]
    carriers: tuple[ir.Node, ...]
    obstacle: str

    def zero_points(self) -> list[Edge]:
        """The zero points of its nodes, as far as they have one."""
        return [Edge(node, 2) for node in self.nodes if parameter(node, 2) is not None]


def stored_integers(model: ir.Model, types: Collection[ir.DataType], through: Collection[str]) -> list[Stored]:
    """The constants of these types that a DequantizeLinear reads, in graph order, in all scopes.

    Args:
        model: The model.
        types: Element types to look for.
        through: Standard ops that may stand between and also take the new type.
    """
    found: dict[ir.Value, None] = {}
    for node in all_nodes(model):
        if is_q(node, DEQUANTIZE):
            behind = constant_behind(node.inputs[0])
            if not isinstance(behind, str) and behind.tensor.dtype in types:
                found[behind.source] = None
    return [_stored(value, through) for value in found]


def selected(items: Sequence[Stored], include: Iterable[str], model: ir.Model) -> list[Stored]:
    """The constants that are meant: by their own names, or by selectors of nodes that read them, dequantized or not.

    A constant that has the other width already may be named, too.

    Raises:
        OptionError: A selector that does not parse, or matches neither constant nor node; the name of a constant that
            no DequantizeLinear reads.
    """
    stored = {item.value.name or "" for item in (*items, *stored_integers(model, _TYPES, ()))}
    names = {name for graph in all_graphs(model) for name in graph.initializers}
    exact = (names | stored) & set(include)
    if odd := exact - stored:
        raise OptionError(f"'{min(odd)}' holds no integers of 8 bits or less that a DequantizeLinear reads")
    nodes = resolve([s for s in include if s not in exact], model)

    def meant(item: Stored) -> bool:
        readers = [edge.node for node in item.nodes for edge in uses(node.outputs[0])]
        return item.value.name in exact or any(node in nodes for node in (*item.nodes, *readers))

    return [item for item in items if meant(item)]


def convert(items: Sequence[Stored], data: Convert, namer: Namer, maker: str) -> None:
    """Put converted tensors in the place of constants and of the zero points of the nodes that read them.

    Everything else of the nodes stays. A zero point that somebody else reads, too, gets a converted copy.
    """
    zero_points: dict[ir.Value, set[Edge]] = {}
    for item in items:
        for edge in item.zero_points():
            zero_points.setdefault(edge.value, set()).add(edge)
        tensor = data(item.tensor)
        _replace(item.value, tensor, set(uses(item.value)), namer, maker)
        for node in item.carriers:
            node.outputs[0].dtype = tensor.dtype
    for value, edges in zero_points.items():
        _replace(value, data(_tensor(value)), edges, namer, maker)


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor


def _stored(value: ir.Value, through: Collection[str]) -> Stored:
    nodes, carriers, obstacle = [], [], ""
    ahead = [value]
    while ahead:
        here = ahead.pop()
        if here.is_graph_output():
            obstacle = f"'{here.name}' is a graph output"
        for node, index in here.uses():
            if index == 0 and is_q(node, DEQUANTIZE):
                nodes.append(node)
            elif index == 0 and onnx_op(node, *through):
                carriers.append(node)
                ahead.append(node.outputs[0])
            else:
                obstacle = f"{node.op_type} '{node.name}' reads it, too"
    if not obstacle and any(constant_tensor(parameter(n, 2)) is None for n in nodes if parameter(n, 2) is not None):
        obstacle = "its zero point is computed at run time"
    return Stored(value, _tensor(value), tuple(nodes), tuple(carriers), obstacle)


def _replace(value: ir.Value, tensor: ir.TensorProtocol, edges: set[Edge], namer: Namer, maker: str) -> None:
    old = _tensor(value)
    tensor.doc_string = old.doc_string
    tensor.metadata_props.update(old.metadata_props)
    if value.is_initializer():
        replace_initializer(value, tensor, namer, edges.__contains__)
        return
    node, graph = value.producer(), graph_of(value)
    assert node is not None and value.name is not None
    new = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=namer(node.name or "Constant"))
    copy_metadata(new, node, maker)
    out = new.outputs[0]
    out.name, out.dtype, out.shape, out.doc_string = namer(value.name), tensor.dtype, value.shape, value.doc_string
    out.metadata_props.update(value.metadata_props)
    graph.insert_after(node, new)
    for edge in edges:
        edge.node.replace_input_with(edge.index, out)
    if not value.uses() and not value.is_graph_output():
        graph.remove(node, safe=True)
        out.name, new.name = value.name, node.name
