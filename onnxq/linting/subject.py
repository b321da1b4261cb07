"""What graph rules read: the IR, looked through once, with what nearly every rule asks for.

Nothing here raises because a model is odd: constants that cannot be read are None, and so are shapes nobody knows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.diagnostics import Place
from onnxq.errors import OnnxqError
from onnxq.look import Array, attr_int, bodies, constant_tensor, dims_of
from onnxq.pairs import integer_type, parameter
from onnxq.skeleton import Skeleton
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

if TYPE_CHECKING:
    from onnxq.linting.wire import Wire
    from onnxq.targets import Target

SMALL = 1 << 20
"""Scales, zero points and biases with more elements than this are not read."""


@dataclass(eq=False)
class Linear:
    """A QuantizeLinear or DequantizeLinear with its parameters.

    Attributes:
        node: The node; ``node.domain`` tells onnxruntime's own from ONNX's.
        subject: Where it was found.
    """

    node: ir.Node
    subject: Subject

    @property
    def quantizes(self) -> bool:
        """Whether it is a QuantizeLinear."""
        return self.node.op_type == QUANTIZE

    @property
    def data(self) -> ir.Value | None:
        """What it reads."""
        return self.node.inputs[0] if self.node.inputs else None

    @property
    def out(self) -> ir.Value | None:
        """What it makes."""
        return self.node.outputs[0] if self.node.outputs else None

    @property
    def scale_value(self) -> ir.Value | None:
        """The scale input."""
        return parameter(self.node, 1)

    @property
    def zero_value(self) -> ir.Value | None:
        """The zero point input; None where it is left out."""
        return parameter(self.node, 2)

    @cached_property
    def scale(self) -> Array | None:
        """The scale; None where it is computed, or cannot be read."""
        return self.subject.constant(self.scale_value)

    @cached_property
    def zero(self) -> Array | None:
        """The zero point as int64; None where it is left out, computed, or cannot be read."""
        found = self.subject.constant(self.zero_value)
        return None if found is None or found.dtype.kind == "f" else found.astype(np.int64)

    @property
    def axis(self) -> int:
        """The ``axis`` attribute, or its default of 1."""
        return attr_int(self.node, "axis", 1)

    @property
    def has_axis(self) -> bool:
        """Whether ``axis`` is written."""
        return "axis" in self.node.attributes

    @property
    def block_size(self) -> int:
        """The ``block_size`` attribute, 0 where there is none."""
        return attr_int(self.node, "block_size", 0)

    @cached_property
    def dtype(self) -> ir.DataType | None:
        """The integer type it writes or reads."""
        return integer_type(self.node) if self.node.inputs else None

    @cached_property
    def dims(self) -> tuple[int | None, ...] | None:
        """Shape of what it reads, as far as known."""
        return self.subject.dims(self.data)


class Subject:
    """One model.

    Attributes:
        model: The IR.
        wire: The message it was made from. The IR takes parts of it over: do not rely on payloads.
        target: The target asked for, None for ONNX alone.
        paths: Each graph with its path, as in `onnxq.linting.wire.Scope`: main graph first, functions last.
    """

    def __init__(self, model: ir.Model, wire: Wire, target: Target | None = None) -> None:
        self.model, self.wire, self.target = model, wire, target
        self.paths: dict[ir.Graph, str] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        self._by_op: dict[tuple[str, str], list[ir.Node]] = defaultdict(list)
        self._imports: dict[ir.Graph, dict[str, int]] = {}
        self.nodes: list[ir.Node] = []
        self._enter(model.graph, "", dict(model.opset_imports))
        for function in model.functions.values():
            self._enter(function.graph, f"{function.domain}::{function.name}", dict(function.opset_imports))

    def _enter(self, graph: ir.Graph, path: str, imports: dict[str, int]) -> None:
        """Look through a graph and those inside it."""
        self.paths[graph], self._imports[graph] = path, imports
        inner = []
        for node in graph:
            self.nodes.append(node)
            self._by_op[(node.domain, node.op_type)].append(node)
            if node.attributes:
                for body in bodies(node):
                    name = next(a.name for a in node.attributes.values() if _holds(a, body))
                    inner.append((body, f"{path}/{node.name or node.op_type}/{name}".lstrip("/")))
        for body, where in inner:
            self._enter(body, where, imports)

    def of(self, *op_types: str, domain: str = "") -> list[ir.Node]:
        """All nodes of some op types of one domain, in all graphs."""
        return [node for op_type in op_types for node in self._by_op.get((domain, op_type), ())]

    @cached_property
    def linears(self) -> list[Linear]:
        """Every QuantizeLinear and DequantizeLinear, onnxruntime's own too."""
        return [Linear(node, self) for node in self.nodes if is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)]

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
            except OnnxqError:
                self._constants[value] = None  # a wire rule says what is wrong with its data
        return self._constants[value]

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether a value is an initializer that nobody overrides, or a Constant; its data are not read."""
        return constant_tensor(value) is not None

    def dims(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """The shape that a constant has, that the file declares, or that follows from the operators."""
        if value is None:
            return None
        tensor = constant_tensor(value)
        if tensor is not None:
            return tuple(tensor.shape.numpy())
        return dims_of(value) or self._inferred_dims.get(value)

    @cached_property
    def inferred(self) -> dict[ir.Value, onnx.TypeProto]:
        """Types of values that follow from the operators, whatever the file declares; empty where they contradict."""
        try:
            return Skeleton(self.model).infer()
        except Exception:  # onnx raises errors of its own and of C++; what contradicts itself has no types
            return {}

    @cached_property
    def _inferred_dims(self) -> dict[ir.Value, tuple[int | None, ...]]:
        shapes = {}
        for value, info in self.inferred.items():
            if info.HasField("tensor_type") and info.tensor_type.HasField("shape"):
                dims = info.tensor_type.shape.dim
                shapes[value] = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
        return shapes

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


def _holds(attribute: ir.Attr, body: ir.Graph) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type is ir.AttributeType.GRAPH:
        return attribute.as_graph() is body
    return attribute.type is ir.AttributeType.GRAPHS and any(g is body for g in attribute.as_graphs())
