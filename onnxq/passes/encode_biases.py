"""`encode-biases`: stored int32 biases at input scale x weight scale, with zero point 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.biases.uses import TOLERANCE, BiasUse, bias_uses
from onnxq.chosen import Chosen, wanted
from onnxq.dead import remove_unread
from onnxq.diagnostics import Severity
from onnxq.edit import Namer, replace_initializer
from onnxq.facts import Edge, Fact
from onnxq.look import Array, attr_int, constant, constant_tensor, nested_graphs, roots
from onnxq.numerics.bias import LARGEST, normal, product_scale
from onnxq.pairs import parameter
from onnxq.passbase import Context, Pass
from onnxq.qoperators.scope import Scope
from onnxq.states import DEQUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class EncodeBiases(Pass):
    """``int32 -> DQ(s, z) -> bias`` becomes ``int32 -> DQ(s_x s_w, 0) -> bias``, with the numbers it stood for.

    Integer kernels take a bias to have the scale ``float32(s_x s_w)``, for a Gemm ``alpha s_x s_w / beta``, and zero
    point 0, whatever is written. Each bias is rounded anew, which moves it by half a step at most. A bias that layers
    with different scales read gets a copy for each. Biases of 16-bit layers, which no integer kernel adds, keep their
    scale and lose their zero point only. The axis is written. Works in all scopes.

    Stays, with a warning: a bias that does not fit int32 at that scale, or whose scale the float type cannot hold.
    """

    name: ClassVar[str] = "encode-biases"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Encode every bias that needs it; a note names each."""
        namer, changed = Namer(model), False
        for root, imports in roots(model):
            scope = Scope(model, ctx, namer, self.name, imports, root is not model.graph)
            for dq in [n for graph in nested_graphs(root) for n in graph if is_q(n, DEQUANTIZE)]:
                tensor = constant_tensor(dq.inputs[0])
                if tensor is not None and tensor.dtype == ir.DataType.INT32 and wanted(ctx, dq):
                    changed |= _Bias(dq, scope).encode()
        return changed


