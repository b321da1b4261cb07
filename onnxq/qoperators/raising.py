"""From an integer operator to DequantizeLinear -> float operator -> QuantizeLinear: what every rewrite is built of.

A rewrite makes new nodes in front of the old one and lets what they make take over its outputs. `Raiser.rewrite` then
takes the old node away, or, where the rewrite refuses, everything that it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, copy_metadata, detach, graph_of, replace_uses
from onnxq.look import Array, constant, constant_tensor, dims_of, nbytes
from onnxq.ops import MICROSOFT
from onnxq.passbase import Context
from onnxq.provenance import changed
from onnxq.qoperators.parameters import Refused, content, domain_for, fit
from onnxq.states import DEQUANTIZE, QUANTIZE

__all__ = ["Raiser", "Refused", "Rewrite"]


@dataclass
class Raiser:
    """Makes nodes for rewrites in one scope: the main graph with its subgraphs, or a local function with its own.

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
    _made: dict[Hashable, ir.Value] = field(default_factory=dict)
    _read: dict[Hashable, Hashable] = field(default_factory=dict)
    _new: list[ir.Node | ir.Value] = field(default_factory=list)
    _keys: list[tuple[dict[Hashable, Any], Hashable]] = field(default_factory=list)

    @property
    def opset(self) -> int:
        """The opset of ai.onnx in this scope."""
        return self.imports.get("", 0)

    def rewrite(self, node: ir.Node, form: Rewrite) -> str:
        """Let a form rewrite a node; the node goes when nothing reads it any more.

        Returns:
            Why it stays, in words; then nothing has changed. ``""`` when it is done.
        """
        self._new, self._keys = [], []
        contrib = self.contrib
        try:
            why = form(node, self)
        except Refused as refused:
            why = str(refused)
        if why:
            self.contrib = contrib
            self._undo()
        elif node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph = node.graph
            detach(node)
            graph.remove(node)
        return why

    def _undo(self) -> None:
        for table, key in self._keys:
            del table[key]
        for new in reversed(self._new):
            if isinstance(new, ir.Node):
                assert new.graph is not None
                graph = new.graph
                detach(new)
                graph.remove(new)
            else:
                del graph_of(new).initializers[new.name or ""]

    def dequantized(
        self,
        node: ir.Node,
        x: ir.Value,
        scale: ir.Value,
        zero: ir.Value | None,
        axis: int | None = None,
        block_size: int | None = None,
    ) -> ir.Value:
        """``x -> DequantizeLinear`` in front of a node: one for the same tensor, parameters and graph.

        A single constant scale, of whatever shape, becomes a scalar; of constant scale and zero point the one follows
        the shape of the other; a missing zero point is written as 0 where the type of ``x`` is known. A constant ``x``
        that is read with other parameters, too, gets a copy, so that it can be changed by itself.

        Args:
            node: What is replaced.
            x: Integers.
            scale: Scale.
            zero: Zero point; None for 0.
            axis: Axis of a scale with several values, not negative; ignored for a single one.
            block_size: Values in a block along ``axis``.

        Raises:
            Refused: There is no such pair: the opset is too old, or the parameters do not fit.
        """
        scale, zero, axis = self._fit(node, scale, zero, x.dtype, axis, block_size)
        parameters = (content(scale), content(zero), axis, block_size)
        key = (DEQUANTIZE, x, *parameters, node.graph)
        if key not in self._made:
            domain = self._domain(x.dtype, scale, axis, block_size)
            source, base = self._own(node, x, parameters), x.name or node.op_type
            given = {"axis": axis, "block_size": block_size}
            attributes = [ir.AttrInt64(name, value) for name, value in given.items() if value is not None]
            new = self._node(node, domain, DEQUANTIZE, [source, scale, zero], attributes, f"{base}_{DEQUANTIZE}")
            made = new.outputs[0]
            made.name, made.shape = self.namer(f"{base}_dequantized"), x.shape
            made.type = ir.TensorType(scale.dtype or ir.DataType.FLOAT)
            self._keep(self._made, key, made)
        return self._made[key]

    def dequantized_bias(
        self, node: ir.Node, bias: ir.Value, scales: Sequence[ir.Value], axis: int = 0, factor: float = 1.0
    ) -> ir.Value:
        """An int32 bias with the scale that integer kernels give it: the product of the scales of their operands.

        Args:
            node: What is replaced.
            bias: int32.
            scales: Scales of the operands, each a single one or one a channel.
            axis: The bias's channel axis.
            factor: A further factor: alpha of a Gemm.

        Raises:
            Refused: As `dequantized`.
        """
        return self.dequantized(node, bias, self.product(node, scales, f"{bias.name}_scale", factor), None, axis)

    def product(self, node: ir.Node, scales: Sequence[ir.Value], name: str, factor: float = 1.0) -> ir.Value:
        """``factor`` times scales, each a single one or one a channel; of constants here, in float32."""
        arrays = [array for array in map(constant, scales) if array is not None]
        if len(arrays) == len(scales):
            result = np.asarray(factor, arrays[0].dtype)
            for array in arrays:
                result = np.asarray(result * (array.reshape(()) if array.size == 1 else array), arrays[0].dtype)
            return self.constant(node, name, result)
        key = ("product", *map(content, scales), factor, node.graph)
        if key not in self._made:
            factors = list(scales)
            if factor != 1.0:
                factors.insert(0, self.constant(node, f"{name}_factor", np.asarray(factor, np.float32)))
            made = factors[0]
            for other in factors[1:]:
                like = max(
                    (made, other), key=lambda v: (np.prod([d or 2 for d in dims_of(v) or ()]), len(v.shape or ()))
                )
                made = self.float_op(node, "Mul", [made, other], name=name, like=like, dtype=other.dtype)
            self._keep(self._made, key, made)
        return self._made[key]

    def constant(self, node: ir.Node, name: str, data: Array | np.generic) -> ir.Value:
        """A small constant that a node may read, one for the same content: an initializer, in a function a Constant."""
        data = np.array(data)
        graph = node.graph if self.function else self.model.graph
        assert isinstance(graph, ir.Graph)
        key = (name, data.dtype, data.shape, data.tobytes(), graph)
        if key not in self._made:
            self._keep(self._made, key, self._stored(node, graph, name, ir.Tensor(data)))
        return self._made[key]

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
        out, first = new.outputs[0], inputs[0]
        if name is None:
            new.name, like = node.name, like or node.outputs[0]
        out.name = self.namer(name or f"{node.outputs[0].name or node.op_type}_float")
        kind = dtype or (first.dtype if first is not None else None)
        out.type = None if kind is None else ir.TensorType(kind)
        out.shape = None if like is None else like.shape
        return out

    def quantized_output(
        self, node: ir.Node, y: ir.Value, scale: ir.Value, zero: ir.Value | None, index: int = 0
    ) -> None:
        """``y -> QuantizeLinear`` takes over an output of a node, with its name and metadata.

        Args:
            node: The integer operator.
            y: What a float operator made of its inputs.
            scale: Scale, a single number.
            zero: Zero point; None for 0, in the type of the output.
            index: Index of the output.

        Raises:
            Refused: As `dequantized`.
        """
        old = node.outputs[index]
        dtype = zero.dtype if zero is not None and zero.dtype is not None else old.dtype or ir.DataType.UINT8
        scale, zero, axis = self._fit(node, scale, zero, dtype, None, None)
        domain = self._domain(dtype, scale, axis, None)
        new = self._node(node, domain, QUANTIZE, [y, scale, zero], [], f"{old.name}_{QUANTIZE}")
        made = new.outputs[0]
        made.name, made.type, made.shape = self.namer(f"{old.name}_quantized"), ir.TensorType(dtype), old.shape
        self.take_over(old, made)

    def take_over(self, old: ir.Value, made: ir.Value) -> None:
        """A new value stands in for an old one, in all scopes and as a graph output, under its name."""
        was_output, name = old.is_graph_output(), old.name
        made.shape = made.shape if made.shape is not None else old.shape
        replace_uses(old, made, self.namer)
        made.metadata_props.update(old.metadata_props)
        changed(old)
        if not was_output and name:
            old.name, made.name = self.namer(f"{name}_replaced"), name

    def _fit(
        self,
        node: ir.Node,
        scale: ir.Value,
        zero: ir.Value | None,
        dtype: ir.DataType | None,
        axis: int | None,
        block_size: int | None,
    ) -> tuple[ir.Value, ir.Value | None, int | None]:
        return fit(scale, zero, dtype, axis, bool(block_size), lambda name, data: self.constant(node, name, data))

    def _domain(self, dtype: ir.DataType | None, scale: ir.Value, axis: int | None, block_size: int | None) -> str:
        domain = domain_for(self.opset, dtype, scale.dtype, axis, block_size)
        if domain == MICROSOFT:
            self.contrib += 1
            self.imports.setdefault(MICROSOFT, 1)
        return domain

    def _own(self, node: ir.Node, x: ir.Value, parameters: Hashable) -> ir.Value:
        """``x``, or a copy of a constant that was already read with other parameters."""
        tensor = constant_tensor(x)
        if tensor is None:
            return x
        if x not in self._read:
            self._keep(self._read, x, parameters)
        if self._read[x] == parameters:
            return x
        key = ("copy", x, parameters)
        if key not in self._made:
            why = f"'{x.name}' is read with other scales elsewhere: integers of its own for this reader"
            self.ctx.note("weight-copied", node, why, bytes=nbytes(tensor))
            self._keep(self._made, key, self._stored(node, graph_of(x), x.name or "weight", tensor))
        return self._made[key]

    def _node(
        self,
        node: ir.Node,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        name: str,
    ) -> ir.Node:
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        new = ir.Node(domain, op_type, given, attributes, name=self.namer(name) if name else None)
        copy_metadata(new, node, self.maker)
        assert node.graph is not None
        node.graph.insert_before(node, new)
        self._new.append(new)
        return new

    def _keep(self, table: dict[Hashable, Any], key: Hashable, value: Any) -> None:
        table[key] = value
        self._keys.append((table, key))


Rewrite = Callable[[ir.Node, Raiser], str]
"""Rewrites a node; returns ``""``, or in words why it stays. Raising `Refused` means the same as the words."""
