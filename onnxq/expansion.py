"""How much work a file makes for `onnx.shape_inference`, before it starts; native code cannot be stopped.

Two things grow out of all proportion to the file. A local function is looked through anew at every call, so functions
that call others twice cost 2^depth. And inference carries shapes as data: a Concat of a shape with itself doubles them,
forty in a row make 2^40 numbers. What is counted here is an upper bound of both, in one walk that takes each function
once: the work of a call, and the length of what it makes, are linear in the length of the data it is given.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onnxq.errors import UnsupportedError
from onnxq.look import bodies, tensor_of_constant

_LIMIT, _A_NODE = 300_000, 100
"""Steps (a node of a called function, a number of propagated data) that any file may take, and more for each node."""

_DEPTH = 100
"""Calls within calls; versions of onnx that do not count them overflow the stack."""

_SHORT = 64
"""Length of data that costs nothing extra, and that a shape of unknown rank counts as."""

# Those whose output onnx propagates as data (PartialDataPropagationFunction in onnx/defs), and those that hand on.
_KEEP = frozenset({"Add", "Cast", "Concat", "Div", "Gather", "Identity", "If", "Mul", "Reshape", "Slice", "Squeeze",
                   "Sub", "Unsqueeze"})  # fmt: skip


class _Line(NamedTuple):
    """``slope * length of the inputs + base``, both cut off where it is too much anyway."""

    slope: int
    base: int

    def plus(self, other: _Line) -> _Line:
        return _Line(min(self.slope + other.slope, _MUCH), min(self.base + other.base, _MUCH))

    def of(self, inner: _Line) -> _Line:
        """This line, of a length that is itself a line."""
        return _Line(min(self.slope * inner.slope, _MUCH), min(self.slope * inner.base + self.base, _MUCH))


_MUCH = 1 << 62
_NOTHING, _STEP, _GIVEN = _Line(0, 0), _Line(0, 1), _Line(1, 0)


class _Cost(NamedTuple):
    work: _Line
    length: _Line


def refuse_explosion(model: ir.Model) -> None:
    """Refuse to infer shapes of a model that would take far more steps than it has nodes.

    Raises:
        UnsupportedError: Says which of its functions call themselves, or how many steps it would take.
    """
    count = _Count(model)
    nodes = len(model.graph) + sum(len(f.graph) for f in model.functions.values())
    work = count.graph(model.graph, {}, 0).work.base
    if work > _LIMIT + _A_NODE * nodes:
        raise UnsupportedError(f"inferring its shapes would take {work:.0e} steps, and it has {nodes} nodes")


class _Count:
    """Walks over a model; functions are walked once, from those that call no other on."""

    def __init__(self, model: ir.Model) -> None:
        self.functions = model.functions
        self.known: dict[ir.OperatorIdentifier, _Cost] = {}
        self.open: list[ir.OperatorIdentifier] = []

    def graph(self, graph: ir.Graph, lengths: dict[ir.Value, _Line], step: int) -> _Cost:
        """Work in a graph, where each node costs so many steps by itself, and the longest data that it gives out.

        Args:
            graph: A graph, or the body of a function.
            lengths: Of the data of its inputs and of what it sees around it; extended.
            step: Steps that a node takes.
        """
        work = _NOTHING
        for node in graph:
            work = work.plus(self._node(node, lengths, step))
        given = [lengths[v] for v in graph.outputs if v in lengths]
        return _Cost(work, _longest(given))

    def _node(self, node: ir.Node, lengths: dict[ir.Value, _Line], step: int) -> _Line:
        """Work of a node; notes the lengths of what it makes."""
        work, longest = _Line(0, step), None
        if self.functions and (called := node.op_identifier()) in self.functions:
            cost = self._function(called)
            given = _longest([line for line in _read(node, lengths) if line is not None])
            work, longest = work.plus(cost.work.of(given)), cost.length.of(given)
        elif node.op_type in _KEEP and not node.domain:
            longest = _kept(node, _read(node, lengths))
            work = work.plus(longest) if longest and (longest.slope or longest.base > _SHORT) else work
        elif node.op_type in ("Shape", "Constant") and not node.domain:
            longest = _begun(node)
        for body in bodies(node) if node.attributes else ():
            inner = self.graph(body, lengths, step)
            work, longest = work.plus(inner.work), _longest([inner.length, *([longest] if longest else [])])
        if longest is not None and longest != _NOTHING:
            lengths.update(dict.fromkeys(node.outputs, longest))
        return work

    def _function(self, name: ir.OperatorIdentifier) -> _Cost:
        if name not in self.known:
            if name in self.open or len(self.open) >= _DEPTH:
                what = "itself" if name in self.open else f"more than {_DEPTH} others within each other"
                raise UnsupportedError(f"function '{name[0]}::{name[1]}' calls {what}")
            self.open.append(name)
            function = self.functions[name]
            self.known[name] = self.graph(function.graph, dict.fromkeys(function.inputs, _GIVEN), 1)
            self.open.pop()
        return self.known[name]


def _kept(node: ir.Node, read: list[_Line | None]) -> _Line | None:
    known = [line for line in read if line is not None]
    if node.op_type != "Concat":
        return _longest(known) if known else None
    if len(known) < len(read):
        return None  # data are joined only where all are known
    total = _NOTHING
    for line in known:
        total = total.plus(line)
    return total


def _begun(node: ir.Node) -> _Line | None:
    """Length of the data that a Shape or a Constant of integers begins with."""
    if node.op_type == "Shape":
        shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
        return _Line(0, _SHORT if shape is None else max(len(shape), 1))
    tensor = tensor_of_constant(node)
    return _Line(0, tensor.size) if tensor is not None and _steers(tensor) else None


def _read(node: ir.Node, lengths: dict[ir.Value, _Line]) -> list[_Line | None]:
    """Lengths of the data that inference may know of the inputs; None where it cannot."""
    return [_length(v, lengths) for v in node.inputs if v is not None]


def _length(value: ir.Value, lengths: dict[ir.Value, _Line]) -> _Line | None:
    if value in lengths:
        return lengths[value]
    tensor = value.const_value
    return _Line(0, tensor.size) if tensor is not None and _steers(tensor) else None


def _steers(tensor: ir.TensorProtocol) -> bool:
    return len(tensor.shape) < 2 and tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32)


def _longest(lines: list[_Line]) -> _Line:
    """A line above all of them."""
    return _Line(max((n.slope for n in lines), default=0), max((n.base for n in lines), default=0))
