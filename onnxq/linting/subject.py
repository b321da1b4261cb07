"""What graph rules read: the IR, looked through once, with what nearly every rule asks for.

Nothing here raises because a model is odd: constants that cannot be read are None, and so are shapes nobody knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.biases.uses import BiasUse, bias_uses
from onnxq.diagnostics import Place
from onnxq.errors import OnnxqError
from onnxq.linting.inference import infer
from onnxq.linting.wire import Wire, segment
from onnxq.look import Array, bodies, constant_tensor, dims_of
from onnxq.ops import MICROSOFT
from onnxq.pairs import dtype_of, integer_type
from onnxq.states import DEQUANTIZE, QUANTIZE

if TYPE_CHECKING:
    from onnxq.targets import Target

SMALL = 1 << 20
"""Scales, zero points and biases with more elements than this are not read."""


@cache
def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float type, those of ml_dtypes included."""
    return dtype.kind == "f" or (dtype.kind == "V" and ir.DataType.from_numpy(dtype).is_floating_point())


@dataclass(eq=False, slots=True)
class Linear:
    """A QuantizeLinear or DequantizeLinear with its parameters.

    Attributes:
        node: The node; ``node.domain`` tells onnxruntime's own from ONNX's.
        subject: Where it was found.
        quantizes: Whether it is a QuantizeLinear.
        data: What it reads.
        scale_value: The scale input.
        zero_value: The zero point input; None where it is left out.
        out: What it makes.
        has_axis: Whether ``axis`` is written.
        axis: The ``axis`` attribute, or its default of 1.
        block_size: The ``block_size`` attribute, 0 where there is none.
        dtype: The integer type it writes or reads, as far as known.
    """

    node: ir.Node
    subject: Subject
    quantizes: bool = field(init=False)
    data: ir.Value | None = field(init=False)
    scale_value: ir.Value | None = field(init=False)
    zero_value: ir.Value | None = field(init=False)
    out: ir.Value | None = field(init=False)
    has_axis: bool = field(init=False)
    axis: int = field(init=False)
    block_size: int = field(init=False)
    dtype: ir.DataType | None = field(init=False)

    def __post_init__(self) -> None:
        node, inputs = self.node, (*self.node.inputs, None, None, None)
        attributes = node.attributes.data
        self.quantizes = node.op_type == QUANTIZE
        self.data, self.scale_value, self.zero_value = inputs[:3]
        self.out = node.outputs[0] if node.outputs else None
        self.has_axis = "axis" in attributes
        self.axis, self.block_size = _int(attributes.get("axis"), 1), _int(attributes.get("block_size"), 0)
        self.dtype = integer_type(node) if node.inputs else None
        if self.dtype is None and not self.quantizes:
            self.dtype = self.subject.dtype(self.data)

    @property
    def scale(self) -> Array | None:
        """The scale; None where it is computed, no float, or cannot be read."""
        found = self.subject.constant(self.scale_value)
        return found if found is not None and is_float(found.dtype) else None

    @property
    def zero(self) -> Array | None:
        """The zero point as int64; None where it is left out, computed, no integer, or cannot be read."""
        return self.subject.integers(self.zero_value)

    @property
    def dims(self) -> tuple[int | None, ...] | None:
        """Shape of what it reads, as far as known."""
        return self.subject.dims(self.data)


