"""fuse-batch-norm: what scales and shifts the channels of a linear op moves into its weight and bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.affine import Affine, Linear, Refused, linear_of, of_batch_norm, of_elementwise, push
from onnxq.edit import (
    Namer,
    copy_metadata,
    nested_graphs,
    only_use,
    onnx_op,
    plain_initializers,
    remove_dead,
    replace_uses,
)
from onnxq.passbase import Context, Pass
from onnxq.provenance import changed
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class FuseBatchNorm(Pass):
    """Conv | ConvTranspose | Gemm | MatMul (+ Add) -> BatchNormalization | Mul, Div, Add, Sub by channel -> one op.

    ``W' = W * scale / sqrt(variance + epsilon)`` per output channel, and the bias to match, computed in float64 and
    rounded once. A weight or bias that others read is copied, weights above 1 MiB are scaled whenever they are read. A
    MatMul keeps its bias Add (the runtime folds it), a BatchNormalization behind a bare MatMul becomes one.

    Stays, with the reason: training, parameters that are computed or that the caller may override, a linear op whose
    output others read, too, and results that do not fit the weight's type (float16). Works in all scopes.
    """

    name: ClassVar[str] = "fuse-batch-norm"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Fuse in graph order, so that chains (Conv, Add, BatchNormalization, Mul) end up in one op."""
        plain = plain_initializers(model)
        namer = Namer(model)
        count = 0
        for graph in tuple(nested_graphs(model.graph)):
            for node in tuple(graph):
                if onnx_op(node, "BatchNormalization", "Add", "Sub", "Mul", "Div") and self._fuse(node, namer, ctx):
                    count += 1
        if count:
            remove_dead(model)
            ctx.note(
                "affine-fused", None, f"{plural(count, 'node')} moved into the weights of the op before", count=count
            )
        return plain or bool(count)

    def _fuse(self, node: ir.Node, namer: Namer, ctx: Context) -> bool:
        norm = node.op_type == "BatchNormalization"
        try:
            linear, affine = _batch_norm(node) if norm else _elementwise(node)
            if linear is None or affine is None:
                return False
            offset = push(affine, linear, namer)
        except Refused as refused:
            ctx.note("batch-norm-kept" if norm else "affine-kept", node, str(refused))
            return False
        graph, out = node.graph, linear.out
        assert graph is not None
        changed(linear.node.outputs[0], linear.out)
        if offset is not None:
            add = ir.node("Add", [linear.out, offset], name=namer(f"{node.name or 'batch_norm'}_add"))
            copy_metadata(add, node, self.name)
            graph.insert_before(node, add)
            out = add.outputs[0]
            out.name, out.type, out.shape = namer(f"{add.name}_output"), node.outputs[0].type, node.outputs[0].shape
        else:
            copy_metadata(linear.node, node, self.name)
        replace_uses(node.outputs[0], out, namer)
        graph.remove(node, safe=True)
        return True


def _batch_norm(node: ir.Node) -> tuple[Linear, Affine]:
    source = node.inputs[0]
    linear = linear_of(source)
    if source is None or linear is None:
        made = source.producer() if source is not None else None
        raise Refused(f"its input comes from {made.op_type if made else 'outside'}, not from a linear op")
    if linear.node.op_type == "MatMul" and linear.rank != 2:
        raise Refused("it normalizes axis 1 of a MatMul whose channels are elsewhere")
    if only_use(source) is None or source.graph is not node.graph:
        raise Refused(f"'{source.name}' is read elsewhere, too")
    return linear, of_batch_norm(node, linear.channels)


def _elementwise(node: ir.Node) -> tuple[Linear | None, Affine | None]:
    for source in node.inputs:
        linear = linear_of(source)
        if source is None or linear is None or only_use(source) is None or source.graph is not node.graph:
            continue
        if linear.node.op_type == "MatMul" and linear.bias is None and node.op_type in ("Add", "Sub"):
            continue  # the bias Add of this very MatMul
        affine = of_elementwise(node, linear)
        if affine is not None:
            return linear, affine
    return None, None
