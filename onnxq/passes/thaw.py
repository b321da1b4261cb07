"""`thaw`: integer weights become floats again, with a QuantizeLinear that makes the same integers of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from onnxq.carry import Carried, constant_behind
from onnxq.edit import (
    Namer,
    add_initializer,
    copy_metadata,
    graph_of,
    nested_graphs,
    plain_initializers,
    remove_dead,
)
from onnxq.facts import Fact, Goal
from onnxq.look import attr_int
from onnxq.nbits import DOMAIN, OP
from onnxq.numerics.spec import Encoding
from onnxq.pairs import at_source, carried_on, float_type, parameter, read_encoding
from onnxq.passbase import Context, Pass
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.weights import dequantized_weight, float_name
from onnxq.wording import plural

OUTPUT_DTYPE_SINCE = 21
"""First opset whose QuantizeLinear has ``output_dtype``."""


@dataclass(frozen=True, kw_only=True)
class Thaw(Pass):
    """``integer weight -> DQ -> op`` becomes ``float weight -> Q -> DQ -> op``; the inverse of `freeze`.

    The float weight holds the dequantized values, and the QuantizeLinear, with explicit axis and block size, makes the
    same integers of them: for an integer k and a scale s, rounding k·s and dividing by s are off by at most 2·u·|k|
    (u = 2^-24 in float32, 2^-11 in float16), which is less than half a step. Int32 biases and pairs on activations are
    not touched. Float weights are lazy: dequantized when they are written. Transposes in front of the DequantizeLinear
    (`canonical-axis`) then move the floats. Works in all scopes but local functions, which hold no initializers.

    Stays, with the reason: 16-bit integers with float16 scales (half a step is not reached), scales that are not
    positive and normal or lead out of the float type, types other than integers, and MatMulNBits, which holds its
    integers itself.

    Attributes:
        form: ``fake-quant`` thaws, ``deploy`` changes nothing; ``target`` does what the target asks for, and thaws
            where no target is given.
        zero_point: ``omit`` leaves zero points of 0 out of Q and DQ and writes ``output_dtype`` instead, ``keep`` lets
            them be; ``target`` does what the target asks for, and keeps them where no target is given.
    """

    name: ClassVar[str] = "thaw"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})

    form: Literal["target", "fake-quant", "deploy"] = "target"
    zero_point: Literal["target", "keep", "omit"] = "target"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Put a QuantizeLinear in front of every DequantizeLinear of a constant; one note says how many."""
        goal = ctx.maybe(Goal)
        form, zero_point = self.form, self.zero_point
        if form == "target":
            form = goal.target.weight_form if goal else "fake-quant"
        if zero_point == "target":
            zero_point = "omit" if goal and not goal.target.weight_zero_point else "keep"
        if form == "deploy":
            return False
        for node in (n for graph in nested_graphs(model.graph) for n in graph):
            if (node.domain, node.op_type) == (DOMAIN, OP):
                why = f"{OP} has no form with a float weight: raise it before (from-matmulnbits), or do not write it"
                ctx.note("not-thawed", node, why)
        plain = plain_initializers(model)
        writer = _Writer(Namer(model), model.opset_imports.get("", 0) >= OUTPUT_DTYPE_SINCE)
        for node in [n for graph in nested_graphs(model.graph) for n in graph if is_q(n, DEQUANTIZE)]:
            found = constant_behind(node.inputs[0])
            if isinstance(found, str) or found.tensor.dtype == ir.DataType.INT32:
                continue
            encoding = read_encoding(node, found.dims)
            dtype = float_type(node)
            why = encoding if isinstance(encoding, str) else _inexact(encoding, dtype)
            if why or isinstance(encoding, str):
                ctx.note("not-thawed", node, f"its weight stays integer: {why}")
                continue
            if zero_point == "omit" and parameter(node, 2) is not None:
                kept = "it is not 0" if encoding.zero_point.any() else "" if writer.typed(node) else _UNTYPED
                if kept:
                    ctx.note("zero-point-kept", node, f"its zero point cannot be left out: {kept}")
                else:
                    node.resize_inputs(2)
            writer.write(node, found, encoding, dtype)
        writer.take_names()
        count = len(writer.floats)
        if count:
            remove_dead(model)
            ctx.note("thawed", None, f"{plural(count, 'weight')} now float in front of a QuantizeLinear", count=count)
        return plain or bool(count)


_UNTYPED = f"QuantizeLinear has an output_dtype from opset {OUTPUT_DTYPE_SINCE} on"


