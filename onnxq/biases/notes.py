"""What `guard-bias` says: one note a layer, with one entry for each adjusted channel."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.facts import Edge
from onnxq.numerics.spec import Encoding
from onnxq.wording import plural

Array = np.ndarray[Any, Any]


@dataclass
class BiasNotes:
    """Takes what is found, layer by layer; `finish` says what is true of several layers at once."""

    ctx: Context
    _kept: list[ir.Node] = field(default_factory=list)
    _asked: list[ir.Node] = field(default_factory=list)
    _wide: dict[ir.Node, int] = field(default_factory=dict)

    def raised(self, edge: Edge, before: Encoding, after: Encoding, x: Encoding | None, terms: int) -> None:
        """Weight scales were changed; ``x`` is the layer's activation where its bias is guarded.

        The error of an output value is at most that of ``terms`` products with weights off by half a step.
        """
        old, new = (np.atleast_1d(e.scale.astype(np.float64)) for e in (before, after))
        bound = np.full(new.shape, np.nan)
        if x is not None:
            bound = terms * float(x.scale) * (x.spec.qtype.qmax - x.spec.qtype.qmin) * new / 2
        up, down = np.flatnonzero(new > old), np.flatnonzero(new < old)
        channels = plural(old.size, "channel")
        if up.size:
            worst = float((new / old).max())
            why = (
                f"the int32 bias would overflow in {len(up)} of {channels}: their weight scale is raised, at most "
                f"{worst:.3g} times, and their weights are requantized"
            )
            self._note("raised-weight-scale", edge.node, why, up, old, new, bound)
        if down.size:
            why = f"zero weights in {len(down)} of {channels}: their scale is the one that suits the bias"
            self._note("empty-weight-scale", edge.node, why, down, old, new, np.zeros(new.shape))

    def own_scale(self, edge: Edge, product: Array, scale: Array) -> None:
        """The bias has other scales than ``product`` where it would not fit; it is exact to half a step."""
        old, new = np.atleast_1d(product.astype(np.float64)), np.atleast_1d(scale.astype(np.float64))
        changed = np.flatnonzero(old != new)
        if changed.size:
            why = (
                f"the int32 bias would overflow or vanish in {len(changed)} of {plural(old.size, 'channel')} at input "
                "scale x weight scale: there it has a scale of its own"
            )
            self._note("own-bias-scale", edge.node, why, changed, old, new, new / 2)

    def left_float(self, edge: Edge, why: str, channels: Array | None = None, unsafe: bool = False) -> None:
        """The bias stays float; ``unsafe`` where a QuantizeLinear follows, since runtimes may round it to int32."""
        text = f"its bias '{edge.value.name}' stays float: {why}"
        rows = [{"channel": int(c)} for c in ([] if channels is None else channels)]
        severity = Severity.WARNING if unsafe else Severity.INFO
        self.ctx.note("float-bias", edge.node, text, severity, channels=rows, count=len(rows))

    def as_asked(self, edge: Edge) -> None:
        """The bias stays float because the caller wants it so."""
        self._asked.append(edge.node)

    def not_float(self, edge: Edge) -> None:
        """The bias becomes int32 although the caller asked for float."""
        self._kept.append(edge.node)

    def headroom(self, edge: Edge, products: int, stored: Array) -> None:
        """Keep in mind a layer whose sums, ``|b_q| + products``, are too large for int32."""
        largest = products + float(np.max(stored, initial=0.0))
        if largest >= 2**31:
            self._wide[edge.node] = math.ceil(math.log2(largest)) + 1

    def finish(self) -> None:
        """Say what concerns several layers."""
        if self._asked:
            why = f"the biases of {plural(len(self._asked), 'layer')} stay float, as asked"
            self.ctx.note("float-bias-kept", None, why, nodes=_names(self._asked))
        if self._kept:
            layers = plural(len(self._kept), "layer")
            why = f"the biases of {layers} were to stay float and become int32: a runtime would do it, and may overflow"
            self.ctx.note("bias-not-float", None, why, nodes=_names(self._kept))
        if self._wide:
            bits, layers = max(self._wide.values()), plural(len(self._wide), "layer")
            why = f"sums of products in {layers} need up to {bits} bits: an int32 accumulator would wrap around"
            self.ctx.note("wide-accumulator", None, why, bits=bits, nodes=_names(self._wide))

    def _note(self, code: str, node: ir.Node, why: str, channels: Array, old: Array, new: Array, bound: Array) -> None:
        columns = {"ratio": _ratio(new, old), "scale": new, "error": bound}
        rows = [
            {"channel": int(c), **{k: float(v[c]) for k, v in columns.items() if not math.isnan(v[c])}}
            for c in channels
        ]
        worst = max(row["ratio"] for row in rows)
        self.ctx.note(code, node, why, channels=rows, count=len(rows), ratio=worst)


def _ratio(new: Array, old: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(new / old)


def _names(nodes: Iterable[ir.Node]) -> list[str]:
    return [node.name or node.op_type for node in nodes]
