"""What stands behind ConvInteger and MatMulInteger: ``(+ int32 bias) -> Cast -> Mul(scales) (-> Add bias)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.carry import constant_behind, step
from onnxq.look import Array, attr_int, constant, dims_of, is_constant, only_use, onnx_op
from onnxq.qoperators.movement import moved
from onnxq.qoperators.raising import Raiser
from onnxq.states import QUANTIZE, is_q

_Scales = tuple[ir.Value | None, ir.Value | None]


@dataclass(frozen=True)
class Tail:
    """The tail of an integer product.

    Attributes:
        x_scale: Scale of the first operand, a single number.
        w_scale: Scale of the second one, a single number or one an output channel.
        end: What the last Mul makes.
        int_bias: int32 constant added before the Cast, as the operator that replaces it all takes it.
        rounded: Float bias of a Conv that was rounded down to a multiple of both scales at run time, and then added
            before the Cast.
        channel: Output-channel axis, counted from the end: 1 for the last one.
    """

    x_scale: ir.Value
    w_scale: ir.Value
    end: ir.Value
    int_bias: ir.Value | None
    rounded: ir.Value | None
    channel: int | None

    def float_bias(self, node: ir.Node, raiser: Raiser, channels: int) -> tuple[ir.Value | None, ir.Value]:
        """The bias of an Add right behind, as a Conv takes it, and where the tail then ends.

        Returns:
            None and the end as it is where there is none: no constant of one number a channel.
        """
        found = _addend(self.end)
        if found is None or self.channel is None:
            return None, self.end
        other, add = found
        behind = constant_behind(other)
        if isinstance(behind, str) or not _along(behind.dims, self.channel, channels):
            return None, self.end
        if behind.source.is_initializer() and tuple(behind.tensor.shape.numpy()) == (channels,):
            return behind.source, add
        values = behind.read().numpy().reshape(channels)
        return raiser.constant(node, f"{behind.source.name}_bias", values), add


def find_tail(node: ir.Node, raiser: Raiser, channel: int | None, rank: int) -> Tail | None:
    """The tail behind an integer product, or None where no scales are multiplied to what it makes.

    Every scale must be a constant, come from the DynamicQuantizeLinear that made the operand, or be an input of the
    graph: all there where the product is computed. Of constants the last one is the scale of the second operand.

    Args:
        node: A ConvInteger or MatMulInteger.
        raiser: Makes constants.
        channel: Output-channel axis, counted from the end; None where it is unknown.
        rank: The output has at least so many axes.
    """
    x, w = node.inputs[:2]
    assert x and w
    value, int_bias, rounded = node.outputs[0], None, None
    found = _addend(value)
    if found is not None:
        other, value = found
        int_bias, rounded = _int_bias(node, raiser, other, channel), _rounded(node, other, channel)
        if int_bias is None and rounded is None:
            return None
    edge = only_use(value)
    if edge is None or not onnx_op(edge.node, "Cast") or attr_int(edge.node, "to", 0) != ir.DataType.FLOAT:
        return None
    value, own = edge.node.outputs[0], (_dynamic_scale(x), _dynamic_scale(w))
    factors: list[ir.Value] = []
    tail = None
    while True:
        edge = only_use(value)
        if edge is None or not onnx_op(edge.node, "Mul") or edge.node.graph is not node.graph:
            return tail
        more, value = _factors(edge.node.inputs[1 - edge.index]), edge.node.outputs[0]
        if not all(_usable(factor, node, own, channel, rank) for factor in more):
            return tail
        factors += more
        scales = _assigned(factors, own)
        if scales is not None:
            x_scale, w_scale = (_scale(scale, node, raiser) for scale in scales)
            fits = rounded is None or sorted(map(id, rounded.unit)) == sorted(map(id, factors))
            bias = None if rounded is None else rounded.bias
            tail = Tail(x_scale, w_scale, value, int_bias, bias, channel) if fits else None
        if len(factors) >= 2:
            return tail


def _addend(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """What is added to a value that nobody else reads, and the sum."""
    edge = only_use(value)
    if edge is None or not onnx_op(edge.node, "Add"):
        return None
    other = edge.node.inputs[1 - edge.index]
    return None if other is None or other is value else (other, edge.node.outputs[0])


def _int_bias(node: ir.Node, raiser: Raiser, other: ir.Value, channel: int | None) -> ir.Value | None:
    """A constant int32 addend with one number a channel: [channels] for a Conv, as it is for a MatMul."""
    array = constant(other)
    if array is None or channel is None:
        return None
    if node.op_type == "MatMulInteger":
        return other if array.ndim == 1 else None
    dims = dims_of(node.inputs[1])
    if not dims or dims[0] is None or not _along(array.shape, channel, dims[0]):
        return None
    return raiser.constant(node, other.name or "bias", array.reshape(dims[0]))


@dataclass(frozen=True)
class _Rounded:
    """A float bias as a multiple of a unit; ``unit`` is a list of factors."""

    bias: ir.Value
    unit: list[ir.Value]


def _rounded(node: ir.Node, other: ir.Value, channel: int | None) -> _Rounded | None:
    """``bias -> Div(unit) -> Floor or Round -> Cast -> Reshape``, which older versions of onnxruntime's tool write."""
    dims = dims_of(node.inputs[1])
    if node.op_type != "ConvInteger" or not dims or dims[0] is None or channel is None:
        return None
    reshape, cast = _maker(other, "Reshape"), None
    if reshape is not None:
        shape = step(reshape, [dims[0]])
        if not isinstance(shape, str) and _along(shape.after, channel, dims[0]):
            cast = _maker(reshape.inputs[0], "Cast")
    rounding = cast and _maker(cast.inputs[0], "Floor", "Round")
    divided = rounding and _maker(rounding.inputs[0], "Div")
    if divided is None:
        return None
    bias, unit = divided.inputs
    if bias is None or not bias.is_initializer() or dims_of(bias) != (dims[0],):
        return None
    return _Rounded(bias, _factors(unit))


