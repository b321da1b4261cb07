"""`untranspose-gemm`: Gemm with transB=0, for runtimes that take its weight in no other way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.edit import Namer, add_initializer, copy_metadata, plain_initializers, remove_dead, rename
from onnxq.facts import Fact, Goal
from onnxq.look import Array, attr_int, attr_ints, constant_tensor, graph_of, nested_graphs, onnx_op
from onnxq.numerics.tiles import in_c_order
from onnxq.pairs import parameter
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.targets import load_target


@dataclass(frozen=True, kw_only=True)
class UntransposeGemm(Pass):
    """``Gemm(transB=1)`` with a constant weight [N, K] -> ``Gemm`` with the weight [K, N]; exact.

    The weight may be float, integers behind a DequantizeLinear, or float behind a Q/DQ pair: then the axis moves, and
    with blocks also the layout of scale and zero point. A weight behind a Transpose loses that instead. What others
    read, too, is kept for them; several such Gemms share one copy. Weights are transposed when they are written. Works
    in all scopes but local functions, which hold no initializers.

    Stays, with a note: a weight that is computed at run time.

    Attributes:
        when: ``target`` asks the target (``gemm-trans-b: false``) and does nothing without one; ``always``; ``never``.
        target: Name of a target or path of a target file; used when the caller names none.
        quantized_only: Leave float weights as they are.
    """

    name: ClassVar[str] = "untranspose-gemm"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal, Chosen})

    when: Literal["target", "always", "never"] = "target"
    target: str = ""
    quantized_only: bool = False

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every Gemm with a constant, transposed B; one note says how many."""
        if not self._wanted(ctx):
            return False
        plain = plain_initializers(model)
        flipped, count = _Flipped(Namer(model)), 0
        for node in [n for graph in nested_graphs(model.graph) for n in graph if onnx_op(n, "Gemm")]:
            maker = node.inputs[1].producer() if node.inputs[1] is not None else None
            if not attr_int(node, "transB", 0) or not wanted(ctx, node, maker):
                continue
            if self.quantized_only and not is_q(maker, DEQUANTIZE):
                continue
            new = flipped.of(node.inputs[1])
            if new is None:
                ctx.note("gemm-kept", node, "it keeps transB=1: its weight is computed at run time")
                continue
            node.replace_input_with(1, new)
            node.attributes.pop("transB")
            count += 1
        if count:
            remove_dead(model)
            flipped.take_names()
            ctx.note("gemm-untransposed", None, f"{count} Gemm nodes read their weight as it is", count=count)
        return plain or bool(count)

    def _wanted(self, ctx: Context) -> bool:
        if ctx.has(Chosen):
            return True
        if self.when != "target":
            return self.when == "always"
        goal = ctx.maybe(Goal)
        target = goal.target if goal else load_target(self.target) if self.target else None
        return target is not None and not target.gemm_trans_b


def transposed(matrix: Array) -> Array:
    """The transposed matrix, contiguous."""
    return in_c_order(matrix.T)


@dataclass
class _Flipped:
    """Transposed forms of matrices, each made once."""

    namer: Namer
    _of: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _copies: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)

    def of(self, value: ir.Value | None) -> ir.Value | None:
        """A value that holds the transposed matrix; None, and nothing is made, if it is computed at run time."""
        if value is None:
            return None
        node, tensor = value.producer(), constant_tensor(value)
        if value not in self._of:
            made = None
            if tensor is not None and len(tensor.shape) == 2:
                made = self._constant(value, tensor)
            elif onnx_op(node, "Transpose") and node is not None:
                made = node.inputs[0] if attr_ints(node, "perm", [1, 0]) == [1, 0] else None
            elif node is not None and (is_q(node, DEQUANTIZE) or is_q(node, QUANTIZE)):
                made = self._pair(node)
            if made is None:
                return None
            self._of[value] = made
        return self._of[value]

    def take_names(self) -> None:
        """Names of what is gone go to what has taken its place."""
        for old, new in self._copies:
            before, after = old.producer(), new.producer()
            if before is not None and after is not None and before.graph is None:
                after.name, new.name = before.name, old.name
            elif before is None and old.graph is None and old.name:
                rename(new, old.name)

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        rows, columns = tensor.shape.numpy()
        turned = ir.LazyTensor(
            lambda: ir.Tensor(transposed(tensor.numpy()), dtype=tensor.dtype),
            dtype=tensor.dtype,
            shape=ir.Shape((columns, rows)),
        )
        new = add_initializer(graph_of(value), f"{value.name}_transposed", turned, self.namer)
        self._copies.append((value, new))
        return new

    def _pair(self, old: ir.Node) -> ir.Value | None:
        """A Q or DQ node of the transposed matrix."""
        parameters = [parameter(old, 1), parameter(old, 2)]
        blocked = attr_int(old, "block_size", 0) > 0
        if blocked and any(p is not None and constant_tensor(p) is None for p in parameters):
            return None
        data = self.of(old.inputs[0])
        if data is None:
            return None
        if blocked:
            parameters = [self.of(p) for p in parameters]
        given = dict(old.attributes.items())
        if blocked or "axis" in given or any(p is not None and p.shape != () for p in parameters):
            given["axis"] = ir.AttrInt64("axis", 1 - attr_int(old, "axis", 1) % 2)
        inputs = [data, *parameters][: len(old.inputs)]
        new = ir.Node(old.domain, old.op_type, inputs, given.values(), name=self.namer(f"{old.name}_transposed"))
        copy_metadata(new, old, UntransposeGemm.name)
        out, was = new.outputs[0], old.outputs[0]
        out.name, out.type, out.shape = self.namer(f"{was.name}_transposed"), was.type, data.shape
        assert old.graph is not None
        old.graph.insert_after(old, new)
        self._copies.append((was, out))
        return out
