"""freeze-defaults: initializers that are also graph inputs become plain constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen
from onnxq.edit import plain_initializers, take_defaults
from onnxq.facts import Fact
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class FreezeDefaults(Pass):
    """Input with a default (initializer of the same name) -> plain initializer.

    IR version 3 lists every initializer among the inputs and means a constant. From IR version 4 on the caller may
    override such an input, so nothing that depends on it is constant: not its range, not the weight it may be. Passes
    that need constants (`fold-constants`, `fuse-batch-norm`, `plan`) leave such weights alone; this pass makes them
    constants and says for which inputs the caller loses the choice. Required inputs never change.
    """

    name: ClassVar[str] = "freeze-defaults"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Drop the inputs that have an initializer, and raise IR version 3, which does not allow that, to 4."""
        if plain_initializers(model):
            return True
        chosen = ctx.maybe(Chosen)
        frozen = take_defaults(model, None if chosen is None else chosen.values)
        for value in frozen:
            ctx.note("default-frozen", value, "optional input became a constant; callers can no longer override it")
        return bool(frozen)
