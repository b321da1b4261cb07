"""`drop-output-dtype`: the type of a QuantizeLinear is said once, by its zero point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.chosen import Chosen, wanted
from onnxq.facts import Fact
from onnxq.look import all_nodes, attr_int
from onnxq.pairs import dtype_of, parameter
from onnxq.passbase import Context, Pass
from onnxq.states import QUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class DropOutputDtype(Pass):
    """``QuantizeLinear(zero point of type T, output_dtype=T)`` -> the same without ``output_dtype``.

    ONNX allows both; onnxruntime 1.32 changes the zero point of int8 pairs on x64 and then refuses its own node. A type
    that contradicts the zero point stays. Works in all scopes.
    """

    name: ClassVar[str] = "drop-output-dtype"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Drop the attribute where the zero point says the same; one note says how often."""
        count = 0
        for node in all_nodes(model):
            given = node.attributes.get("output_dtype") if is_q(node, QUANTIZE) and wanted(ctx, node) else None
            zero = parameter(node, 2)
            if given is None or given.is_ref() or zero is None:
                continue
            if attr_int(node, "output_dtype", 0) == dtype_of(zero):
                node.attributes.pop("output_dtype")
                count += 1
        if count:
            text = f"{plural(count, 'QuantizeLinear')} with the type of its zero point alone"
            ctx.note("output-dtype-dropped", None, text, count=count)
        return bool(count)