class Subject:
    """One model.

    Attributes:
        model: The IR.
        wire: The message it was made from, if any. The IR takes parts of it over: do not rely on payloads.
        target: The target asked for, None for ONNX alone.
        paths: Each graph with its path, as in `onnxq.linting.wire.Scope`: main graph first, functions last.
        holders: The node of each body.
    """

    def __init__(self, model: ir.Model, wire: Wire | None = None, target: Target | None = None) -> None:
        self.model, self.wire, self.target = model, wire, target
        self.paths: dict[ir.Graph, str] = {}
        self.holders: dict[ir.Graph, ir.Node] = {}
        self.extents: dict[tuple[ir.Value, int | None], tuple[Array, Array] | None] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        self._integers: dict[ir.Value, Array | None] = {}
        self._dims: dict[ir.Value, tuple[int | None, ...] | None] = {}
        self._by_op: dict[tuple[str, str], list[ir.Node]] = defaultdict(list)
        self._imports: dict[ir.Graph, dict[str, int]] = {}
        self.nodes: list[ir.Node] = []
        self._enter(model.graph, "", dict(model.opset_imports))
        for function in model.functions.values():
            self._enter(function.graph, f"{function.domain}::{function.name}", dict(function.opset_imports))

    def _enter(self, graph: ir.Graph, path: str, imports: dict[str, int]) -> None:
        """Look through a graph and those inside it."""
        self.paths[graph], self._imports[graph] = path, imports
        inner: list[tuple[ir.Graph, str]] = []
        for node in graph:
            self.nodes.append(node)
            self._by_op[(node.domain, node.op_type)].append(node)
            if node.attributes and bodies(node):
                own = segment(node.name or "", [v.name or "" for v in node.outputs], node.op_type)
                for name, body in _named_bodies(node):
                    self.holders[body] = node
                    inner.append((body, f"{path}/{own}/{name}".lstrip("/")))
        for body, where in inner:
            self._enter(body, where, imports)

    def of(self, *op_types: str, domain: str = "") -> list[ir.Node]:
        """All nodes of some op types of one domain, in all graphs."""
        return [node for op_type in op_types for node in self._by_op.get((domain, op_type), ())]

    @cached_property
    def linears(self) -> list[Linear]:
        """Every QuantizeLinear and DequantizeLinear, onnxruntime's own too, in the order of `nodes`."""
        return [Linear(node, self) for node in self.nodes if node.op_type in _LINEAR and node.domain in _DOMAINS]

    @cached_property
    def quantizers(self) -> list[Linear]:
        """Those that quantize."""
        return [one for one in self.linears if one.quantizes]

    @cached_property
    def dequantizers(self) -> list[Linear]:
        """Those that dequantize."""
        return [one for one in self.linears if not one.quantizes]

    @cached_property
    def stored(self) -> list[Linear]:
        """Every DequantizeLinear of a constant: weights and biases."""
        return [one for one in self.dequantizers if constant_tensor(one.data) is not None]

    @cached_property
    def per_axis(self) -> list[tuple[Linear, int]]:
        """Those with a row of several scales, however they lie, and how many there are."""
        rows = ((one, self.dims(one.scale_value)) for one in self.linears if one.scale_value is not None)
        return [(one, dims[0] or 0) for one, dims in rows if dims is not None and len(dims) == 1 and (dims[0] or 0) > 1]

    @cached_property
    def largest_int32(self) -> int:
        """Largest int32 in what is stored for a DequantizeLinear, without sign; all are looked at in one go."""
        rows = [self.constant(one.data) for one in self.stored if one.dtype == ir.DataType.INT32]
        known = [row.ravel() for row in rows if row is not None and row.dtype.kind == "i"]
        flat = np.concatenate(known) if known else np.zeros(1, np.int32)
        return max(int(flat.max(initial=0)), -int(flat.min(initial=0)))

    @cached_property
    def biases(self) -> list[tuple[Linear, BiasUse]]:
        """Each stored bias behind a DequantizeLinear, once for each layer that reads it."""
        return [(one, use) for one in self.stored if one.out is not None for use in bias_uses(one.node)]

    @cached_property
    def linear_of(self) -> dict[ir.Node, Linear]:
        """`linears` by node."""
        return {one.node: one for one in self.linears}

    def opset(self, node: ir.Node, domain: str = "") -> int:
        """The opset of a domain that holds where a node stands; 0 where it is not imported."""
        graph = node.graph
        return self._imports.get(graph, {}).get(domain, 0) if isinstance(graph, ir.Graph) else 0

    def constant(self, value: ir.Value | None) -> Array | None:
        """A small constant; None for what is computed, too large, or cannot be read."""
        if value is None:
            return None
        if value not in self._constants:
            tensor = constant_tensor(value)
            try:
                small = tensor is not None and tensor.size <= SMALL
                self._constants[value] = tensor.numpy() if tensor is not None and small else None
            except (OnnxqError, ValueError, TypeError):
                self._constants[value] = None  # a wire rule says what is wrong with its data
        return self._constants[value]

    def integers(self, value: ir.Value | None) -> Array | None:
        """`constant` as int64; None for floats, too."""
        if value is None:
            return None
        if value not in self._integers:
            found, kind = self.constant(value), self.dtype(value)
            fits = found is not None and kind is not None and kind.is_integer()
            self._integers[value] = found.astype(np.int64) if found is not None and fits else None
        return self._integers[value]

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether a value is an initializer that nobody overrides, or a Constant; its data are not read."""
        return constant_tensor(value) is not None

    def dims(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """The shape that a constant has, that the file declares, or that follows from the operators."""
        if value is None:
            return None
        if value not in self._dims:
            tensor = constant_tensor(value)
            known = tuple(tensor.shape.numpy()) if tensor is not None else dims_of(value)
            self._dims[value] = known if known is not None else self._inferred(value)[1]
        return self._dims[value]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type that a constant has, that the file declares, or that follows from the operators."""
        known = dtype_of(value)
        return known if known is not None or value is None else self._inferred(value)[0]

    def _inferred(self, value: ir.Value) -> Inferred:
        """What follows for a value."""
        return self.inferred.get(value, (None, None))

    @cached_property
    def inferred(self) -> dict[ir.Value, Inferred]:
        """Types of values that follow from the operators, whatever the file declares; empty where they contradict."""
        try:
            found = infer(self.model)
        except Exception:  # onnx raises errors of its own and of C++; what contradicts itself has no types
            return {}
        types: dict[bytes, Inferred] = {}
        inferred = {}
        for value, info in found.items():
            key = info.SerializeToString()
            if key not in types:
                types[key] = _read(info)
            inferred[value] = types[key]
        return inferred

    def place(self, at: ir.Node | ir.Value | Place | None) -> Place:
        """The place of what a finding is about; a node without a name is found by its first output."""
        if at is None or isinstance(at, Place):
            return at or Place()
        graph = at.graph
        path = self.paths.get(graph, "") if isinstance(graph, ir.Graph) else ""
        if isinstance(at, ir.Value):
            node = at.producer()
            return Place(node.name or "" if node else "", node.op_type if node else "", at.name or "", path)
        first = at.outputs[0].name or "" if at.outputs and not at.name else ""
        return Place(at.name or "", at.op_type, first, path)


Inferred = tuple[ir.DataType | None, tuple[int | None, ...] | None]
"""Element type and shape, as far as known; nothing of sequences and the like."""

_LINEAR, _DOMAINS = frozenset({QUANTIZE, DEQUANTIZE}), frozenset({"", MICROSOFT})


def _read(info: onnx.TypeProto) -> Inferred:
    if not info.HasField("tensor_type"):
        return None, None
    kind, shape = info.tensor_type.elem_type, info.tensor_type.shape.dim
    dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in shape)
    return ir.DataType(kind) if kind else None, dims if info.tensor_type.HasField("shape") else None


def _int(attribute: ir.Attr | None, default: int) -> int:
    """An attribute that should be an integer; the default where it is none, or a function call fills it in."""
    fits = attribute is not None and attribute.type is ir.AttributeType.INT and not attribute.is_ref()
    return attribute.as_int() if attribute is not None and fits else default


def _named_bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type is ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from ((name, graph) for graph in attribute.as_graphs())
