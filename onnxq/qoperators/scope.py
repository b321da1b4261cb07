"""Making nodes in one scope of a model, and taking them back: what rewrites of operators are built of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, copy_metadata, replace_uses
from onnxq.look import Array
from onnxq.passbase import Context
from onnxq.provenance import changed

T = TypeVar("T")


@dataclass
class Scope:
    """The main graph with its subgraphs, or a local function with its own.

    Attributes:
        model: The model.
        ctx: Takes notes.
        namer: Gives names.
        maker: Name of the pass, for the metadata of new nodes.
        imports: Opsets of the scope; onnxruntime's domain is added where a pair needs it.
        function: Whether the scope is a local function, which holds no initializers.
        contrib: How many pairs were written in onnxruntime's domain, as the opset has none of their kind.
    """

    model: ir.Model
    ctx: Context
    namer: Namer
    maker: str
    imports: MutableMapping[str, int]
    function: bool = False
    contrib: int = 0
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _read: dict[Hashable, Hashable] = field(default_factory=dict)
    _new: list[ir.Node | ir.Value] = field(default_factory=list)
    _keys: list[tuple[dict[Hashable, Any], Hashable]] = field(default_factory=list)

    @property
    def opset(self) -> int:
        """The opset of ai.onnx in this scope."""
        return self.imports.get("", 0)

    def constant(self, node: ir.Node, name: str, data: Array | np.generic) -> ir.Value:
        """A small constant that a node may read, one for the same content: an initializer, in a function a Constant."""
        data = np.array(data)
        graph = node.graph if self.function else self.model.graph
        assert isinstance(graph, ir.Graph)
        key = (name, data.dtype, data.shape, data.tobytes(), graph)
        return self.once(key, lambda: self._stored(node, graph, name, ir.Tensor(data)))

    def _stored(self, node: ir.Node, graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        if not self.function:
            value = add_initializer(graph, name, tensor, self.namer)
            self._new.append(value)
            return value
        new = self._node(node, "", "Constant", [], [ir.AttrTensor("value", tensor)], f"{name}_Constant")
        out = new.outputs[0]
        out.name, out.type, out.shape = self.namer(name), ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        return out

    def float_op(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] | dict[str, Any] = (),
        *,
        domain: str = "",
        name: str | None = None,
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """A new node with one output, in front of the one that is replaced.

        Args:
            node: The node that is replaced.
            op_type: Operator.
            inputs: Inputs; trailing absent ones are cut.
            attributes: Attributes, or their Python values.
            domain: Domain of the operator.
            name: Base of its name. Without it, it takes the name of ``node`` over: for the op that does its work.
            like: A value of the same shape; without ``name`` the first output of ``node``.
            dtype: Element type of the output; by default that of the first input.
        """
        kept = ir.convenience.convert_attributes(attributes) if isinstance(attributes, dict) else list(attributes)
        new = self._node(node, domain, op_type, inputs, kept, f"{name}_{op_type}" if name else "")
        out, first = new.outputs[0], next((value for value in inputs if value is not None), None)
        if name is None:
            new.name, like = node.name, like or node.outputs[0]
        out.name = self.namer(name or f"{node.outputs[0].name or node.op_type}_float")
        kind = dtype or (first.dtype if first is not None else None)
        out.type = None if kind is None else ir.TensorType(kind)
        out.shape = None if like is None else like.shape
        return out

    def take_over(self, old: ir.Value, made: ir.Value) -> None:
        """A new value stands in for an old one, in all scopes and as a graph output, under its name."""
        was_output, name = old.is_graph_output(), old.name
        made.shape = made.shape if made.shape is not None else old.shape
        replace_uses(old, made, self.namer)
        made.metadata_props.update(old.metadata_props)
        changed(old)
        if not was_output and name:
            old.name, made.name = self.namer(f"{name}_replaced"), name

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """What was made for a key before in this scope, or what ``make`` makes now; one type of result a key."""
        if key not in self._made:
            self._keep(self._made, key, make())
        return cast("T", self._made[key])

    def _node(
        self,
        node: ir.Node,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        name: str,
        outputs: int = 1,
    ) -> ir.Node:
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        new = ir.Node(domain, op_type, given, attributes, name=self.namer(name) if name else None, num_outputs=outputs)
        copy_metadata(new, node, self.maker)
        assert node.graph is not None
        node.graph.insert_before(node, new)
        self._new.append(new)
        return new

    def _keep(self, table: dict[Hashable, Any], key: Hashable, value: Any) -> None:
        table[key] = value
        self._keys.append((table, key))
