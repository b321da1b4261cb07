"""`to-trainable`: what onnxruntime's training build cannot train, rewritten so that it can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.border.tensors import is_typed, typed
from onnxq.carry import constant_behind
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.edit import Namer, remove_dead
from onnxq.errors import OptionError, UnsupportedError
from onnxq.look import constant_tensor, dims_of, onnx_op
from onnxq.numerics.spec import Encoding, PerTensor
from onnxq.opsets.upgrade import Obstacle
from onnxq.pairs import float_type, parameter, read_encoding
from onnxq.passbase import Pass
from onnxq.passes.inline_functions import InlineFunctions
from onnxq.passes.lift_constants import LiftConstants
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from onnxq.passes.thaw import Thaw
from onnxq.passes.upgrade_opset import UpgradeOpset
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.targets import load_target
from onnxq.trainable import deconvolution, record, stand_ins, unique_pairs, zero_points
from onnxq.trainable.downgrade import downgrade
from onnxq.trainable.findings import obstacles
from onnxq.trainable.parameters import parameters
from onnxq.trainable.scaled import Scaler, is_plain
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class ToTrainable(Pass):
    """Float, Q/DQ or integer-operator model -> the same model in a form that onnxruntime's training build can train.

    Operators on integers become Q/DQ (`qoperator-to-qdq`), stored integers float masters behind a QuantizeLinear
    (`thaw`), int32 biases float parameters without a pair. Equal pairs on a value become one: copies fail, since they
    are merged before pairs are looked for, and then have two DequantizeLinear. A pair with one scale a channel or
    block, or with fewer than 8 bits, becomes ``Div(s) -> Q(1) -> DQ(1) -> Mul(s)``, with Add, Sub and Clip where it
    takes them. ConvTranspose becomes Conv, since its gradient has no kernel. Zero points are written into the typed
    field, which alone is read there. The opset comes down to ``opset`` if every node means the same there.

    Float while the model is trained, with a note: pairs of more than 8 bits, pairs in bodies, inputs that are quantized
    at run time. The model computes what it did, up to float rounding, but for those. Forms, opset and names of the
    parameters (``requires_grad``) are kept in the model's metadata; `from-trainable` makes the model of before of it.

    Attributes:
        opset: The newest opset of the result, 13 to 18; an older model stays at its own, if that is 13 or more.
        weight_bits: Bits of weights, where these are fewer than those of their type: 7 keeps int8 in -64 ... 63.
    """

    name: ClassVar[str] = "to-trainable"

    opset: int = 18
    weight_bits: int = 8

    def __post_init__(self) -> None:
        window = load_target("ort-training").opset
        if not window.min <= self.opset <= window.max:
            raise OptionError(f"{self.name}: opset is {window.min} to {window.max}, got {self.opset}")
        if not 2 <= self.weight_bits <= 8:
            raise OptionError(f"{self.name}: weight-bits is 2 to 8, got {self.weight_bits}")

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite the model; what still stands in the way is noted as a warning.

        Raises:
            UnsupportedError: A node does not mean the same at opset 18 or below; names node, op and reason.
        """
        before = record.read(model.metadata_props)
        changed = InlineFunctions().run(model, ctx) if model.functions else False
        if model.opset_imports.get("", 0) < load_target("ort-training").opset.min:
            changed |= UpgradeOpset(to=self.opset, required=True).run(model, ctx)
        changed |= LiftConstants().run(model, ctx)
        changed |= QoperatorToQdq().run(model, ctx)
        versions = {"opset": model.opset_imports.get("", 0), "ir_version": model.ir_version}
        numbers, namer = unique_pairs.Numbers(int(before.get("pairs", 0))), Namer(model)
        stood = stand_ins.put(model, numbers, namer, ctx)
        changed |= bool(stood) | Thaw(form="fake-quant", zero_point="keep").run(model, ctx)
        namer = Namer(model)
        turned = self._turn(model, namer, ctx)
        changed |= bool(turned)
        changed |= self._pairs(model, numbers, namer, ctx)
        changed |= bool(zero_points.separate(model.graph, namer))
        if changed:
            remove_dead(model)
        _type_zero_points(model)
        changed |= self._opset(model, ctx)
        names = parameters(model)
        entries = {**versions, **before, "parameters": names, "pairs": numbers.first + len(numbers)}
        if entries != before:
            record.write(model.metadata_props, **entries)
            changed = True
        for found in obstacles(model) if changed else ():
            ctx.note("not-trainable", found.at, found.why, Severity.WARNING if found.stops else Severity.INFO)
        if changed:
            text = f"{plural(len(names), 'parameter')} can be trained"
            ctx.note("trainable", None, text, parameters=names)
        return changed

    def _turn(self, model: ir.Model, namer: Namer, ctx: Context) -> int:
        """ConvTranspose as Conv."""
        count = 0
        for node in [n for n in model.graph if onnx_op(n, "ConvTranspose")]:
            why = deconvolution.obstacle(node)
            if not why:
                deconvolution.as_conv(node, namer)
                count += 1
            else:
                ctx.note("conv-transpose-kept", node, f"it has no gradient, and cannot be written as Conv: {why}")
        if count:
            text = f"{plural(count, 'ConvTranspose node')} now Conv, which has a gradient"
            ctx.note("conv-transpose", None, text, count=count)
        return count

    def _pairs(self, model: ir.Model, numbers: unique_pairs.Numbers, namer: Namer, ctx: Context) -> bool:
        """One pair a value and encoding, and every pair as the training build computes it."""
        merged = unique_pairs.merge(model.graph, numbers, namer)
        if merged:
            text = f"{plural(merged, 'pair node')} went into an equal one, since the training build takes no copies"
            ctx.note("pairs-merged", None, text, count=merged)
            remove_dead(model)
        scaler, rewritten, settled = Scaler(namer), 0, 0
        for q in [n for n in model.graph if is_q(n, QUANTIZE)]:
            behind = unique_pairs.dequantizers(q)
            if isinstance(behind, str) or len(behind) > 1:
                continue  # obstacles() tells
            encoding, dims = _encoding(q, behind[0])
            if encoding is None:
                continue
            bits = self.weight_bits if _is_weight(q) else 8
            if is_plain(encoding, bits):
                settled += scaler.settle(q, behind[0], encoding)
            else:
                scaler.scale(q, behind[0], encoding, dims, bits)
                rewritten += 1
        if rewritten:
            text = f"{plural(rewritten, 'pair')} now with one scale of 1, between Div and Mul"
            ctx.note("pairs-rewritten", None, text, count=rewritten)
        return bool(merged or rewritten or settled)

    def _opset(self, model: ir.Model, ctx: Context) -> bool:
        """Into the window of opsets and IR versions."""
        target, before = load_target("ort-training"), (model.opset_imports.get("", 0), model.ir_version)
        if before[0] > self.opset:
            try:
                downgrade(model, self.opset)
            except Obstacle as obstacle:
                node = obstacle.node
                raise UnsupportedError(
                    f"node '{node.name}': {node.op_type} of opset {before[0]} cannot be brought down to opset"
                    f" {self.opset}, the newest that onnxruntime's training build can train: {obstacle.why}"
                ) from None
            ctx.note("opset-lowered", None, f"opset {before[0]} -> {self.opset}", before=before[0], after=self.opset)
        model.ir_version = min(model.ir_version, target.newest_ir_version)
        return (model.opset_imports.get("", 0), model.ir_version) != before


