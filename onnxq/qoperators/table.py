"""The table of integer operators: how each becomes DequantizeLinear -> float op -> QuantizeLinear, or why it cannot."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.ops import MICROSOFT
from onnxq.qoperators import attention, contrib_pairs, convs, dynamic, elementwise, lookups, products
from onnxq.qoperators.raising import Rewrite

FORMS: dict[tuple[str, str], Rewrite] = {
    **convs.FORMS,
    **products.FORMS,
    **dynamic.FORMS,
    **elementwise.FORMS,
    **contrib_pairs.FORMS,
    **lookups.FORMS,
    **attention.FORMS,
}
"""(domain, op type) -> its rewrite; each module of this package that has some brings a dict of its own."""

_OTHER_FORMAT = "its numbers are no integers with scale and zero point"
_REASONS = {
    "DynamicQuantizeLSTM": "it quantizes input and state anew in every step",
    "QMoE": "it chooses among its weights at run time",
    "QEmbedLayerNormalization": "ONNX has no operator for what it computes",
    "MatMulInteger16": "its sums of 16-bit products are exact in no float type",
    "MatMulBnb4": _OTHER_FORMAT,
    "MatMulFpQ4": _OTHER_FORMAT,
    "QuantizeBFP": _OTHER_FORMAT,
    "DequantizeBFP": _OTHER_FORMAT,
    "QuantizeWithOrder": "it changes the layout for one device",
    "DequantizeWithOrder": "it changes the layout for one device",
}


def why_none(node: ir.Node) -> str:
    """Why an integer operator without an entry in `FORMS` has no Q/DQ form; ``""`` for any other node."""
    if node.domain == MICROSOFT and node.op_type in _REASONS:
        return _REASONS[node.op_type]
    if node.domain == MICROSOFT and node.op_type.startswith("QOrdered"):
        return "its layout is made for one device"
    return "no Q/DQ form of it is known" if node.op_type.startswith("QLinear") else ""
