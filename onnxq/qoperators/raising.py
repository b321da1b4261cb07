"""From an integer operator to DequantizeLinear -> float operator -> QuantizeLinear: what every rewrite is built of.

A rewrite makes new nodes in front of the old one and lets what they make take over its outputs. `Raiser.rewrite` then
takes the old node away, or, where the rewrite refuses, everything that it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.edit import detach, graph_of
from onnxq.look import constant_tensor, nbytes
from onnxq.ops import MICROSOFT
from onnxq.qoperators.parameters import Refused, content, domain_for, fit
from onnxq.qoperators.scope import Scope
from onnxq.states import DEQUANTIZE, QUANTIZE

__all__ = ["Raiser", "Refused", "Rewrite"]

DYNAMIC_SINCE = 11
"""First opset with DynamicQuantizeLinear."""


@dataclass
class Raiser(Scope):
    """Makes the nodes of Q/DQ forms in one scope."""

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
        dtype = x.dtype or (zero.dtype if zero is not None else None)
        scale, zero, axis = self._fit(node, scale, zero, dtype, axis, block_size)
        parameters = (content(scale), content(zero), axis, block_size)

        def make() -> ir.Value:
            domain = self._domain(dtype, scale, axis, block_size)
            source, base = self._own(node, x, parameters), x.name or node.op_type
            given = {"axis": axis, "block_size": block_size}
            attributes = [ir.AttrInt64(name, value) for name, value in given.items() if value is not None]
            new = self._node(node, domain, DEQUANTIZE, [source, scale, zero], attributes, f"{base}_{DEQUANTIZE}")
            made = new.outputs[0]
            made.name, made.shape = self.namer(f"{base}_dequantized"), x.shape
            made.type = ir.TensorType(scale.dtype or ir.DataType.FLOAT)
            return made

        return self.once((DEQUANTIZE, x, *parameters, node.graph), make)

    def dynamically_quantized(self, node: ir.Node, x: ir.Value) -> ir.Node:
        """``x -> DynamicQuantizeLinear`` in front of a node, one for the same value and graph.

        Raises:
            Refused: The opset has no such operator.
        """
        if self.opset < DYNAMIC_SINCE:
            raise Refused(f"DynamicQuantizeLinear needs opset {DYNAMIC_SINCE}, the model has {self.opset}")

        def make() -> ir.Value:
            base = f"{x.name or node.op_type}_quantized"
            new = self._node(node, "", "DynamicQuantizeLinear", [x], [], f"{base}_DynamicQuantizeLinear", 3)
            kinds = (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
            for out, name, dtype in zip(new.outputs, ("", "_scale", "_zero_point"), kinds, strict=True):
                out.name, out.type = self.namer(f"{base}{name}"), ir.TensorType(dtype)
                out.shape = ir.Shape([]) if name else x.shape
            return new.outputs[0]

        made = self.once(("DynamicQuantizeLinear", x, node.graph), make).producer()
        assert made is not None
        return made

    def as_int32(self, node: ir.Node, x: ir.Value) -> ir.Value:
        """``x -> Cast`` to int32, in front of a node."""
        to = ir.DataType.INT32
        return self.float_op(node, "Cast", [x], {"to": int(to)}, name=f"{x.name}_int32", like=x, dtype=to)

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

        def copy() -> ir.Value:
            why = f"'{x.name}' is read with other scales elsewhere: integers of its own for this reader"
            self.ctx.note("weight-copied", node, why, bytes=nbytes(tensor))
            return self._stored(node, graph_of(x), x.name or "weight", tensor)

        return self.once(("copy", x, parameters), copy)


Rewrite = Callable[[ir.Node, Raiser], str]
"""Rewrites a node; returns ``""``, or in words why it stays. Raising `Refused` means the same as the words."""