def _inexact(encoding: Encoding, dtype: ir.DataType) -> str:
    """Why dequantized values would not come back as the same integers; ``""`` if they would."""
    qtype, scale = encoding.spec.qtype, encoding.scale
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return f"it becomes {dtype.name.lower()}, not float32 or float16"
    half = np.dtype(np.float16)
    coarse = half if half in (scale.dtype, dtype.numpy()) else np.dtype(np.float32)
    if coarse == half and qtype.bits > 8:
        return "float16 does not tell 16-bit integers apart"
    limits = np.finfo(coarse)
    if not ((scale >= limits.smallest_normal) & (scale <= limits.max)).all():
        return f"not all its scales are positive, finite and normal in {coarse.name}"
    zero = encoding.zero_point.astype(np.int64)
    reach = np.maximum(qtype.qmax - zero, zero - qtype.qmin)
    if (reach * scale.astype(np.float64) > float(limits.max)).any():
        return f"its largest values leave {coarse.name}"
    return ""


@dataclass
class _Writer:
    """Makes each float weight once, and its QuantizeLinear once a graph."""

    namer: Namer
    new: bool  # whether the opset has output_dtype
    floats: dict[Hashable, ir.Value] = field(default_factory=dict)
    _made: dict[Hashable, ir.Node] = field(default_factory=dict)
    _integers: dict[ir.Node, ir.Value] = field(default_factory=dict)

    def typed(self, node: ir.Node) -> bool:
        """Whether a QuantizeLinear beside this DequantizeLinear can say its type by an attribute."""
        return self.new and node.domain == ""

    def write(self, node: ir.Node, found: Carried, encoding: Encoding, dtype: ir.DataType) -> None:
        """Put a float weight and a QuantizeLinear, new or made already, in front of a DequantizeLinear."""
        data, parameters = node.inputs[0], (node.inputs[1], parameter(node, 2))
        assert data is not None
        place = (data, *parameters, encoding.spec.granularity, dtype, node.graph)
        if place not in self._made:
            source = at_source(encoding, found)
            carriers = found.nodes if source is not None else ()
            integers = found.source if source is not None else data
            tensor = found.tensor if source is not None else found.read()
            kept = source or encoding
            key = (integers, *parameters, kept.spec.granularity, dtype)
            if key not in self.floats:
                self.floats[key] = self._float(integers, tensor, kept, dtype)
            weight = carried_on(self.floats[key], carriers, node, self.namer, Thaw.name)
            self._made[place] = self._quantize(node, weight, tensor.dtype, encoding)
        node.replace_input_with(0, self._made[place].outputs[0])

    def _float(self, old: ir.Value, tensor: ir.TensorProtocol, encoding: Encoding, dtype: ir.DataType) -> ir.Value:
        weight = dequantized_weight(tensor, encoding, dtype)
        return add_initializer(graph_of(old), float_name(old), weight, self.namer)

    def _quantize(self, dq: ir.Node, weight: ir.Value, dtype: ir.DataType, encoding: Encoding) -> ir.Node:
        graph, data, scale, zero = dq.graph, dq.inputs[0], dq.inputs[1], parameter(dq, 2)
        assert isinstance(graph, ir.Graph) and data is not None and scale is not None and scale.shape is not None
        inputs, attributes = [weight, scale], []
        if zero is None and not self.typed(dq):
            zeros = np.zeros(scale.shape.numpy(), dtype.numpy())
            zero = add_initializer(graph_of(data), f"{data.name}_zero_point", zeros, self.namer)
        if zero is not None:
            inputs.append(zero)
        else:
            attributes.append(ir.AttrInt64("output_dtype", dtype.value))
        if encoding.axis is not None:
            attributes.append(ir.AttrInt64("axis", attr_int(dq, "axis", 1)))
        if encoding.block_size is not None:
            attributes.append(ir.AttrInt64("block_size", encoding.block_size))
        q = ir.Node(dq.domain, QUANTIZE, inputs, attributes, name=self.namer(f"{weight.name}_{QUANTIZE}"))
        copy_metadata(q, dq, Thaw.name)
        out = q.outputs[0]
        out.name, out.dtype, out.shape = self.namer(f"{weight.name}_quantized"), dtype, weight.shape
        graph.insert_before(dq, q)
        self._integers[q] = data
        return q

    def take_names(self) -> None:
        """Integers keep their name where nobody else reads the old ones."""
        for q, data in self._integers.items():
            if data.is_initializer() and not (data.uses() or data.is_graph_input() or data.is_graph_output()):
                assert data.name is not None
                del graph_of(data).initializers[data.name]
                q.outputs[0].name = data.name
