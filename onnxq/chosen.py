"""What a fix is to mend: the places of findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from onnxq.context import Context
from onnxq.facts import Fact


@dataclass
class Chosen(Fact):
    """Nodes and values of findings that are to be mended; a pass that does not find this fact mends all it finds.

    Attributes:
        nodes: Nodes of findings.
        values: Values of findings.
    """

    stays: ClassVar[bool] = True
    nodes: set[ir.Node] = field(default_factory=set)
    values: set[ir.Value] = field(default_factory=set)


def wanted(ctx: Context, *places: ir.Node | ir.Value | None) -> bool:
    """Whether one of these places is to be mended."""
    chosen = ctx.maybe(Chosen)
    return chosen is None or any(at in chosen.nodes or at in chosen.values for at in places)
