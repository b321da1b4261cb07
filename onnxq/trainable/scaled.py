"""Pairs that onnxruntime's training build cannot compute, in a domain where it can, and back.

`FakeQuant` of the training build has one scale and the range of 8 bits. With scale 1 it only rounds and clips, so that
any pair is

    x -> Div(s) [-> Add(z)] [-> Clip] -> QuantizeLinear(1, z') -> DequantizeLinear(1, z') [-> Sub(z)] -> Mul(s)

with s (and z, where channels differ in it) as float constants that broadcast over x; z' is the zero point where all
channels have the same one, else 0. Clip stands for a type of fewer than 8 bits. The gradient is mask * s * 1/s: the
straight-through estimator. Where channels differ in z, a quotient exactly between two integers may round the other way.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.edit import PASS_KEY, Array, Namer, add_initializer, replace_uses
from onnxq.look import graph_of
from onnxq.numerics.spec import Blocked, Encoding, PerTensor
from onnxq.numerics.tiles import spread
from onnxq.pairs import parameter
from onnxq.trainable import record
from onnxq.trainable.record import Form, rewire

_MAKER = "to-trainable"


def limits(encoding: Encoding, bits: int) -> tuple[int, int]:
    """The integers a pair may use when it has ``bits`` at most: the type's own, or as many around its zero point.

    Zero points that differ keep the range of the type.
    """
    qtype, zero = encoding.spec.qtype, np.unique(encoding.zero_point)
    if bits >= qtype.bits or zero.size > 1:
        return qtype.qmin, qtype.qmax
    half = 1 << (bits - 1)
    return max(int(zero[0]) - half, qtype.qmin), min(int(zero[0]) + half - 1, qtype.qmax)


def is_plain(encoding: Encoding, bits: int) -> bool:
    """Whether the training build computes a pair as it is: one scale, all of an 8-bit range."""
    qtype = encoding.spec.qtype
    whole = limits(encoding, bits) == (qtype.qmin, qtype.qmax)
    return encoding.scale.size == 1 and encoding.axis is None and qtype.bits == 8 and whole


class Scaler:
    """Rewrites pairs; constants that several pairs need are made once.

    Args:
        namer: Fresh names.
    """

    def __init__(self, namer: Namer) -> None:
        self.namer = namer
        self._made: dict[tuple[object, ...], ir.Value] = {}

    def scale(self, q: ir.Node, dq: ir.Node, encoding: Encoding, dims: tuple[int | None, ...], bits: int) -> None:
        """Put the nodes around a pair with one reader, and remember its form at the DequantizeLinear."""
        record.write(dq.metadata_props, form=Form.of(q, dq, encoding).to_json())
        source, scale = q.inputs[0], parameter(q, 1)
        assert source is not None and scale is not None
        home, base = graph_of(scale), scale.name or "scale"
        s = self._constant(home, base, (scale, dims), _spread(encoding, encoding.scale, dims))
        zeros = np.unique(encoding.zero_point)
        zero = int(zeros[0]) if zeros.size == 1 else 0
        signed = encoding.spec.qtype.qmin < 0
        value, shift = self._node("Div", [source, s], q, q), None
        if zeros.size > 1:
            z = _spread(encoding, encoding.zero_point.astype(np.float32), dims)
            shift = self._constant(home, f"{base}_zero_point", (scale, dims, "zero", parameter(q, 2)), z)
            value = self._node("Add", [value, shift], q, q)
        low, high = limits(encoding, bits)
        if high - low < 255:
            ends = [self._float(home, float(n - zero)) for n in (low, high)]
            value = self._node("Clip", [value, *ends], q, q)
        pair = [self._float(home, 1.0), self._integer(home, zero, signed)]
        q.attributes.clear()
        dq.attributes.clear()
        q.domain = dq.domain = ""
        rewire(q, [value, *pair])
        rewire(dq, [q.outputs[0], *pair])
        q.outputs[0].dtype = ir.DataType.INT8 if signed else ir.DataType.UINT8
        self._behind(dq, shift, s)

    def settle(self, q: ir.Node, dq: ir.Node, encoding: Encoding) -> bool:
        """Let a plain pair say its type by a zero point, in ONNX's own domain; True if it did not."""
        said = all(parameter(node, 2) is not None for node in (q, dq))
        if said and q.domain == dq.domain == "" and "output_dtype" not in {*q.attributes, *dq.attributes}:
            return False
        record.write(dq.metadata_props, form=Form.of(q, dq, encoding).to_json())
        scale = parameter(q, 1)
        assert scale is not None and q.inputs[0] is not None
        zero = self._integer(graph_of(scale), int(encoding.zero_point), encoding.spec.qtype.qmin < 0)
        for node, data in ((q, q.inputs[0]), (dq, q.outputs[0])):
            rewire(node, [data, scale, parameter(node, 2) or zero])
            node.attributes.pop("output_dtype", None)
            node.domain = ""
        return True

    def _behind(self, dq: ir.Node, shift: ir.Value | None, s: ir.Value) -> None:
        """``DQ [-> Sub] -> Mul``, which takes over what the DequantizeLinear made."""
        out, graph = dq.outputs[0], dq.graph
        assert graph is not None
        steps = [("Sub", shift), ("Mul", s)] if shift is not None else [("Mul", s)]
        nodes = []
        for op, operand in steps:
            node = ir.Node("", op, [None, operand], name=self.namer(f"{dq.name or dq.op_type}_{op}"))
            node.metadata_props[PASS_KEY] = _MAKER
            made = node.outputs[0]
            made.name, made.type, made.shape = self.namer(f"{out.name}_{op.lower()}"), out.type, out.shape
            nodes.append(node)
        graph.insert_after(dq, nodes)
        replace_uses(out, nodes[-1].outputs[0], self.namer)
        for before, node in zip([dq, *nodes], nodes, strict=False):
            node.replace_input_with(0, before.outputs[0])

    def _node(self, op: str, inputs: list[ir.Value], like: ir.Node, before: ir.Node) -> ir.Value:
        node = ir.Node("", op, inputs, name=self.namer(f"{like.name or like.op_type}_{op}"))
        node.metadata_props[PASS_KEY] = _MAKER
        out = node.outputs[0]
        out.name = self.namer(f"{inputs[0].name}_{op.lower()}")
        out.type, out.shape = inputs[0].type, inputs[0].shape
        assert before.graph is not None
        before.graph.insert_before(before, node)
        return out

    def _constant(
        self, home: ir.Graph, base: str, key: tuple[object, ...], data: Array | ir.TensorProtocol
    ) -> ir.Value:
        if key not in self._made:
            self._made[key] = add_initializer(home, base, data, self.namer)
        return self._made[key]

    def _float(self, home: ir.Graph, number: float) -> ir.Value:
        name = "one" if number == 1 else f"{'minus_' if number < 0 else 'plus_'}{abs(number):g}"
        return self._constant(home, name, (home, number), np.array(number, np.float32))

    def _integer(self, home: ir.Graph, number: int, signed: bool) -> ir.Value:
        """A zero point of its own: pairs must not share one (`onnxq.trainable.zero_points`)."""
        kind = np.int8 if signed else np.uint8
        return add_initializer(home, f"zero_point_{number}", np.array(number, kind), self.namer)


def _spread(encoding: Encoding, numbers: Array, dims: tuple[int | None, ...]) -> Array | ir.TensorProtocol:
    """One number a channel or block, in a shape that broadcasts over the data; blocks are spread when written."""
    granularity = encoding.spec.granularity
    if isinstance(granularity, PerTensor):
        return numbers
    axis = granularity.axis
    assert axis is not None
    if not isinstance(granularity, Blocked):
        return numbers.reshape([-1 if i == axis else 1 for i in range(len(dims))])
    length = dims[axis]
    assert length is not None
    shape = tuple(length if i == axis else n for i, n in enumerate(numbers.shape))
    return ir.LazyTensor(
        lambda: ir.Tensor(spread(numbers, granularity, shape)), dtype=ir.DataType.FLOAT, shape=ir.Shape(shape)
    )
