"""Float values for the integers that a DequantizeLinear reads, without QuantizeLinear or DequantizeLinear.

From the DequantizeLinear backwards: ops that only move integers are made once more for floats, until a constant is
found, which is dequantized, or a QuantizeLinear of the same parameters, whose float input stands for its integers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxq.carry import Carried, constant_behind
from onnxq.edit import add_initializer, copy_metadata, graph_of, replace_uses
from onnxq.look import constant, constant_tensor, onnx_op
from onnxq.lookups import table_encoding
from onnxq.numerics.spec import QTYPES
from onnxq.pairs import at_source, carried_on, float_type, integer_type, parameter, read_encoding
from onnxq.qoperators.limits import limits_of
from onnxq.qoperators.meaning import Meaning
from onnxq.qoperators.movement import moved
from onnxq.qoperators.raising import Raiser, Refused
from onnxq.states import QUANTIZE, is_q
from onnxq.weights import dequantized_weight, float_name

Saturation = Literal["zero", "all", "none"]

_CLIP_INPUTS_SINCE = 11


@dataclass
class Floats:
    """Makes each float value once.

    Attributes:
        raiser: Makes nodes in the scope.
        saturation: Which pairs keep their limits: those from or to zero where what they read is not known to keep them
            (``zero``), every one (``all``), none.
        weights: Constants that were dequantized.
        limited: Pairs that became a Clip.
    """

    raiser: Raiser
    saturation: Saturation
    weights: set[ir.Value] = field(default_factory=set)
    limited: int = 0
    _made: dict[Hashable, ir.Value] = field(default_factory=dict)
    _copies: list[tuple[ir.Node, ir.Node]] = field(default_factory=list)

    def of(self, dq: ir.Node) -> ir.Value:
        """What a DequantizeLinear makes, made in another way.

        Raises:
            Refused: Says where its integers come from.
        """
        data, dtype = dq.inputs[0], float_type(dq)
        assert data is not None
        found = constant_behind(data)
        if not isinstance(found, str):
            return self._stored(dq, data, found, dtype)
        return self._behind(data, dq, Meaning.of(dq), dtype)

    def take_names(self) -> None:
        """Copies of ops take over the names of the old ones that are gone."""
        for old, new in self._copies:
            if old.graph is None:
                new.name = old.name
                for before, after in zip(old.outputs, new.outputs, strict=True):
                    if not after.is_graph_output():
                        after.name = before.name

    def _stored(self, dq: ir.Node, data: ir.Value, found: Carried, dtype: ir.DataType) -> ir.Value:
        """A constant as floats; Transposes in front of the DequantizeLinear move the floats."""
        encoding = read_encoding(dq, found.dims)
        if isinstance(encoding, str):
            raise Refused(encoding)
        source = at_source(encoding, found)
        integers, tensor = (found.source, found.tensor) if source is not None else (data, found.read())
        kept, carriers = source or encoding, found.nodes if source is not None else ()
        key: tuple[Hashable, ...] = (integers, *dq.inputs[1:], kept.spec.granularity, dtype)
        if key not in self._made:
            weight = dequantized_weight(tensor, kept, dtype)
            self._made[key] = self._store(found.source, float_name(integers), weight)
            self.weights.add(integers)
        if not carriers:
            return self._made[key]
        place = (*key, data, dq.graph)
        if place not in self._made:
            self._made[place] = carried_on(self._made[key], carriers, dq, self.raiser.namer, self.raiser.maker)
        return self._made[place]

    def _behind(self, value: ir.Value, dq: ir.Node, wanted: Meaning, dtype: ir.DataType) -> ir.Value:
        """The float value for an integer one that is computed.

        Args:
            value: Integers.
            dq: The DequantizeLinear that everything is for.
            wanted: Its parameters.
            dtype: The type it makes.
        """
        key = (value, wanted, dtype)
        if key not in self._made:
            self._made[key] = self._computed(value, dq, wanted, dtype)
        return self._made[key]

    def _computed(self, value: ir.Value, dq: ir.Node, wanted: Meaning, dtype: ir.DataType) -> ir.Value:
        node = value.producer()
        if value.is_graph_input() or node is None:
            raise Refused(f"'{value.name}' comes in as integers: this is arithmetic")
        if is_q(node, QUANTIZE):
            if Meaning.of(node) != wanted:
                raise Refused(f"its scale, zero point or axis differs from that of {QUANTIZE} '{node.name}'")
            return self._limited(node, dtype)
        x = node.inputs[0] if node.inputs else None
        if onnx_op(node, "DynamicQuantizeLinear") and value is node.outputs[0]:
            if (wanted.scale, wanted.zero) != tuple(node.outputs[1:]):
                raise Refused(f"its scale or zero point is not that of DynamicQuantizeLinear '{node.name}'")
            assert x is not None
            return self._cast(x, node, dtype)
        if onnx_op(node, "Gather") and constant_tensor(x) is not None:
            return self._table(node, dq, dtype)
        data = moved(node)
        if not data:
            raise Refused(f"{node.op_type} '{node.name}' makes its integers")
        if wanted.axis is not None:
            raise Refused(f"it has scales along an axis behind {node.op_type} '{node.name}'")
        return self._copy(node, data, dq, wanted, dtype, value)

    def _copy(
        self,
        node: ir.Node,
        data: tuple[int, ...],
        dq: ir.Node,
        wanted: Meaning,
        dtype: ir.DataType,
        value: ir.Value,
    ) -> ir.Value:
        """An op that moves integers, for floats."""
        inputs: list[ir.Value | None] = list(node.inputs)
        for index in data:
            each = inputs[index]
            assert each is not None
            constants = constant_tensor(each)
            if constants is None:
                inputs[index] = self._behind(each, dq, wanted, dtype)
            else:
                inputs[index] = self._number(each, constants, dq, dtype)
        new = self._again(node, inputs, dtype)
        self._made.update({(old, wanted, dtype): out for old, out in zip(node.outputs, new.outputs, strict=True)})
        if onnx_op(node, "MaxPool") and len(node.outputs) > 1:
            new.outputs[1].type = node.outputs[1].type
            replace_uses(node.outputs[1], new.outputs[1], self.raiser.namer)
        return self._made[value, wanted, dtype]

    def _number(self, value: ir.Value, tensor: ir.TensorProtocol, dq: ir.Node, dtype: ir.DataType) -> ir.Value:
        """A constant that is moved along with computed integers, one scale for all."""
        encoding = read_encoding(dq, tuple(int(d) for d in tensor.shape.numpy()))
        if isinstance(encoding, str):
            raise Refused(encoding)
        key = (value, *dq.inputs[1:], dtype)
        if key not in self._made:
            self._made[key] = self._store(value, float_name(value), dequantized_weight(tensor, encoding, dtype))
        return self._made[key]

    def _table(self, gather: ir.Node, dq: ir.Node, dtype: ir.DataType) -> ir.Value:
        """Rows of a constant table that are dequantized behind the look-up: looked up as floats."""
        table, rows = gather.inputs[0], constant_tensor(gather.inputs[0])
        assert table is not None and rows is not None
        encoding = table_encoding(gather, dq, rows)
        key = (table, encoding.scale.tobytes(), encoding.zero_point.tobytes(), encoding.spec, dtype)
        if key not in self._made:
            self._made[key] = self._store(table, float_name(table), dequantized_weight(rows, encoding, dtype))
            self.weights.add(table)
        return self._again(gather, [self._made[key], gather.inputs[1]], dtype).outputs[0]

    def _again(self, node: ir.Node, inputs: list[ir.Value | None], dtype: ir.DataType) -> ir.Node:
        """The same op for floats, right behind the one for integers."""
        graph, namer = node.graph, self.raiser.namer
        assert isinstance(graph, ir.Graph)
        name, attributes, count = namer(node.name or node.op_type), node.attributes.values(), len(node.outputs)
        new = ir.Node("", node.op_type, inputs, attributes, num_outputs=count, name=name)
        copy_metadata(new, node, self.raiser.maker)
        for old, out in zip(node.outputs, new.outputs, strict=True):
            out.name, out.shape, out.type = namer(old.name or "moved"), old.shape, ir.TensorType(dtype)
        graph.insert_after(node, new)
        self._copies.append((node, new))
        return new

    def _limited(self, q: ir.Node, dtype: ir.DataType) -> ir.Value:
        """What a QuantizeLinear reads, within its limits where they could matter."""
        x = q.inputs[0]
        assert x is not None
        value = self._cast(x, q, dtype)
        kind = integer_type(q)
        qtype = QTYPES.get(kind.name.lower()) if kind is not None else None
        scale, zero = constant(parameter(q, 1)), constant(parameter(q, 2))
        computed = scale is None or (zero is None and parameter(q, 2) is not None)
        if self.saturation == "none" or qtype is None or computed or scale is None or scale.size > 1:
            return value
        point = 0 if zero is None else int(zero.reshape(()))
        step = scale.reshape(()).astype(np.float32)
        low, high = (float(np.float32(end - point) * step) for end in (qtype.qmin, qtype.qmax))
        known = limits_of(x)
        if self.saturation == "all":
            needed = known[0] < low or known[1] > high
        else:
            needed = x.producer() is not None and ((low == 0 and known[0] < 0) or (high == 0 and known[1] > 0))
        return self._clip(value, q, low, high) if needed else value

    def _clip(self, x: ir.Value, q: ir.Node, low: float, high: float) -> ir.Value:
        key = (x, low, high, q.graph)
        if key not in self._made:
            bounds: list[ir.Value] = []
            attributes = {"min": low, "max": high}
            if self.raiser.opset >= _CLIP_INPUTS_SINCE:
                kind, attributes = (x.dtype or ir.DataType.FLOAT).numpy(), {}
                ends = ((low, "low"), (high, "high"))
                bounds = [self.raiser.constant(q, f"{x.name}_{what}", np.asarray(end, kind)) for end, what in ends]
            self._made[key] = self.raiser.float_op(q, "Clip", [x, *bounds], attributes, name=x.name, like=x)
            self.limited += 1
        return self._made[key]

    def _cast(self, x: ir.Value, before: ir.Node, dtype: ir.DataType) -> ir.Value:
        if x.dtype in (None, dtype):
            return x
        key = (x, dtype, before.graph)
        if key not in self._made:
            cast = {"to": dtype}
            self._made[key] = self.raiser.float_op(before, "Cast", [x], cast, name=x.name, like=x, dtype=dtype)
        return self._made[key]

    def _store(self, old: ir.Value, name: str, floats: ir.TensorProtocol) -> ir.Value:
        """Floats in the graph where the integers are."""
        if self.raiser.function:
            raise Refused("a local function holds no initializers: run inline-functions first")
        return add_initializer(graph_of(old), name, floats, self.raiser.namer)
