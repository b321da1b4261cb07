"""`fit-versions`: the opset and the IR version that types and attributes of a model need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.opsets.needed import ir_version_needed, opset_of
from onnxq.passbase import Context, Pass
from onnxq.passes.upgrade_opset import UpgradeOpset


@dataclass(frozen=True, kw_only=True)
class FitVersions(Pass):
    """Opset and IR version below what the model uses -> the lowest that have it; newer ones stay.

    The opset follows types and attributes of QuantizeLinear and DequantizeLinear: ``axis`` needs 13, int16, int4 and
    ``block_size`` 21, int2 25; and small types that other operators read or make. All operators are brought to it as
    by `upgrade-opset`; where one has no equal the opset stays, with a warning. The IR version follows opset and element
    types: int4 needs 10, int2 13.
    """

    name: ClassVar[str] = "fit-versions"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Raise what is too low."""
        needed, changed = opset_of(model), False
        if 0 < model.opset_imports.get("", 0) < needed:
            changed = UpgradeOpset(to=needed).run(model, ctx)
        before, version = model.ir_version, ir_version_needed(model)
        if before < version:
            model.ir_version = version
            text = f"IR version {before} -> {version}, which opset and element types need"
            ctx.note("ir-version-raised", None, text, before=before, after=version)
            changed = True
        return changed
