"""The differentiable twin of a Q/DQ model: arithmetic in place of the pairs, parameters as inputs.

A pair becomes ``u = x / s``, ``c = Clip(u, qmin - z, qmax - z)``, ``d = c + r``, ``y = d * s``. The input ``r``, which
nobody differentiates, stands for ``Round(c) - c`` (`onnxq.training.gradients` puts that in), so the value is that of
the pair, bit for bit: the zero point is an integer, and clipping to integers commutes with rounding. The gradient is
the clipped identity for x, and for s it is ``Round(c) - u`` inside and the bound outside, which is LSQ (Esser et al.,
Learned Step Size Quantization, 2020).

A learned scale is an input in the shape of the stored one; pairs that share it read the same input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.context import Context
from onnxq.edit import Namer, add_initializer, remove_dead, replace_uses
from onnxq.look import Array, constant, constant_tensor, dims_of, graph_of
from onnxq.numerics.affine import dequantize
from onnxq.numerics.spec import Blocked, Encoding, Granularity
from onnxq.pairs import read_encoding
from onnxq.training.gradients import RESIDUE
from onnxq.training.groups import scale_groups
from onnxq.training.layouts import Dims, grid, lying
from onnxq.training.sites import Kind, Pair, Train, find_sites

SLACK = np.float32(1 + 2.0**-20)
"""In one channel of seven, 127 * s divided by s is more than 127 in float32. The largest weights, which stand there
when training begins, shall count as inside; rounding takes the slack away again."""


@dataclass(frozen=True)
class Parameter:
    """One input of a twin that is trained.

    Attributes:
        kind: What it is.
        initial: Its first value, float32.
        held: Names of what holds it in the Q/DQ model: of a weight or a float bias the initializer, of an int32 bias
            the output of its DequantizeLinear, of a scale all initializers with that scale.
        integer: Whether it is an int32 bias.
        data: Names of the constants and activations that a scale quantizes.
        qmax: Largest integer of a scale's type.
        granularity: Of a weight that stands in front of its pair: which values share a scale.
    """

    kind: Kind
    initial: Array
    held: tuple[str, ...]
    integer: bool = False
    data: tuple[str, ...] = ()
    qmax: int = 0
    granularity: Granularity | None = None


def make_twin(model: ir.Model, train: Train, scales: bool, ctx: Context) -> dict[str, Parameter]:
    """Turn a Q/DQ model, whose weights are float in front of pairs, into its twin, in place.

    Args:
        model: The model; opset 13 or later, without Constant nodes and local functions.
        train: Which constants, and which tensors' scales, to train.
        scales: Whether to learn scales.
        ctx: Takes notes on places that are not trained.

    Returns:
        The parameters by the name of the input that holds them. The residue inputs have no shape yet.
    """
    sites = find_sites(model, train, ctx)
    shared = {pair.data: pair.encoding.spec.granularity for pair in sites.pairs}
    writer = _Writer(model, Namer(model))
    if scales:
        for group in scale_groups(sites.pairs, train, ctx):
            writer.scale(group)
    for pair in sites.pairs:
        writer.pair(pair)
    for node in sites.biases:
        writer.bias(node)
    for value, kind in sites.constants.items():
        writer.constant(value, kind, shared.get(value))
    remove_dead(model)
    return writer.parameters


@dataclass
class _Writer:
    model: ir.Model
    namer: Namer
    parameters: dict[str, Parameter] = field(default_factory=dict)
    _learned: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _spread: dict[tuple[Any, ...], ir.Value] = field(default_factory=dict)
    _numbers: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = field(default_factory=dict)

    def scale(self, group: Sequence[Pair]) -> None:
        """One parameter for the scale that some pairs share."""
        held = dict.fromkeys(value for pair in group for value in pair.scales)
        encoding, name = group[0].encoding, self.namer(f"{group[0].data.name}.scale")
        data = tuple((pair.weight or pair.data).name or "" for pair in group)
        self.parameters[name] = Parameter(
            "scale", encoding.scale.copy(), tuple(v.name or "" for v in held), data=data, qmax=encoding.spec.qtype.qmax
        )
        self._learned |= dict.fromkeys(held, self._input(name, encoding.scale.shape))

    def pair(self, pair: Pair) -> None:
        """Arithmetic for both halves of a pair; the QuantizeLinear stays only for a graph output."""
        q, data, encoding = pair.q, pair.data, pair.encoding
        base, dims = q.outputs[0].name or "quantized", _dims(data)
        cut = grid(encoding, dims)
        x = self._cut(q, data, cut, f"{base}.blocks")
        u = self._op(q, "Div", [x, self._scale(q, encoding, dims)], f"{base}.scaled")
        c = self._clipped(q, u, encoding, dims, base)
        residue = ir.Value(name=self.namer(f"{c.name}{RESIDUE}"), type=ir.TensorType(ir.DataType.FLOAT))
        self.model.graph.inputs.append(residue)
        d = self._op(q, "Add", [c, residue], f"{base}.rounded")
        flat = self._cut(q, d, cut and dims, f"{base}.whole")
        flat.type, flat.shape = ir.TensorType(ir.DataType.FLOAT), data.shape
        for mover in pair.movers:
            for out in mover.outputs:
                out.dtype = ir.DataType.FLOAT
        for node in (*pair.movers, *pair.dqs):
            if node.inputs[0] is q.outputs[0]:
                node.replace_input_with(0, flat)
        for dq, found in zip(pair.dqs, pair.outer, strict=True):
            direct = dq.inputs[0] is flat and grid(found, dims) == cut
            self._dequantize(dq, d if direct else None, found)

    def bias(self, node: ir.Node) -> None:
        """A float parameter in place of a dequantized int32 constant."""
        data, out = node.inputs[0], node.outputs[0]
        integers = constant(data)
        assert integers is not None and data is not None
        encoding = read_encoding(node, integers.shape)
        assert isinstance(encoding, Encoding)
        initial = np.ascontiguousarray(dequantize(integers, encoding))
        name = self.namer((data.name or "bias").removesuffix("_quantized") + ".float")
        self.parameters[name] = Parameter("bias", initial, (out.name or "",), integer=True)
        replace_uses(out, self._input(name, initial.shape), self.namer)

    def constant(self, value: ir.Value, kind: Kind, granularity: Granularity | None) -> None:
        """An initializer becomes an input of the same name."""
        tensor, name = constant_tensor(value), value.name
        assert tensor is not None and name is not None
        initial = np.array(tensor.numpy(), np.float32, order="C")
        self.parameters[name] = Parameter(kind, initial, (name,), granularity=granularity)
        del graph_of(value).initializers[name]
        value.const_value = None
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(tensor.shape.numpy())
        self.model.graph.inputs.append(value)

    def _dequantize(self, dq: ir.Node, cut: ir.Value | None, encoding: Encoding) -> None:
        """``y = d * s`` in place of a DequantizeLinear; ``cut`` is d as `grid` cuts it, where it is there already."""
        data, out = dq.inputs[0], dq.outputs[0]
        assert data is not None
        dims, base = _dims(data), out.name or "dequantized"
        blocks = grid(encoding, dims)
        if cut is None:
            cut = self._cut(dq, data, blocks, f"{base}.blocks")
        y = self._op(dq, "Mul", [cut, self._scale(dq, encoding, dims)], f"{base}.scaled")
        y = self._cut(dq, y, blocks and dims, f"{base}.whole")
        y.type, y.shape = ir.TensorType(ir.DataType.FLOAT), data.shape
        replace_uses(out, y, self.namer)

    def _clipped(self, q: ir.Node, u: ir.Value, encoding: Encoding, dims: Dims, base: str) -> ir.Value:
        """``u`` between the bounds of the integers without their zero point, widened by `SLACK`."""
        qtype, zero = encoding.spec.qtype, encoding.zero_point.astype(np.float32)
        ends = [SLACK * (np.float32(qtype.qmin) - zero), SLACK * (np.float32(qtype.qmax) - zero)]
        if (zero == zero.flat[0]).all():
            return self._op(q, "Clip", [u, *(self._number(end.flat[0]) for end in ends)], f"{base}.clipped")
        low, high = (self._number(lying(end, encoding, dims)) for end in ends)
        return self._op(q, "Min", [self._op(q, "Max", [u, low], f"{base}.floored"), high], f"{base}.clipped")

    def _scale(self, node: ir.Node, encoding: Encoding, dims: Dims) -> ir.Value:
        """The scale of a pair node in a shape that broadcasts over its data as `grid` cuts them."""
        own = node.inputs[1]
        assert own is not None
        fixed, learned = lying(encoding.scale, encoding, dims), self._learned.get(own)
        if learned is None:
            return self._number(fixed)
        key = (learned, encoding.spec.granularity, fixed.shape)
        if key not in self._spread:
            self._spread[key] = self._lying(learned, encoding, dims, fixed.shape)
        return self._spread[key]

    def _lying(self, scale: ir.Value, encoding: Encoding, dims: Dims, shape: Dims) -> ir.Value:
        """A learned scale, laid out as `lying` does it."""
        granularity, name = encoding.spec.granularity, f"{scale.name}.lying"
        if isinstance(granularity, Blocked) and grid(encoding, dims) is None:
            axis = granularity.axis or 0
            blocks = self._number(np.arange(dims[axis], dtype=np.int64) // granularity.size)
            return self._op(None, "Gather", [scale, blocks], name, axis=axis)
        if shape == encoding.scale.shape:
            return scale
        return self._op(None, "Reshape", [scale, self._number(np.array(shape, np.int64))], name)

    def _cut(self, before: ir.Node, value: ir.Value, shape: Dims | None, name: str) -> ir.Value:
        """Reshaped, unless the shape is None."""
        if shape is None:
            return value
        return self._op(before, "Reshape", [value, self._number(np.array(shape, np.int64))], name)

    def _op(
        self, before: ir.Node | None, op_type: str, inputs: Sequence[ir.Value], name: str, **attrs: int
    ) -> ir.Value:
        """Insert a node in front of another one, or of all."""
        attributes = [ir.AttrInt64(key, value) for key, value in attrs.items()]
        node = ir.Node("", op_type, inputs, attributes, name=self.namer(name))
        node.outputs[0].name = self.namer(f"{name}.out")
        if before is None:
            self.model.graph.insert_before(self.model.graph[0], node)
        else:
            graph_of(before.outputs[0]).insert_before(before, node)
        return node.outputs[0]

    def _number(self, data: Any) -> ir.Value:
        """A constant; equal ones are one."""
        array = np.asarray(data)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._numbers:
            self._numbers[key] = add_initializer(self.model.graph, "number", array, self.namer)
        return self._numbers[key]

    def _input(self, name: str, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        self.model.graph.inputs.append(value)
        return value


def _dims(value: ir.Value) -> Dims:
    """Shape, 0 where a dim is not known: only the quantized axis of pairs with several scales matters."""
    return tuple(d or 0 for d in dims_of(value) or ())


def residues_of(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Each clipped value of a twin with the residue input that is added to it."""
    inputs = {value.name for value in graph.input if value.name.endswith(RESIDUE)}
    for node in graph.node:
        if node.op_type == "Add" and node.input[1] in inputs:
            yield node.input[0], node.input[1]
