"""`from-trainable`: a trained model back in the form it had before `to-trainable`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.edit import Namer, plain_initializers, remove_dead
from onnxq.passbase import Pass
from onnxq.passes.freeze import Freeze
from onnxq.passes.upgrade_opset import UpgradeOpset
from onnxq.states import DEQUANTIZE, is_q
from onnxq.trainable import deconvolution, downgrade, folding, parameters, record, stand_ins, unique_pairs, zero_points
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class FromTrainable(Pass):
    """Model of `to-trainable`, with trained parameters from a ``.npz`` file -> the quantized model it was, trained.

    ``Div(s) -> Q(1) -> DQ(1) -> Mul(s)`` becomes the pair with one scale a channel, pairs that became one are several
    again, float biases int32 at input scale x weight scale (a bias that has outgrown int32 makes its weights' scales
    coarser), and Conv the ConvTranspose it was. The model gets its opset back, weights become the integers that they
    round to. Without training the model is the one that `to-trainable` got: integers, scales, structure. Rewritten
    pairs of a model without records, such as one exported by the training build, are folded, too.

    Attributes:
        checkpoint: ``.npz`` file with arrays by parameter name; empty: the parameters are in the model.
        partial: Whether the file may lack parameters that the model has; they keep the model's values.
        form: ``deploy`` stores weights as integers, ``fake-quant`` leaves them float in front of a QuantizeLinear.
    """

    name: ClassVar[str] = "from-trainable"

    checkpoint: str = ""
    partial: bool = False
    form: Literal["deploy", "fake-quant"] = "deploy"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Put the parameters in place, and undo what `to-trainable` did.

        Raises:
            DataError: The file cannot be read, or does not fit the model.
            InputError: The record in the model is damaged.
        """
        frame = record.read(model.metadata_props)
        changed = plain_initializers(model)
        if self.checkpoint:
            required = [] if self.partial else frame.get("parameters", parameters.parameters(model))
            count = parameters.load(model, self.checkpoint, required)
            text = f"{plural(count, 'parameter')} from the checkpoint"
            ctx.note("parameters-loaded", None, text, count=count)
            changed = True
        changed |= self._opset(model, frame, ctx)
        changed |= bool(self._fold(model, ctx))
        if self.form == "deploy" and (changed or frame):
            changed |= Freeze().run(model, ctx)
        for node in model.graph.all_nodes():
            changed |= node.metadata_props.pop(record.KEY, None) is not None
        changed |= model.metadata_props.pop(record.KEY, None) is not None
        return changed

    def _opset(self, model: ir.Model, frame: dict[str, int], ctx: Context) -> bool:
        """The opset and IR version of before."""
        before = model.opset_imports.get("", 0), model.ir_version
        opset = frame.get("opset", 0)
        if opset > before[0]:
            UpgradeOpset(to=opset, required=True).run(model, ctx)
        if opset == model.opset_imports.get("", 0):
            model.ir_version = frame["ir_version"]
        return (model.opset_imports.get("", 0), model.ir_version) != before

    def _fold(self, model: ir.Model, ctx: Context) -> int:
        namer, opset = Namer(model), model.opset_imports.get("", 0)
        count = downgrade.restore(model)
        for node in tuple(model.graph):
            count += deconvolution.take_back(node)
        folded = 0
        for dq in [n for n in model.graph if is_q(n, DEQUANTIZE)]:
            found = folding.find(dq)
            if found is None:
                count += folding.unsettle(dq)
                continue
            why = folding.fold(found, opset, namer)
            if why:
                ctx.note("pair-kept", dq, f"it stays between Div and Mul: {why}", Severity.WARNING)
            folded += not why
        count += zero_points.unite(model.graph)
        count += folded + stand_ins.take_back(model, namer, ctx)
        count += unique_pairs.split(model, namer)
        if count:
            remove_dead(model)
        if folded:
            text = f"{plural(folded, 'pair')} folded into scale and zero point"
            ctx.note("pairs-folded", None, text, count=folded)
        return count
