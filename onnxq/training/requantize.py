"""Int32 biases of trained layers: at the scale that integer kernels take, and never too large for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.biases.layers import Biased
from onnxq.carry import constant_behind
from onnxq.context import Context
from onnxq.edit import Namer, copy_metadata, graph_of, replace_initializer
from onnxq.facts import Edge
from onnxq.look import Array, constant, constant_tensor, onnx_op, uses
from onnxq.numerics import bias as arithmetic
from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.spec import Encoding
from onnxq.pairs import read_encoding
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.wording import plural


@dataclass(frozen=True)
class Reader:
    """A product that adds a dequantized bias.

    Attributes:
        of: The layer.
        weight: Encoding of its weight, as stored now.
        x: Encoding of its activation, one scale.
    """

    of: Biased
    weight: Encoding
    x: Encoding

    @property
    def s_x(self) -> float:
        """Scale of the activation in units of the bias."""
        return float(self.x.scale.reshape(())) * self.of.factor

    def product(self) -> Array:
        """``s_x * s_w``, rounded once: [channels], or rank 0."""
        return arithmetic.product_scale(self.s_x, self.of.tiled(self.weight.scale), self.of.dtype)

    def least(self) -> Array:
        """The smallest weight scales at which its bias fits int32, 0 where that is no question."""
        of, size = self.of, self.of.gathered(self.of.size, self.weight.scale)
        products = arithmetic.largest_sum(self.x.spec, self.weight.spec, of.terms)
        room = arithmetic.rounding_room(self.x.spec, of.terms)
        least = arithmetic.least_scale(self.weight, size, self.s_x, products, room, of.dtype)
        full = size > self.s_x * self.weight.scale.astype(np.float64) * arithmetic.LARGEST
        return np.where(full, least, 0.0)


def stored_biases(model: ir.Model) -> Iterator[tuple[ir.Node, Array]]:
    """DequantizeLinear nodes of int32 constants in the main graph, with what they make, float64."""
    for node in model.graph:
        tensor = constant_tensor(node.inputs[0]) if is_q(node, DEQUANTIZE) else None
        if tensor is None or tensor.dtype != ir.DataType.INT32:
            continue
        encoding = read_encoding(node, tuple(tensor.shape.numpy()))
        if not isinstance(encoding, str):
            yield node, dequantize(tensor.numpy(), encoding, np.float64)


def readers_of(dq: ir.Node, values: Array) -> Iterator[Reader]:
    """The products that add what a DequantizeLinear makes, as far as their scales can be read.

    Args:
        dq: The DequantizeLinear of a bias.
        values: The bias, in the shape of the constant.
    """
    for edge in uses(dq.outputs[0]):
        row = ops.info(edge.node)
        if row is not None and row.bias == edge.index:
            node: ir.Node | None = edge.node
        else:
            added = edge.node.inputs[1 - edge.index] if onnx_op(edge.node, "Add") else None
            node = added.producer() if added is not None else None
        found = None if node is None else _reader(node, edge, values)
        if found is not None:
            yield found


def _reader(node: ir.Node, bias: Edge, values: Array) -> Reader | None:
    row = ops.info(node)
    for slot in row.weights if row is not None else ():
        source = next(i for i in (0, 1) if i != slot.index)
        found, x = constant_behind(_behind_pair(node.inputs[slot.index])), _read(node, source, ())
        if isinstance(found, str) or isinstance(x, str) or x.scale.size != 1:
            continue
        dims, weight = found.dims, _read(node, slot.index, found.dims)
        if isinstance(weight, str):
            continue
        axis = ops.channel_axis(node, slot.index, len(dims))
        channels = ops.channels(node, slot.index, dims)
        flat = values.reshape(-1)
        if weight.block_size is None and weight.axis in (None, axis) and channels and flat.size in (1, channels):
            edges = Edge(node, source), Edge(node, slot.index)
            wide = np.broadcast_to(flat, (channels,))
            out = bias.node.outputs[0]
            return Reader(Biased(node, *edges, weight, dims, bias, wide, np.dtype(np.float32), out), weight, x)
    return None


def _read(node: ir.Node, index: int, dims: tuple[int, ...]) -> Encoding | str:
    """The encoding of an input of shape ``dims`` that a DequantizeLinear makes."""
    value = node.inputs[index] if index < len(node.inputs) else None
    dq = value.producer() if value is not None else None
    return read_encoding(dq, dims) if dq is not None and is_q(dq, DEQUANTIZE) else "no DequantizeLinear makes it"


def _behind_pair(value: ir.Value | None) -> ir.Value | None:
    """What a DequantizeLinear, or a pair, is made of."""
    while value is not None and (made := value.producer()) is not None:
        if not (is_q(made, DEQUANTIZE) or is_q(made, QUANTIZE)):
            break
        value = made.inputs[0]
    return value


def raise_weights(readers: Sequence[Reader], namer: Namer, ctx: Context) -> None:
    """Raise weight scales where a trained bias has grown out of int32 (policy ``raise-weight-scale`` of `guard-bias`).

    Products of more than 8 bits are left alone: no kernel sums them in int32.
    """
    for reader in readers:
        of, weight = reader.of, reader.weight
        if arithmetic.wide(reader.x.spec, weight.spec):
            continue
        new = arithmetic.raised(weight, reader.least())
        if new is weight:
            continue
        dq = of.weight.value.producer()
        halves = [dq, dq.inputs[0].producer() if dq is not None and dq.inputs[0] is not None else None]
        for held in dict.fromkeys(node.inputs[1] for node in halves if node is not None):
            stored = constant(held)
            assert held is not None and stored is not None
            replace_initializer(held, new.scale.reshape(stored.shape), namer)
        channels = np.flatnonzero(np.atleast_1d(new.scale > weight.scale))
        why = f"the bias has grown out of int32 in {plural(channels.size, 'channel')}: there the weight scale is raised"
        ctx.note("raised-weight-scale", of.node, why, channels=[int(c) for c in channels], count=channels.size)


def encode_bias(dq: ir.Node, values: Array, before: Array | None, namer: Namer, ctx: Context) -> None:
    """Round a bias to the int32 constant behind a DequantizeLinear.

    A scale that was the product of two others, follows them; any other stays. Readers whose products differ get copies.

    Args:
        dq: The DequantizeLinear.
        values: The bias, in the shape of the constant, float64.
        before: The first reader's product of scales before the training; None if there is none.
        namer: Fresh names.
        ctx: Takes notes.
    """
    encoding = read_encoding(dq, values.shape)
    assert isinstance(encoding, Encoding)
    found: dict[bytes, tuple[Array, list[Reader]]] = {}
    for reader in readers_of(dq, values):
        product = _like(reader.product(), encoding.scale)
        if product is not None:
            found.setdefault(product.tobytes(), (product, []))[1].append(reader)
    old = None if before is None else _like(before, encoding.scale)
    for i, (product, readers) in enumerate(found.values()):
        follows = old is not None and np.isclose(encoding.scale, old, rtol=1e-5, atol=0)
        scale = np.where(follows & (product != old), product, encoding.scale)
        _store(dq if i == 0 else _copy(dq, readers, namer), values, encoding, scale, namer, ctx)
    if not found:
        _store(dq, values, encoding, encoding.scale, namer, ctx)


def _like(product: Array, scale: Array) -> Array | None:
    """A product in the shape of the stored scale; None if it has more entries."""
    if product.size > 1 and scale.size != product.size:
        return None
    return np.array(np.broadcast_to(product if product.size == 1 else product.reshape(scale.shape), scale.shape))


def _store(dq: ir.Node, values: Array, encoding: Encoding, scale: Array, namer: Namer, ctx: Context) -> None:
    data, own = dq.inputs[0], dq.inputs[1]
    assert data is not None and own is not None
    stored, size = constant(own), np.abs(values)
    if encoding.axis is not None:
        size = size.max(axis=tuple(i for i in range(values.ndim) if i != encoding.axis))
    size = size if scale.ndim else size.max(initial=0.0)
    if not (arithmetic.normal(scale) & (size <= scale.astype(np.float64) * arithmetic.LARGEST)).all():
        ctx.note(
            "own-bias-scale", dq, "the trained bias does not fit int32 at input scale x weight scale: its own scale"
        )
        scale = np.asarray(arithmetic.own_scale(scale, size), np.float32)
    assert stored is not None
    if not np.array_equal(scale, encoding.scale):
        replace_initializer(own, scale.astype(np.float32).reshape(stored.shape), namer, lambda edge: edge.node is dq)
    integers = quantize(values, replace(encoding, scale=scale))
    replace_initializer(data, integers, namer, lambda edge: edge.node is dq)


def _copy(dq: ir.Node, readers: Sequence[Reader], namer: Namer) -> ir.Node:
    """A DequantizeLinear of the same constants for some of its readers."""
    new = ir.Node("", DEQUANTIZE, dq.inputs, dq.attributes.values(), name=namer(dq.name or DEQUANTIZE))
    copy_metadata(new, dq, "train")
    old = dq.outputs[0]
    new.outputs[0].name, new.outputs[0].type, new.outputs[0].shape = namer(old.name or "bias"), old.type, old.shape
    graph_of(old).insert_after(dq, new)
    for reader in readers:
        reader.of.bias.node.replace_input_with(reader.of.bias.index, new.outputs[0])
    return new
