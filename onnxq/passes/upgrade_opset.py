"""upgrade-opset: the standard operators at a newer opset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.edit import all_nodes
from onnxq.errors import OptionError, UnsupportedError
from onnxq.opsets import upgrade as opsets
from onnxq.opsets.rewrite import NeedsShapes
from onnxq.passbase import Context, Pass
from onnxq.passes.infer_shapes import InferShapes
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class UpgradeOpset(Pass):
    """Model at standard opset 6 … -> the same model at opset ``to``.

    Each node whose operator changed in between is replaced by its equal (an attribute that became an input, a default
    that moved, Upsample -> Resize); all others stay untouched. Works in If/Loop/Scan bodies and local functions; names,
    metadata and the opsets of other domains stay. Weights are neither read nor copied. Types and shapes are inferred
    first if a replacement depends on them. A model that is newer already stays as it is.

    Attributes:
        to: The opset to reach. 21 is the first with 16-bit, 4-bit and blocked quantization; onnxruntime 1.32 has
            QuantizeLinear and DequantizeLinear kernels up to 27.
        required: What to do when a node has no equal: stop (True), or leave the whole model at its opset with a
            warning (False).
    """

    name: ClassVar[str] = "upgrade-opset"

    to: int = 21
    required: bool = False

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Upgrade all nodes or none.

        Raises:
            OptionError: ``to`` is not an opset that the installed onnx knows.
            UnsupportedError: A node has no equal and ``required`` is set; names node, op and both opsets.
        """
        newest = opsets.newest()
        if not opsets.OLDEST <= self.to <= newest:
            raise OptionError(f"{self}: to={self.to}: the installed onnx knows opsets {opsets.OLDEST} to {newest}")
        start = model.opset_imports.get("", model.opset_imports.get("ai.onnx", self.to))
        if start >= self.to and "" in model.opset_imports:
            if start > self.to:
                ctx.note("opset-kept", None, f"the model is at opset {start}, newer than {self.to}", opset=start)
            return False
        unknown = [n for n in all_nodes(model) if n.domain == "" and opsets.schema(n.op_type, start) is None]
        for node in (n for n in unknown if n.op_identifier() not in model.functions):
            text = f"{node.op_type} is no operator of opset {start}; it stays as it is"
            ctx.note("unknown-op", node, text, Severity.WARNING)
        try:
            count = self._upgrade(model, ctx)
        except opsets.Obstacle as obstacle:
            node = obstacle.node
            text = f"{node.op_type} of opset {start} cannot be brought to opset {self.to}: {obstacle.why}"
            if self.required:
                raise UnsupportedError(f"node '{node.name}': {text}") from None
            ctx.note("opset-not-upgraded", node, f"{text}; the model stays at opset {start}", Severity.WARNING)
            return False
        ctx.note(
            "opset-upgraded",
            None,
            f"opset {start} -> {self.to}; {plural(count, 'node')} replaced",
            before=start,
            after=self.to,
            replaced=count,
        )
        return True

    def _upgrade(self, model: ir.Model, ctx: Context) -> int:
        try:
            count = opsets.upgrade(model, self.to, self.name, inferred=False)
        except NeedsShapes:
            InferShapes().run(model, ctx)
            count = opsets.upgrade(model, self.to, self.name, inferred=True)
        return count
