"""fold-constants: what depends on constants only is computed once, now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.edit import (
    Array,
    Namer,
    add_initializer,
    attr_int,
    become_initializer,
    bodies,
    constant_tensor,
    dims_of,
    graph_of,
    is_constant,
    nested_graphs,
    plain_initializers,
    remove_dead,
)
from onnxq.evaluate import Kind, function_of, output_kinds, signature
from onnxq.passbase import Context, Pass
from onnxq.wording import plural

_QUANTIZERS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
_KEPT = _QUANTIZERS | _RANDOM | {"Constant", "Dropout"}

_EAGER = 1 << 20  # bytes; larger results are computed whenever they are read, instead of being held
_BLIND = 1 << 16  # bytes of input up to which a node is run although the size of its output is unknown


@dataclass(frozen=True, kw_only=True)
class FoldConstants(Pass):
    """Node with constant inputs only -> initializer of the same name; Shape and Size of static shapes -> initializer.

    Works in all scopes. Values come from onnxruntime's kernels, one node at a time, unoptimised: exactly what the node
    would have made. A result above 1 MiB is not held: it is computed from its inputs whenever it is read, so a
    Transpose of a 100 MB weight costs no memory here.

    Never folded: quantizers (QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear) and so nothing behind them,
    random numbers, nodes with bodies, operators of other domains, nodes that make a graph output. A node whose result
    exceeds the constants it replaces by more than ``max_growth`` bytes and is more than double stays, too: files must
    not blow up (ConstantOfShape, Expand, or the Transpose of a table that is also read as it is). A constant that only
    such nodes read is replaced by all of their results together (the Slices that put a recurrent weight's gates in
    ONNX's order).

    Attributes:
        max_growth: Bytes that one folded node may add to the file.
    """

    name: ClassVar[str] = "fold-constants"

    max_growth: int = 1 << 16

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Fold in topological order, outer scopes first; one note says how many of which op."""
        work = _Work(model, ctx, self.max_growth)
        folded: dict[str, Any] = {}
        for graph in tuple(nested_graphs(model.graph)):
            work.enter(graph)
            for node in tuple(graph):
                if self._fold(node, work):
                    graph.remove(node, safe=True)
                    folded[node.op_type] = folded.get(node.op_type, 0) + 1
        if not folded:
            return False
        plain_initializers(model)
        remove_dead(model)
        listed = ", ".join(f"{count} {op}" for op, count in sorted(folded.items()))
        ctx.note("constants-folded", None, f"nodes that depend on constants only are computed: {listed}", **folded)
        return True

    def _fold(self, node: ir.Node, work: _Work) -> bool:
        """Replace the outputs of a node by initializers if it may be folded."""
        if node.domain != "" or node.op_type in _KEPT:
            return False
        shape = _static_shape(node)
        if shape is not None and not node.outputs[0].is_graph_output():
            become_initializer(node.outputs[0], shape)
            return True
        given = {v: constant_tensor(v) for v in node.inputs if v is not None}
        if not given or any(tensor is None for tensor in given.values()) or bodies(node):
            return False
        if any(v.is_graph_output() for v in node.outputs):
            return work.keep(node, "makes a graph output")
        if work.reuse(node):
            return True
        read = sum(t.nbytes for t in given.values() if t is not None)
        freed = sum(t.nbytes for v, t in given.items() if t is not None and _only_here(v, node))
        kinds = output_kinds(node, work.opset)
        if kinds is None and read > _BLIND:
            return work.keep(node, "the size of its result is unknown", read=read)
        size = None if kinds is None else sum(map(_nbytes, kinds))
        if size is not None and size - freed > max(self.max_growth, freed):
            freed += sum(work.share(v, size) for v in given if not _only_here(v, node))
            if size - freed > max(self.max_growth, freed):
                return work.keep(node, _grows(size, freed), size=size, freed=freed)
        compute = function_of(node, work.opset, kinds[0] if kinds else None)
        if kinds is not None and len(kinds) == 1 and _nbytes(kinds[0]) > _EAGER:
            dtype, dims = kinds[0]
            lazy = ir.LazyTensor(lambda: _tensor(compute()[0]), dtype=dtype, shape=ir.Shape(dims))
            return work.replace(node, [lazy])
        try:
            results = compute()
        except Exception as error:  # no kernel, or data the kernel refuses: the runtime has the last word
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            return work.keep(node, f"onnxruntime cannot compute it: {why}")
        if not all(isinstance(r, np.ndarray | np.generic) and r.dtype != object for r in results):
            return work.keep(node, "its result is no tensor of numbers")
        size = sum(r.nbytes for r in results)
        if size - freed > max(self.max_growth, freed):
            return work.keep(node, _grows(size, freed), size=size, freed=freed)
        return work.replace(node, [_tensor(r) for r in results])


class _Work:
    """What one run remembers: names, depth of scopes, and what was computed from which constants."""

    def __init__(self, model: ir.Model, ctx: Context, max_growth: int) -> None:
        self.opset = model.opset_imports.get("", 0)
        self._max_growth = max_growth
        self._ctx = ctx
        self._namer = Namer(model)
        self._depth: dict[ir.Graph, int] = {}
        self._results: dict[tuple[ir.Graph, object], list[ir.Value | None]] = {}
        self._shares: dict[ir.Value, tuple[int, int] | None] = {}

    def enter(self, graph: ir.Graph) -> None:
        """Note that this graph comes after the ones around it."""
        self._depth[graph] = len(self._depth)

    def keep(self, node: ir.Node, why: str, **numbers: Any) -> bool:
        """Say why a node stays."""
        self._ctx.note("constant-not-folded", node, why, **numbers)
        return False

    def share(self, value: ir.Value, size: int) -> int:
        """The part of a constant's bytes that a result of ``size`` bytes replaces, where all its readers are folded.

        They are if each can be, and all their results together keep the bound; then each keeps it with its share.
        """
        if value not in self._shares:
            self._shares[value] = self._replaced(value)
        found = self._shares[value]
        return 0 if found is None else found[0] * size // found[1]

    def _replaced(self, value: ir.Value) -> tuple[int, int] | None:
        """Bytes of a constant and of all that is computed from it; None if it has to stay or they are too many."""
        tensor = constant_tensor(value)
        if tensor is None or value.is_graph_output():
            return None
        sizes: dict[object, int] = {}
        for node in dict.fromkeys(node for node, _ in value.uses()):
            kept = node.domain != "" or node.op_type in _KEPT or any(v.is_graph_output() for v in node.outputs)
            if kept or bodies(node) or not all(v is None or is_constant(v) for v in node.inputs):
                return None
            kinds = output_kinds(node, self.opset)
            if kinds is None:
                return None
            sizes[self._place(node)] = sum(map(_nbytes, kinds))
        freed, made = tensor.nbytes, sum(sizes.values())
        return None if made - freed > max(self._max_growth, freed) else (freed, max(made, 1))

    def reuse(self, node: ir.Node) -> bool:
        """Let the result of an equal node stand in."""
        values = self._results.get(self._place(node))
        if values is None or len(values) != len(node.outputs):
            return False
        for output, value in zip(node.outputs, values, strict=True):
            if value is not None:
                output.replace_all_uses_with(value)
        return not any(v.uses() for v in node.outputs)

    def replace(self, node: ir.Node, tensors: list[ir.TensorProtocol]) -> bool:
        """Make the results initializers of the graph that equal nodes share."""
        place = self._place(node)
        values: list[ir.Value | None] = []
        for output, tensor in zip(node.outputs, tensors, strict=True):
            if not output.uses():
                values.append(None)
            elif place[0] is node.graph:
                values.append(become_initializer(output, tensor))
            else:
                value = add_initializer(place[0], output.name or node.op_type, tensor, self._namer)
                output.replace_all_uses_with(value)
                values.append(value)
        self._results[place] = values
        return True

    def _place(self, node: ir.Node) -> tuple[ir.Graph, object]:
        """The innermost graph of the constants a node is bound to, which equal nodes see, too; and what it computes."""
        key, bound = signature(node)
        graphs = [graph_of(v) for v in bound]
        assert node.graph is not None
        return max(graphs, key=self._depth.__getitem__) if graphs else node.graph, key


def _static_shape(node: ir.Node) -> Array | None:
    if node.op_type not in ("Shape", "Size") or not node.inputs:
        return None
    dims = dims_of(node.inputs[0])
    if dims is None:
        return None
    if node.op_type == "Shape":
        dims = dims[attr_int(node, "start", 0) : attr_int(node, "end", len(dims))]
    known = [d for d in dims if d is not None]
    if len(known) != len(dims):
        return None
    return np.array(known if node.op_type == "Shape" else math.prod(known), np.int64)


def _only_here(value: ir.Value, node: ir.Node) -> bool:
    return not value.is_graph_output() and all(user is node for user, _ in value.uses())


def _grows(size: int, freed: int) -> str:
    return f"its {plural(size, 'byte')} would replace {plural(freed, 'byte')} of constants"


def _nbytes(kind: Kind) -> int:
    return math.ceil(math.prod(kind[1]) * kind[0].itemsize)


def _tensor(array: Array) -> ir.TensorProtocol:
    return ir.tensor(np.array(array, order="C"))
