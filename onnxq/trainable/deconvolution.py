"""ConvTranspose as Conv, and back: onnxruntime's training build has no CPU kernel for the gradient of ConvTranspose.

A transposed convolution of stride s is a convolution of stride 1 over the input with s - 1 zeros between its values
and d(k-1) - p zeros around it, with the weight turned over in space and its two channel axes swapped within each
group (ONNX, operator texts of Conv and ConvTranspose):

    x [-> Unsqueeze -> Pad -> Reshape] -> Pad -> Conv
    W [-> Reshape] -> Transpose [-> Reshape] -> Gather (for each spatial axis) -> Conv
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.edit import PASS_KEY, Namer, add_initializer
from onnxq.look import attr_int, attr_ints, attr_str, dims_of, onnx_op
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.trainable import record
from onnxq.trainable.record import rewire

_ENDS = ("strides", "pads", "output_padding", "output_shape", "auto_pad")


def obstacle(node: ir.Node) -> str:
    """Why a ConvTranspose cannot be written as Conv, in words; ``""`` if it can."""
    if attr_str(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in node.attributes:
        return "its padding depends on the shape of its input (auto_pad or output_shape)"
    if _shape(node.inputs[1]) is None:
        return "the shape of its weight is unknown"
    return ""


def _shape(value: ir.Value | None) -> list[int] | None:
    """The shape of a weight, also behind a pair."""
    while value is not None:
        dims = dims_of(value)
        if dims is not None and None not in dims:
            return [d for d in dims if d is not None]
        node = value.producer()
        value = node.inputs[0] if node is not None and (is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)) else None
    return None


def as_conv(node: ir.Node, namer: Namer) -> None:
    """Turn a ConvTranspose without `obstacle` into a Conv; it keeps its name, and remembers what it was."""
    writer = _Writer(node, namer)
    shape = _shape(node.inputs[1])
    assert shape is not None and node.inputs[0] is not None and node.inputs[1] is not None
    kernel, rank = shape[2:], len(shape) - 2
    group = attr_int(node, "group", 1)
    strides = attr_ints(node, "strides") or [1] * rank
    dilations = attr_ints(node, "dilations") or [1] * rank
    pads = attr_ints(node, "pads") or [0] * 2 * rank
    more = attr_ints(node, "output_padding") or [0] * rank
    was = {a.name: list(a.value) if isinstance(a.value, (list, tuple)) else a.value for a in node.attributes.values()}
    record.write(node.metadata_props, conv_transpose=was)
    x = writer.with_zeros(node.inputs[0], strides)
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    before = [reach[i] - pads[i] for i in range(rank)]
    after = [reach[i] - pads[rank + i] + more[i] - (strides[i] - 1) for i in range(rank)]
    if any((*before, *after)):
        x = writer.node("Pad", [x, writer.ints([0, 0, *before, 0, 0, *after], "pads")])
    weight = writer.turned(node.inputs[1], shape, group)
    node.op_type = "Conv"
    for name in _ENDS:
        node.attributes.pop(name, None)
    node.replace_input_with(0, x)
    node.replace_input_with(1, weight)


class _Writer:
    """Puts nodes in front of another one."""

    def __init__(self, before: ir.Node, namer: Namer) -> None:
        self.before, self.namer, self.base = before, namer, before.name or before.op_type

    def node(self, op: str, inputs: Sequence[ir.Value], **attributes: int | list[int]) -> ir.Value:
        made = ir.node(op, inputs, attributes, name=self.namer(f"{self.base}_{op}"))
        made.metadata_props[PASS_KEY] = "to-trainable"
        made.outputs[0].name = self.namer(f"{self.base}_{op.lower()}")
        made.outputs[0].type = inputs[0].type if op != "Shape" else ir.TensorType(ir.DataType.INT64)
        assert self.before.graph is not None
        self.before.graph.insert_before(self.before, made)
        return made.outputs[0]

    def ints(self, numbers: Sequence[int], what: str) -> ir.Value:
        assert isinstance(self.before.graph, ir.Graph)
        return add_initializer(self.before.graph, f"{self.base}_{what}", np.array(numbers, np.int64), self.namer)

    def with_zeros(self, x: ir.Value, strides: Sequence[int]) -> ir.Value:
        """``s - 1`` zeros behind each value."""
        if all(s == 1 for s in strides):
            return x
        rank = len(strides)
        apart = self.node("Unsqueeze", [x, self.ints([3 + 2 * i for i in range(rank)], "axes")])
        behind = [n for s in strides for n in (0, s - 1)]
        padded = self.node("Pad", [apart, self.ints([0] * (2 + 2 * rank) + [0, 0, *behind], "zeros")])
        size = self.node("Mul", [self.node("Shape", [x]), self.ints([1, 1, *strides], "strides")])
        return self.node("Reshape", [padded, size])

    def turned(self, weight: ir.Value, shape: Sequence[int], group: int) -> ir.Value:
        """[C, M/g, k...] as [M, C/g, k...], backwards along each k."""
        inputs, outputs, *kernel = shape
        if group == 1:
            swapped = self.node("Transpose", [weight], perm=[1, 0, *range(2, len(shape))])
        else:
            apart = [group, inputs // group, outputs, *kernel]
            cut = self.node("Reshape", [weight, self.ints(apart, "groups")])
            moved = self.node("Transpose", [cut], perm=[0, 2, 1, *range(3, len(apart))])
            flat = [group * outputs, inputs // group, *kernel]
            swapped = self.node("Reshape", [moved, self.ints(flat, "weight_shape")])
        for axis, length in enumerate(kernel, 2):
            if length > 1:
                backwards = self.ints(range(length)[::-1], "backwards")
                swapped = self.node("Gather", [swapped, backwards], axis=axis)
        return swapped


def take_back(node: ir.Node) -> bool:
    """Turn a Conv of `as_conv` into the ConvTranspose it was; True if it was one."""
    was = record.read(node.metadata_props).get("conv_transpose")
    if was is None or not onnx_op(node, "Conv"):
        return False
    x = _before(node.inputs[0], ("Pad", "Reshape", "Pad", "Unsqueeze"))
    weight = _before(node.inputs[1], ("Gather", "Reshape", "Transpose"))
    node.op_type = "ConvTranspose"
    node.attributes.clear()
    for name, value in was.items():
        node.attributes[name] = ir.convenience.convert_attribute(name, value)
    rewire(node, [x, weight, *(v for v in node.inputs[2:] if v is not None)])
    return True


def _before(value: ir.Value | None, ops: tuple[str, ...]) -> ir.Value:
    """What went into the nodes that `as_conv` made."""
    assert value is not None
    node = value.producer()
    while node is not None and onnx_op(node, *ops) and node.metadata_props.get(PASS_KEY) == "to-trainable":
        assert node.inputs[0] is not None
        value = node.inputs[0]
        node = value.producer()
    return value
