"""A weight as the matrix of a product, ``y = W x`` for each group: what a method needs that looks at a layer's inputs.

Conv is a product of its kernel with patches of the input; an LSTM, GRU or RNN has two, one with its input and one with
the state before. Layouts: the operator texts of ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.calibration.patches import ROWS, Array, patches, thinned
from onnxq.facts import Edge
from onnxq.look import attr_int, onnx_op
from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import spread


@dataclass(frozen=True)
class Product:
    """How one use of a weight multiplies.

    Attributes:
        edge: The use.
        dims: Shape of the weight.
        groups: Matrices in the weight: groups of a Conv, directions of an LSTM.
        apart: Whether each group has inputs of its own; otherwise all see the same.
        inputs: Inputs of an output value.
        source: The value that holds the inputs.
    """

    edge: Edge
    dims: tuple[int, ...]
    groups: int
    apart: bool
    inputs: int
    source: ir.Value

    @property
    def view(self) -> tuple[object, ...]:
        """What decides how inputs are read out of the source: products with one view see the same vectors."""
        node = self.edge.node
        if onnx_op(node, "Conv"):
            return (self.source, node, self.groups)
        kind = "state" if self._state else "input"
        flags = tuple(attr_int(node, name, 0) for name in ("transA", "transB", "layout"))
        return (self.source, kind, self.edge.index == 0, flags, self.inputs)

    @property
    def _state(self) -> bool:
        return onnx_op(self.edge.node, *ops.RECURRENT) and self.edge.index == 2

    def matrix(self, weight: Array) -> Array:
        """[groups, rows, inputs] of an array in the weight's layout."""
        node = self.edge.node
        if onnx_op(node, *ops.RECURRENT):
            return weight
        if onnx_op(node, "Conv"):
            return weight.reshape(self.groups, -1, self.inputs)
        return np.moveaxis(weight, self._axis, -1)[None]

    def layout(self, matrix: Array) -> Array:
        """Inverse of `matrix`, contiguous."""
        if onnx_op(self.edge.node, "Conv", *ops.RECURRENT):
            return np.ascontiguousarray(matrix.reshape(self.dims))
        return np.ascontiguousarray(np.moveaxis(matrix[0], -1, self._axis))

    @property
    def _axis(self) -> int:
        axis = ops.contraction_axis(self.edge.node, self.edge.index, self.dims)
        assert axis is not None
        return axis

    def vectors(self, x: Array) -> Array:
        """Input vectors [count, groups or 1, inputs] out of one sample of the source; a large one is thinned out."""
        node = self.edge.node
        if onnx_op(node, "Conv"):
            # Few inputs need few vectors, and those of a depthwise layer are as large as the kernel is.
            rows = patches(x, node, self.dims[2:], ROWS if self.inputs > 64 or self.groups == 1 else ROWS // 4)
        elif self._state:  # [steps, directions, batch, state], or [batch, steps, directions, state]
            x = x if attr_int(node, "layout", 0) else x.swapaxes(1, 2)
            rows = thinned(x.reshape(-1, *x.shape[2:]))
        elif onnx_op(node, *ops.RECURRENT):
            rows = thinned(x.reshape(-1, x.shape[-1]))
        else:
            other = 1 - self.edge.index
            axis = ops.contraction_axis(node, other, x.shape)
            rows = thinned(np.moveaxis(x, -1 if axis is None else axis, -1).reshape(-1, self.inputs))
        return rows.reshape(len(rows), self.groups if self.apart else 1, self.inputs)

    def parameter(self, p: Array, encoding: Encoding) -> Array:
        """Scale or zero point of each value, [groups, rows, inputs]."""
        return self.matrix(spread(p, encoding.spec.granularity, self.dims))


def read_product(edge: Edge, dims: tuple[int, ...]) -> Product | str:
    """Read the use of a weight of shape ``dims`` as a product, or say in words why it is none."""
    node = edge.node
    if onnx_op(node, *ops.RECURRENT):
        return _recurrent(edge, dims)
    if not onnx_op(node, "Conv", "Gemm", "MatMul"):
        return f"its inputs are not collected for {node.op_type}"
    other = node.inputs[1 - edge.index] if edge.index < 2 else None
    if other is None:
        return "it is no operand of a product"
    if onnx_op(node, "Conv"):
        groups = attr_int(node, "group", 1)
        return Product(edge, dims, groups, True, int(np.prod(dims[1:])), other)
    if len(dims) != 2:
        return f"its weight of rank {len(dims)} is not one matrix"
    axis = ops.contraction_axis(node, edge.index, dims)
    assert axis is not None
    return Product(edge, dims, 1, False, dims[axis], other)


def _recurrent(edge: Edge, dims: tuple[int, ...]) -> Product | str:
    node = edge.node
    if edge.index == 1:
        x = node.inputs[0]
        assert x is not None
        return Product(edge, dims, dims[0], False, dims[2], x)
    if node.op_type == "GRU" and not attr_int(node, "linear_before_reset", 0):
        return "its recurrence weight multiplies a state that no output shows (linear_before_reset=0)"
    states = node.outputs[0] if node.outputs else None
    if states is None or not states.name:
        return "its recurrence weight multiplies states, which are no output of the node"
    return Product(edge, dims, dims[0], True, dims[2], states)
