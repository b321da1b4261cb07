"""Weight-only layers that onnxruntime does not fuse, so that it dequantizes their weight in every run."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.facts import Plan
from onnxq.layers import Layer, read_layer
from onnxq.look import onnx_op, uses

_THEN = "its weight is dequantized in every run"


def unfused(plan: Plan) -> Iterator[tuple[ir.Node, str]]:
    """Weight-only layers of a plan that will not become MatMulNBits, with the reason in words.

    Measured with onnxruntime 1.32: the first of two weight-only layers with nothing but a Relu between them, and a
    layer right behind a table, whose input a DequantizeLinear makes.
    """
    layers = {edge.node for edge in plan.weights if plan.decisions[edge.node].status == "weight-only"}
    for node in plan.decisions:
        if node not in layers or onnx_op(node, "Gather"):
            continue
        layer = read_layer(node)
        if not isinstance(layer, Layer):
            continue
        maker = layer.inputs[0].value.producer()
        if maker in layers and onnx_op(maker, "Gather"):
            yield node, f"its input is a row of a table, dequantized: {_THEN} (embeddings: float avoids that)"
        elif onnx_op(layer.tail.producer(), "Relu") and any(e.node in layers for e in uses(layer.tail)):
            yield node, f"only a Relu stands between it and the next layer: {_THEN} (matmulnbits: true avoids that)"
