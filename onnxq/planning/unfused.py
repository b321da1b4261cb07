"""Weight-only layers that onnxruntime does not fuse, so that it dequantizes their weight in every run."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.facts import Plan
from onnxq.layers import Layer, read_layer
from onnxq.look import attr_int, onnx_op, uses
from onnxq.nbits import SMALLEST_BLOCK
from onnxq.numerics.spec import Blocked

_THEN = "its weight is dequantized in every run"


def unfused(plan: Plan) -> Iterator[tuple[ir.Node, str]]:
    """Weight-only layers of a plan that will not become MatMulNBits, with the reason in words.

    Measured with onnxruntime 1.32: types of 16 bits, blocks of other sizes than powers of two from 16, the first of two
    weight-only layers with nothing but a Relu between them, and a layer right behind a table, whose input a
    DequantizeLinear makes.
    """
    layers = {edge.node for edge in plan.weights if plan.decisions[edge.node].status == "weight-only"}
    for node in plan.decisions:
        if node not in layers or onnx_op(node, "Gather"):
            continue
        layer = read_layer(node)
        if not isinstance(layer, Layer):
            continue
        why = _unfit(layer, plan) if onnx_op(node, "MatMul", "Gemm") else ""
        if why:
            yield node, f"{why}: {_THEN}"
            continue
        maker = layer.inputs[0].value.producer()
        if maker in layers and onnx_op(maker, "Gather"):
            yield node, f"its input is a row of a table, dequantized: {_THEN} (embeddings: float avoids that)"
        elif onnx_op(layer.tail.producer(), "Relu") and any(e.node in layers for e in uses(layer.tail)):
            yield node, f"only a Relu stands between it and the next layer: {_THEN} (matmulnbits: true avoids that)"


def _unfit(layer: Layer, plan: Plan) -> str:
    """What onnxruntime's kernel does not take of the weight of a layer; empty if it takes all."""
    spec = plan.weights.get(layer.weight) if layer.weight is not None else None
    if spec is None:
        return ""
    if spec.qtype.bits > 8:
        return f"onnxruntime fuses weights of 2, 4 and 8 bits, not {spec.qtype}"
    if isinstance(spec.granularity, Blocked):
        size, turned = spec.granularity.size, attr_int(layer.node, "transB", 0)
        rows = layer.weight_dims[-1 if turned else -2]  # a block that holds all is one scale a channel
        if size < rows and (size < SMALLEST_BLOCK or size & (size - 1)):
            return f"onnxruntime fuses blocks of 16, 32, 64 and so on, not of {size}"
    return ""