def _is_pair(node: ir.Node) -> bool:
    return is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)


def _is_weight(q: ir.Node) -> bool:
    return not isinstance(constant_behind(q.inputs[0]), str)


def _encoding(q: ir.Node, dq: ir.Node) -> tuple[Encoding | None, tuple[int | None, ...]]:
    """What a pair stores, and the shape of its data; None where it cannot be rewritten.

    Raises:
        UnsupportedError: A pair along an axis of data of unknown shape.
    """
    found = constant_behind(q.inputs[0])
    dims: tuple[int | None, ...] = dims_of(q.inputs[0]) or () if isinstance(found, str) else found.dims
    scale = constant_tensor(parameter(q, 1))
    if scale is None or float_type(dq) != ir.DataType.FLOAT:
        return None, dims
    if isinstance(found, str) and scale.size > 1 and not dims:
        raise UnsupportedError(f"node '{q.name}': the rank of its input is unknown, run infer-shapes first")
    # Only the axis counts, and its length is that of the scale.
    known = tuple(d if d is not None else scale.size for d in dims)
    encodings = [read_encoding(node, known) for node in (q, dq)]
    one, other = encodings
    if isinstance(one, str) or isinstance(other, str) or not one.same(other):
        return None, dims
    return one, dims if not isinstance(one.spec.granularity, PerTensor) else ()


def _type_zero_points(model: ir.Model) -> None:
    """Write zero points into the field that the training build reads: the same tensors, stored otherwise."""
    for node in model.graph.all_nodes():
        value = parameter(node, 2) if _is_pair(node) else None
        tensor = constant_tensor(value)
        if value is None or tensor is None or not value.is_initializer() or is_typed(tensor):
            continue
        if tensor.dtype in (ir.DataType.INT8, ir.DataType.UINT8):
            name, value.const_value = value.name, typed(tensor)
            value.const_value.name = name
