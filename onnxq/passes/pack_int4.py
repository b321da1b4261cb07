"""`pack-int4`: small integers that are stored in 8 bits get ONNX's own 4- or 2-bit types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.chosen import Chosen, wanted
from onnxq.diagnostics import Severity
from onnxq.edit import Namer, nested_graphs, plain_initializers
from onnxq.errors import DataError
from onnxq.facts import Fact
from onnxq.look import attr_int, constant_tensor, onnx_op, uses
from onnxq.numerics.packing import misfit
from onnxq.numerics.spec import QTYPES, QType
from onnxq.passbase import Context, Pass
from onnxq.passes.upgrade_opset import UpgradeOpset
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.stored import Stored, convert, selected, stored_integers
from onnxq.weights import lazy_tensor
from onnxq.wording import plural

_CARRIERS = {ir.DataType.INT8: "int", ir.DataType.UINT8: "uint"}
_IR_VERSION = {4: 10, 2: 13}  # first with the types (comments in onnx.proto)
_THROUGH = ("Transpose",)  # onnxruntime 1.32 has no kernel of the other carriers for less than 8 bits


@dataclass(frozen=True, kw_only=True)
class PackInt4(Pass):
    """``int8 or uint8 constant -> DequantizeLinear`` with values of 4 (2) bits -> the same in (U)INT4 or (U)INT2.

    The logical shape stays; two (four) values share a byte, flat row-major, the first in the lowest bits. Zero points
    change their type with the data. Each DequantizeLinear stays as it is, with axis, block size, output type, metadata
    and all its readers; Transposes between may stay, too. Weights are packed when they are written, one at a time.
    Works in all scopes. ``float -> Q -> DQ`` is not touched, `freeze` makes constants of it.

    A model whose opset does not have the types is upgraded, every node of it (`upgrade-opset`), and gets the IR version
    they need. Nothing is wrapped or clipped: a constant with other values, or with other readers than DequantizeLinear,
    stays in 8 bits, with a note.

    Attributes:
        bits: Width to pack to.
        include: Names of constants, or selectors of the nodes that read them, dequantized or not; empty: all that fit.
            What is named here and cannot be packed is an error.
    """

    name: ClassVar[str] = "pack-int4"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    bits: Literal[4, 2] = 4
    include: tuple[str, ...] = ()

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Pack every constant that can be packed; True if the graph changed.

        Raises:
            DataError: A constant of ``include`` does not fit; names it, the value and its place.
            OptionError: A selector of ``include`` matches nothing.
            UnsupportedError: There is something to pack, and a node that the needed opset has no equal for.
        """
        plain = plain_initializers(model)
        items, left = self._sorted(model, ctx)
        if items and model.opset_imports.get("", 0) < self._since:
            UpgradeOpset(to=self._since, required=True).run(model, ctx)
            items, left = self._sorted(model, ctx)  # the upgrade may have replaced nodes
        for item in items:
            self._warn(item, ctx)
        for item, why in left:
            if not isinstance(why, _Wide):
                ctx.note("not-packed", item.value, f"it stays in 8 bits: {why}")
        if items:
            convert(items, self._packed, Namer(model), self.name)
            model.ir_version = max(model.ir_version, _IR_VERSION[self.bits])
        if items or left:
            every, wide = len(items) + len(left), sum(isinstance(why, _Wide) for _, why in left)
            text = f"{len(items)} of {plural(every, 'stored tensor')} now in {self.bits} bits"
            text += f"; {plural(wide, 'tensor')} with values of more bits" if wide else ""
            ctx.note("packed", None, text, packed=len(items), stored=every, wide=wide)
        return plain or bool(items)

    @property
    def _since(self) -> int:
        return QTYPES[f"int{self.bits}"].since

    def _sorted(self, model: ir.Model, ctx: Context) -> tuple[list[Stored], list[tuple[Stored, str]]]:
        """What to pack, and what not, with the reason."""
        items: Sequence[Stored] = stored_integers(model, tuple(_CARRIERS), _THROUGH)
        items = [item for item in items if wanted(ctx, item.value, *item.nodes)]
        if self.include:
            items = selected(items, self.include, model)
        old = self._old_nodes(model)
        packed, left = [], []
        for item in items:
            why = item.obstacle or ("the local function around it has an older opset" if old & set(item.nodes) else "")
            if self.bits == 2 and any(node.domain for node in item.nodes):
                why = why or "com.microsoft's DequantizeLinear has no 2-bit types"
            why = why or self._unfit(item)
            if why and self.include:
                raise DataError(f"{self.name}: '{item.value.name}' cannot be packed: {why}")
            if why:
                left.append((item, why))
            else:
                packed.append(item)
        return packed, left

    def _old_nodes(self, model: ir.Model) -> set[ir.Node]:
        """Nodes of local functions that stay at their opset, since the model's is new enough."""
        if model.opset_imports.get("", 0) < self._since:
            return set()
        old = [f for f in model.functions.values() if f.opset_imports.get("", self._since) < self._since]
        return {node for function in old for graph in nested_graphs(function.graph) for node in graph}

    def _unfit(self, item: Stored) -> str:
        """The first value of data or zero points that does not fit, in words; ``""`` if all do."""
        for value in dict.fromkeys([item.value, *(edge.value for edge in item.zero_points())]):
            tensor = constant_tensor(value)
            assert tensor is not None
            qtype = self._qtype(tensor)
            found = misfit(tensor.numpy(), qtype)
            if found is not None:
                what = f"{found[0]} at {_place(found[1], tensor)}"
                limits = f"{qtype} ({qtype.qmin} ... {qtype.qmax})"
                if value is item.value:
                    return _Wide(f"{what} does not fit {limits}")
                return f"{what} of its zero point '{value.name}' does not fit {limits}"
        return ""

    def _qtype(self, tensor: ir.TensorProtocol) -> QType:
        return QTYPES[f"{_CARRIERS[tensor.dtype]}{self.bits}"]

    def _packed(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return lazy_tensor(tensor.numpy, self._qtype(tensor), tensor.shape.numpy())

    def _warn(self, item: Stored, ctx: Context) -> None:
        """Say where onnxruntime 1.32 does not get 2-bit weights right."""
        dequantized = [] if self.bits == 4 else item.nodes
        for dq, node in ((n, e.node) for n in dequantized for e in uses(n.outputs[0]) if e.index == 1):
            behind = constant_behind(dq.inputs[0])
            columns = 0 if isinstance(behind, str) or not behind.dims else behind.dims[-1]
            activation, blocked = node.inputs[0], attr_int(dq, "block_size", 0) and node.op_type != "Conv"
            fed = activation is not None and is_q(activation.producer(), DEQUANTIZE)
            fused = onnx_op(node, "MatMul", "Gemm") and not attr_int(node, "transB", 0)
            if fed and onnx_op(node, "MatMul", "Conv") and _quantized(node.outputs[0]) and not blocked:
                why = "onnxruntime 1.32 loads no 2-bit weights between quantized activations while it fuses pairs"
                ctx.note("two-bit-weight", node, f"{why}: set session.disable_quant_qdq", Severity.WARNING)
            elif fused and not fed and columns % 4:
                why = f"{columns} columns are no multiple of 4: onnxruntime 1.32 computes wrong numbers with 2 bits"
                ctx.note("two-bit-weight", node, why, Severity.WARNING, columns=columns)


class _Wide(str):
    """A reason that is no surprise: an 8-bit tensor has values of 8 bits."""


def _quantized(value: ir.Value) -> bool:
    """Whether a QuantizeLinear reads it, perhaps behind a Relu or Clip."""
    readers = [edge.node for edge in uses(value)]
    readers += [e.node for node in readers if onnx_op(node, "Relu", "Clip") for e in uses(node.outputs[0])]
    return any(is_q(node, QUANTIZE) for node in readers)


def _place(flat: int, tensor: ir.TensorProtocol) -> str:
    return str([int(i) for i in np.unravel_index(flat, tensor.shape.numpy())])