@dataclass
class _Bias:
    """One stored bias."""

    dq: ir.Node
    scope: Scope

    def encode(self) -> bool:
        """Encode it where a layer needs that; True if something changed."""
        stored, scale, zero = (constant(self._input(i)) for i in range(3))
        if stored is None or scale is None or (zero is None and self._input(2) is not None):
            return False
        integers = stored.astype(np.int64)
        if zero is not None and zero.any():
            integers = integers - _along(zero.astype(np.int64), stored, self._axis(stored))
        values = integers * _along(scale.astype(np.float64), stored, self._axis(stored))
        shifted, found = zero is not None and bool(zero.any()), list(bias_uses(self.dq))
        groups: dict[bytes, tuple[Array, list[BiasUse]]] = {}
        kept = len(found) < len(self.dq.outputs[0].uses()) or self.dq.outputs[0].is_graph_output()
        for use in found:
            product = None if use.wide else use.product(constant)
            if product is None or not (shifted or _off(scale, product)):
                kept = True
            else:
                groups.setdefault(product.tobytes(), (product, []))[1].append(use)
        changed = False
        for count, (product, group) in enumerate(groups.values(), 1):
            alone = not kept and count == len(groups)
            if not alone and any(use.carried for use in group):
                self._warn("other readers need it at another scale, and ops stand between")
                kept = True
                continue
            new = self._encoded(values, product.astype(np.float64), scale.dtype)
            if new is None:
                kept = True
                continue
            target = self.dq if alone else self._copy(group)
            self._write(target, *new)
            changed = True
        if shifted and kept and self.dq.graph is not None:
            if np.abs(integers).max(initial=0) > LARGEST:
                self._warn("without its zero point it does not fit int32")
                return changed
            self._write(self.dq, integers.astype(np.int32), scale, self._axis(stored))
            changed = True
        return changed

    def _input(self, index: int) -> ir.Value | None:
        return parameter(self.dq, index)

    def _axis(self, stored: Array) -> int:
        """Where the channels of a bias are: the axis that is written, or the only one longer than 1."""
        axis = attr_int(self.dq, "axis", 1)
        return axis % stored.ndim if -stored.ndim <= axis < stored.ndim else max(stored.ndim - 1, 0)

    def _encoded(self, values: Array, product: Array, dtype: np.dtype[np.generic]) -> tuple[Array, Array, int] | None:
        """Integers, scale and axis at a product of scales; None, with a warning, where that is impossible."""
        scale = product_scale(1.0, product, dtype)
        if not normal(scale).all():
            self._warn("input scale x weight scale is no normal number of its type")
            return None
        if product.size == 1:
            scale, axis = scale.reshape(()), 0
        elif values.size == 1:
            values, axis = np.full(product.size, values.item()), 0
        elif product.size in values.shape and values.size == product.size:
            axis = values.shape.index(product.size)
        else:
            self._warn(f"its shape {list(values.shape)} does not go with {plural(product.size, 'channel')}")
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.rint(values / _along(scale.astype(np.float64), values, axis))
        if not (np.abs(rounded) <= LARGEST).all():
            worst = float(np.abs(rounded).max())
            self._warn("at input scale x weight scale it does not fit int32: raise the weight scale", worst)
            return None
        return rounded.astype(np.int32), scale, axis

    def _copy(self, group: list[BiasUse]) -> ir.Node:
        """A DequantizeLinear of their own for some readers."""
        namer, out = self.scope.namer, self.dq.outputs[0]
        new = ir.Node(
            self.dq.domain,
            DEQUANTIZE,
            self.dq.inputs,
            self.dq.attributes.values(),
            name=namer(self.dq.name or DEQUANTIZE),
        )
        new.metadata_props.update(self.dq.metadata_props)
        made = new.outputs[0]
        made.name, made.type, made.shape = namer(out.name or "bias"), out.type, out.shape
        assert self.dq.graph is not None
        self.dq.graph.insert_after(self.dq, new)
        for use in group:
            use.edge.node.replace_input_with(use.edge.index, made)
        return new

    def _write(self, dq: ir.Node, integers: Array, scale: Array, axis: int) -> None:
        before = list(dq.inputs)
        zero = np.zeros(scale.shape, np.int32)
        for index, data in enumerate((integers, scale, zero)):
            if index < len(dq.inputs) and dq.inputs[index] is not None:
                self._store(Edge(dq, index), data)
        if scale.ndim:
            dq.attributes.add(ir.AttrInt64("axis", axis))
        else:
            dq.attributes.pop("axis", None)
        if dq.outputs[0].shape is not None:
            dq.outputs[0].shape = ir.Shape(integers.shape)
        remove_unread(before)
        text = "now int32 at input scale x weight scale, zero point 0"
        self.scope.ctx.note("bias-encoded", dq, text, largest=int(np.abs(integers.astype(np.int64)).max(initial=0)))

    def _store(self, edge: Edge, data: Array) -> None:
        """Let one use read another constant."""
        old = edge.value
        found = constant(old)
        if (
            found is not None
            and found.dtype == data.dtype
            and np.array_equal(found, data)
            and found.shape == data.shape
        ):
            return
        if self.scope.function:
            edge.node.replace_input_with(edge.index, self.scope.constant(edge.node, old.name or "bias", data))
        else:
            replace_initializer(old, data, self.scope.namer, lambda other: other == edge)

    def _warn(self, why: str, worst: float = 0.0) -> None:
        numbers = {"largest": worst} if worst else {}
        self.scope.ctx.note("bias-not-encoded", self.dq, f"it stays as it is: {why}", Severity.WARNING, **numbers)


def _off(scale: Array, product: Array) -> bool:
    """Whether a scale is not the product of the two others."""
    if scale.size not in (1, product.size) and product.size != 1:
        return False
    return bool((np.abs(scale.astype(np.float64).ravel() - product) > TOLERANCE * np.abs(product)).any())


def _along(values: Array, data: Array, axis: int) -> Array:
    """One number, or one a channel, in a shape that goes with the data."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * data.ndim
    shape[axis] = values.size
    return values.reshape(shape)