def _maker(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, if it is one of these."""
    node = None if value is None else value.producer()
    return node if onnx_op(node, *op_types) else None


def _along(shape: Sequence[int], channel: int, channels: int | None) -> bool:
    """Whether only the channel axis of a shape, counted from the end, is longer than 1, and as long as it must be."""
    at = len(shape) - channel
    return at >= 0 and shape[at] == channels and all(d == 1 for i, d in enumerate(shape) if i != at)


def _dynamic_scale(value: ir.Value) -> ir.Value | None:
    """The scale that was computed together with integers, perhaps behind ops that move them."""
    while True:
        maker = value.producer()
        if onnx_op(maker, "DynamicQuantizeLinear"):
            assert maker is not None
            return maker.outputs[1] if value is maker.outputs[0] else None
        if is_q(maker, QUANTIZE):
            scale = maker.inputs[1] if maker is not None else None
            return None if is_constant(scale) else scale
        if maker is None or moved(maker) != (0,) or maker.inputs[0] is None:
            return None
        value = maker.inputs[0]


def _factors(value: ir.Value | None) -> list[ir.Value]:
    """The values whose product a value is: a Mul of scales is taken apart."""
    maker = value.producer() if value is not None else None
    if onnx_op(maker, "Mul"):
        assert maker is not None
        return [factor for operand in maker.inputs for factor in _factors(operand)]
    return [] if value is None else [value]


def _usable(factor: ir.Value, node: ir.Node, own: _Scales, channel: int | None, rank: int) -> bool:
    """Whether a factor can be the scale of an operand where the product is computed."""
    if any(factor is scale for scale in own):
        return True
    array = constant(factor)
    if array is None and factor.producer() is not None and factor.graph is node.graph:
        return False
    dims = dims_of(factor) if array is None else array.shape
    if dims is None or len(dims) > rank:
        return False
    if all(d == 1 for d in dims):
        return True
    weight = dims_of(node.inputs[1])
    if array is None or weight is None or channel is None:
        return False
    return _along(array.shape, channel, weight[0 if node.op_type == "ConvInteger" else -1])


def _assigned(factors: list[ir.Value], own: _Scales) -> _Scales | None:
    """The scales of both operands, None for 1; None where one is missing, or there are too many or unfit ones."""
    rest, found = list(factors), list(own)
    for scale in own:
        if scale is not None:
            index = next((i for i, factor in enumerate(rest) if factor is scale), None)
            if index is None:
                return None
            del rest[index]
    rest.sort(key=_is_several)
    for index in (1, 0):
        if found[index] is None and rest:
            found[index] = rest.pop()
    several = found[0] is not None and found[0] is not own[0] and _is_several(found[0])
    return None if rest or several else (found[0], found[1])


def _is_several(factor: ir.Value) -> bool:
    array = constant(factor)
    return array is not None and array.size > 1


def _scale(factor: ir.Value | None, node: ir.Node, raiser: Raiser) -> ir.Value:
    """A factor as a scale: flat, and there where the product is computed."""
    array: Array | None = np.ones((), np.float32) if factor is None else constant(factor)
    if factor is not None and (array is None or (factor.is_initializer() and array.ndim < 2)):
        return factor
    assert array is not None
    flat = array.reshape(-1) if array.size > 1 else array.reshape(())
    return raiser.constant(node, "one" if factor is None else factor.name or "scale", flat)
