"""The table of integer operators: how each becomes DequantizeLinear -> float op -> QuantizeLinear, or why it cannot."""

from __future__ import annotations

from onnxq.qoperators.raising import Rewrite

FORMS: dict[tuple[str, str], Rewrite] = {}
"""(domain, op type) -> its rewrite; each module of this package that has some brings a dict of its own."""
