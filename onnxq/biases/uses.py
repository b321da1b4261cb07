"""Stored int32 biases where they are read: the layer, and the scale that integer kernels take them to have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.carry import carries
from onnxq.facts import Edge
from onnxq.look import Array, attr_float, attr_int, onnx_op, uses
from onnxq.numerics.spec import QTYPES
from onnxq.pairs import integer_type, parameter
from onnxq.states import DEQUANTIZE, is_q

TOLERANCE = 1e-3
"""Relative difference of a bias scale from the product that counts as equal: a few float32 roundings are 1e-6."""

Read = Callable[[ir.Value | None], Array | None]


@dataclass(frozen=True)
class BiasUse:
    """A bias where it is read.

    Attributes:
        dq: The DequantizeLinear of the bias.
        node: The layer: Conv, ConvTranspose, Gemm, or the MatMul in front of an Add.
        x: The DequantizeLinear of its input, if there is one.
        w: The DequantizeLinear of its weight, if there is one.
        edge: The use by the layer or the Add.
        carried: Whether ops stand between that only hand it on.
    """

    dq: ir.Node
    node: ir.Node
    x: ir.Node | None
    w: ir.Node | None
    edge: Edge
    carried: bool = False

    @property
    def wide(self) -> bool:
        """Whether input or weight are of more than 8 bits, or floats, so that no integer kernel runs."""
        kinds = [integer_type(dq) for dq in (self.x, self.w) if dq is not None]
        specs = [QTYPES.get(kind.name.lower()) for kind in kinds if kind is not None]
        return any(spec is None or spec.bits > 8 or spec.is_float for spec in specs)

    def product(self, read: Read) -> Array | None:
        """The scale that kernels take the bias to have; see `product`."""
        return product(self.node, self.x, self.w, read)


def product(node: ir.Node, x: ir.Node | None, w: ir.Node | None, read: Read) -> Array | None:
    """``alpha s_x s_w / beta``, float64, of shape [1] or [channels]; None where it is not known.

    Args:
        node: The layer.
        x: The DequantizeLinear of its input.
        w: The DequantizeLinear of its weight.
        read: Gives constants.
    """
    if x is None or w is None or attr_int(w, "block_size", 0):
        return None
    s_x, s_w = read(parameter(x, 1)), read(parameter(w, 1))
    if s_x is None or s_w is None or s_x.size != 1 or not (s_x > 0).all() or not (s_w > 0).all():
        return None
    factor = 1.0
    if onnx_op(node, "Gemm"):
        factor = attr_float(node, "alpha", 1.0) / (attr_float(node, "beta", 1.0) or 1.0)
    found = float(s_x.ravel()[0]) * s_w.astype(np.float64).ravel() * factor
    tiles = ops.scale_tiles(node)
    return np.tile(found, tiles) if tiles > 1 < found.size else found


def bias_uses(dq: ir.Node) -> Iterator[BiasUse]:
    """Each layer that reads a DequantizeLinear as its bias, also behind ops that only hand it on."""
    int32 = integer_type(dq) == ir.DataType.INT32
    for edge, carried in _readers(dq.outputs[0], False):
        row = ops.info(edge.node)
        if row is not None and row.bias == edge.index and onnx_op(edge.node, "Conv", "ConvTranspose", "Gemm"):
            yield BiasUse(dq, edge.node, *operands(edge.node), edge, carried)
        elif onnx_op(edge.node, "Add") and int32:
            other = edge.node.inputs[1 - edge.index]
            product = other.producer() if other is not None else None
            if product is not None and onnx_op(product, "MatMul"):
                yield BiasUse(dq, product, *operands(product), edge, carried)


def operands(node: ir.Node) -> tuple[ir.Node | None, ir.Node | None]:
    """The DequantizeLinear of input and weight of a layer, looked through ops that only carry."""
    found: list[ir.Node | None] = []
    for value in node.inputs[:2]:
        producer = value.producer() if value is not None else None
        while producer is not None and carries(producer) and producer.inputs and producer.inputs[0] is not None:
            producer = producer.inputs[0].producer()
        found.append(producer if is_q(producer, DEQUANTIZE) else None)
    x, w = (*found, None, None)[:2]
    return x, w


def _readers(value: ir.Value, carried: bool) -> Iterator[tuple[Edge, bool]]:
    """Uses of a value, looked through ops that only carry it; whether there are such between."""
    pending = [(value, carried)]
    while pending:
        value, carried = pending.pop()
        for edge in uses(value):
            if carries(edge.node) and not edge.index:
                pending.append((edge.node.outputs[0], True))
            else:
                yield edge, carried
