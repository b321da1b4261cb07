"""Zero columns for weights: one axis grows, and the model computes the same for every finite input.

A Conv's kernel grows at its end together with the padding there; an input axis grows together with the activation; an
output axis grows together with the bias, and a Slice takes what is new away again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.edit import Namer, add_initializer, copy_metadata, graph_of, replace_uses
from onnxq.facts import Edge
from onnxq.layers import Layer, read_layer
from onnxq.look import attr_int, attr_ints, attr_str, constant_tensor, dims_of, onnx_op
from onnxq.weights import weight_tensor

PAD_SINCE = 18
"""First opset whose Pad takes axes."""

# Axis of an activation that holds the input channels.
_INPUT_AXIS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, **dict.fromkeys(ops.RECURRENT, -1)}


@dataclass(frozen=True)
class Growth:
    """What is asked for.

    Attributes:
        edge: Use of a weight.
        axis: Axis of the weight, not negative.
        extra: How many zeros to put at its end.
    """

    edge: Edge
    axis: int
    extra: int


@dataclass
class Widener:
    """Widens layers; weights and activations that several layers share are widened once.

    Attributes:
        namer: Makes names.
        maker: Name of the pass, for the metadata of new nodes.
    """

    namer: Namer
    maker: str
    _constants: dict[tuple[ir.Value, int, int], ir.Value] = field(default_factory=dict)
    _inputs: dict[tuple[ir.Value, int, int, object], ir.Value] = field(default_factory=dict)

    def widen(self, node: ir.Node, growths: Sequence[Growth], apart: Container[ir.Node] = ()) -> str:
        """Widen the weights of one node.

        Args:
            node: Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU or RNN.
            growths: Its weights that grow.
            apart: Nodes that must not be taken for a part of the layer.

        Returns:
            Why that is not possible, in words; then nothing has changed. ``""`` when it is done.
        """
        layer = read_layer(node, apart)
        if isinstance(layer, str):
            return layer
        ways = [self._way(layer, growth) for growth in growths]
        for way in ways:
            if isinstance(way, str):
                return way
        for way in ways:
            assert not isinstance(way, str)
            way()
        return ""

    def _way(self, layer: Layer, growth: Growth) -> Callable[[], None] | str:
        node, axis, row = layer.node, growth.axis, ops.info(layer.node)
        tensor, slot = weight_tensor(growth.edge.value), row.slot(1) if row else None
        assert tensor is not None and slot is not None
        dims = [int(d) for d in tensor.shape.numpy()]
        channel = slot.channel_axis(node, len(dims))
        summed = slot.contraction_axis(node, len(dims)) if slot.contraction_axis else 1 - channel
        if growth.edge.index != 1:
            recurrent = onnx_op(node, *ops.RECURRENT)
            return "its length is that of the hidden state, an output" if recurrent else "it is the left operand"
        if onnx_op(node, "Conv", "ConvTranspose") and axis >= 2:
            attributes = _grown_kernel(node, dims, growth)
            return attributes if isinstance(attributes, str) else lambda: self._kernel(growth, attributes)
        if axis == summed:
            grouped = attr_int(node, "group", 1) > 1
            return "each group would need an input channel of its own" if grouped else lambda: self._input(growth)
        if onnx_op(node, "Gemm", "MatMul") and axis == channel:
            return lambda: self._output(layer, growth, dims[axis])
        return f"axis {axis} of a {node.op_type} weight cannot grow"

    def _kernel(self, growth: Growth, attributes: dict[str, list[int]]) -> None:
        node = growth.edge.node
        self._constant(growth.edge, growth.axis, growth.extra)
        node.attributes.pop("auto_pad", None)
        for name, numbers in attributes.items():
            node.attributes[name] = ir.AttrInt64s(name, numbers)

    def _input(self, growth: Growth) -> None:
        node, extra = growth.edge.node, growth.extra
        axis = (0 if attr_int(node, "transA", 0) else 1) if onnx_op(node, "Gemm") else _INPUT_AXIS[node.op_type]
        value, graph = node.inputs[0], node.graph
        assert value is not None and isinstance(graph, ir.Graph)
        key = (value, axis, extra, graph)
        if key not in self._inputs:
            numbers = [("pads", [0, extra]), ("axes", [axis])]
            pads, axes = (self._indexes(graph, f"{value.name}_{name}", list_) for name, list_ in numbers)
            pad = self._node("Pad", [value, pads, None, axes], f"{value.name}_padded", node)
            pad.outputs[0].type, pad.outputs[0].shape = value.type, _grown(value, axis, extra)
            graph.insert_before(node, pad)
            self._inputs[key] = pad.outputs[0]
        node.replace_input_with(0, self._inputs[key])
        self._constant(growth.edge, growth.axis, extra)

    def _output(self, layer: Layer, growth: Growth, length: int) -> None:
        self._constant(growth.edge, growth.axis, growth.extra)
        bias = constant_tensor(layer.bias.value) if layer.bias else None
        shape = bias.shape.numpy() if bias is not None else ()
        if layer.bias is not None and shape and shape[-1] == length > 1:  # one number serves all columns
            self._constant(layer.bias, len(shape) - 1, growth.extra)
        tail, graph, narrow = layer.tail, graph_of(layer.tail), layer.tail.shape
        last = tail.producer()
        assert last is not None
        numbers = [("starts", [0]), ("ends", [length]), ("axes", [-1])]
        bounds = [self._indexes(graph, f"{tail.name}_{name}", list_) for name, list_ in numbers]
        cut = self._node("Slice", [tail, *bounds], f"{tail.name}_narrow", layer.node)
        new = cut.outputs[0]
        for made in dict.fromkeys((layer.node.outputs[0], *(node.outputs[0] for node in layer.body))):
            made.shape = _grown(made, -1, growth.extra)
        graph.insert_after(last, cut)
        is_output = tail.is_graph_output()
        replace_uses(tail, new, self.namer)
        cut.replace_input_with(0, tail)
        new.type, new.shape = tail.type, narrow
        if not is_output:
            tail.name, new.name = new.name, tail.name

    def _constant(self, edge: Edge, axis: int, extra: int) -> None:
        """Let a use read the constant with zeros at the end of one axis, appended when it is written."""
        value, tensor = edge.value, weight_tensor(edge.value)
        assert tensor is not None
        key = (value, axis, extra)
        if key not in self._constants:
            dims = [int(d) for d in tensor.shape.numpy()]
            widths = [(0, extra if i == axis else 0) for i in range(len(dims))]
            wide = ir.LazyTensor(
                lambda: ir.Tensor(np.pad(tensor.numpy(), widths), dtype=tensor.dtype),
                dtype=tensor.dtype,
                shape=ir.Shape([d + extra if i == axis else d for i, d in enumerate(dims)]),
            )
            self._constants[key] = add_initializer(graph_of(value), f"{value.name}_padded", wide, self.namer)
        edge.node.replace_input_with(edge.index, self._constants[key])

    def _indexes(self, graph: ir.Graph, name: str, numbers: list[int]) -> ir.Value:
        return add_initializer(graph, name, np.array(numbers, np.int64), self.namer)

    def _node(self, op: str, inputs: Sequence[ir.Value | None], output: str, like: ir.Node) -> ir.Node:
        node = ir.Node("", op, inputs, name=self.namer(f"{output}_{op}"))
        node.outputs[0].name = self.namer(output)
        copy_metadata(node, like, self.maker)
        return node


def _grown(value: ir.Value, axis: int, extra: int) -> ir.Shape | None:
    """The shape of a value with one known length changed."""
    if value.shape is None or not value.shape.dims:
        return value.shape
    dims: list[int | str | ir.SymbolicDim | None] = list(value.shape.dims)
    old = dims[axis]
    dims[axis] = old + extra if isinstance(old, int) else None
    return ir.Shape(dims)


def _grown_kernel(node: ir.Node, dims: Sequence[int], growth: Growth) -> dict[str, list[int]] | str:
    """Attributes of a Conv or ConvTranspose with zeros at the end of one kernel axis, or why there are none.

    With ``n`` more taps at dilation ``d``, the end of that axis is padded by ``d * n`` more: a Conv then has as many
    windows as before, and a ConvTranspose cuts off the positions that only the new taps reach.
    """
    at, rank = growth.axis - 2, len(dims) - 2
    dilations = attr_ints(node, "dilations", [1] * rank) or []
    pads = _pads(node, dims[2:], dilations)
    if isinstance(pads, str):
        return pads
    pads[rank + at] += dilations[at] * growth.extra
    kernel = [*dims[2:]]
    kernel[at] += growth.extra
    return {"kernel_shape": kernel, "pads": pads}


def _pads(node: ir.Node, kernel: Sequence[int], dilations: Sequence[int]) -> list[int] | str:
    """The explicit padding, all starts before all ends."""
    auto, rank = attr_str(node, "auto_pad", "NOTSET"), len(kernel)
    if "output_shape" in node.attributes:
        return "its padding follows from output_shape"
    if auto == "VALID":
        return [0] * (2 * rank)
    if auto == "NOTSET":
        return attr_ints(node, "pads", [0] * (2 * rank)) or []
    if onnx_op(node, "ConvTranspose"):
        return f"its padding follows from auto_pad={auto}"
    strides, sizes = attr_ints(node, "strides", [1] * rank) or [], dims_of(node.inputs[0])
    starts, ends = [], []
    for i in range(rank):
        reach, size = dilations[i] * (kernel[i] - 1), sizes[2 + i] if sizes else None
        if strides[i] == 1:
            total = reach
        elif size is None:
            return f"its padding follows from auto_pad={auto} and an input of unknown size"
        else:
            total = max((-(-size // strides[i]) - 1) * strides[i] + reach + 1 - size, 0)
        less, more = total // 2, total - total // 2
        starts.append(more if auto == "SAME_LOWER" else less)
        ends.append(less if auto == "SAME_LOWER" else more)
    return starts + ends
