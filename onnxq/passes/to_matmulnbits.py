"""`to-matmulnbits`: weight-only layers as onnxruntime's MatMulNBits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.edit import Namer, add_initializer, copy_metadata, graph_of, nested_graphs, plain_initializers, remove_dead
from onnxq.layers import per_channel
from onnxq.look import attr_float, attr_int, constant_tensor, dims_of, onnx_op, uses
from onnxq.nbits import DOMAIN, OP, Refused, Weight, dequantized, read_weight
from onnxq.passbase import Context, Pass
from onnxq.wording import plural

_EIGHT_BITS: tuple[ir.DataType | None, ...] = (ir.DataType.INT8, ir.DataType.UINT8)
_LEVELS = {
    0: "inputs are used as they are",
    1: "inputs are computed with as float32",
    2: "inputs may be computed with as float16",
    3: "inputs may be computed with as bfloat16",
    4: "inputs may be quantized to int8 in each run, block by block: faster, and another error on top",
}


@dataclass(frozen=True, kw_only=True)
class ToMatmulnbits(Pass):
    """``integer weight [K, N] -> DequantizeLinear -> MatMul`` -> ``com.microsoft.MatMulNBits``; Gemm with bias, too.

    Weights of 2, 4 and 8 bits in blocks of 16, 32, 64, … rows (axis 0), with one scale an output channel or one scale.
    The weights are the same numbers, bit for bit: signed integers move up by half of their range, and so do their zero
    points; one scale a channel or tensor is repeated for blocks of up to 128 rows. At accuracy level 0 the product
    differs in the order of summation only. A DequantizeLinear with several readers gives each one a node of its own
    over the same stored bytes. Weights are packed when written. Works in If/Loop/Scan bodies.

    Stays, with a note: other forms of weights, blocks of another size, a Gemm with factors or transposed operands,
    layers between 8-bit integers (onnxruntime has better kernels for them), nodes of local functions.

    Attributes:
        accuracy_level: What onnxruntime may make of the inputs: 0 (not written) leaves them as they are, 1 float32,
            2 float16, 3 bfloat16, 4 int8. A Q/DQ file runs at level 4 unless a session option says otherwise.
        enable: Whether to do anything.
    """

    name: ClassVar[str] = "to-matmulnbits"

    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    enable: bool = True

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every weight-only layer that MatMulNBits can hold; one note says how many."""
        if not self.enable:
            return False
        lowering = _Lowering(Namer(model), self.accuracy_level)
        found = [node for graph in nested_graphs(model.graph) for node in graph if _candidate(node)]
        for node in found:
            try:
                lowering.replace(node)
            except Refused as refused:
                ctx.note("not-matmulnbits", node, f"stays {node.op_type}: {refused}")
        for function in model.functions.values():
            for node in (n for graph in nested_graphs(function.graph) for n in graph if _candidate(n)):
                why = "a local function holds no initializers: run inline-functions first"
                ctx.note("not-matmulnbits", node, f"stays {node.op_type}: {why}")
        if not lowering.layers:
            return False
        plain_initializers(model)
        model.opset_imports.setdefault(DOMAIN, 1)
        remove_dead(model)
        self._note(lowering, ctx)
        return True

    def _note(self, lowering: _Lowering, ctx: Context) -> None:
        level = self.accuracy_level
        why = f"{plural(lowering.layers, 'layer')} became MatMulNBits at accuracy level {level}: {_LEVELS[level]}"
        ctx.note("matmulnbits", None, why, layers=lowering.layers, accuracy_level=level)
        if lowering.eight_bit and level < 4:
            why = (
                f"{lowering.eight_bit} MatMulNBits hold 8-bit weights, which onnxruntime turns into floats in every run"
            )
            ctx.note("slow-level", None, f"{why} below level 4", Severity.WARNING, layers=lowering.eight_bit)


def _candidate(node: ir.Node) -> bool:
    return onnx_op(node, "MatMul", "Gemm") and any(dequantized(value) for value in node.inputs[:2])


@dataclass
class _Lowering:
    """Stores each weight once."""

    namer: Namer
    level: int
    layers: int = 0
    eight_bit: int = 0
    _stored: dict[tuple[ir.Value | None, ...], list[ir.Value | None]] = field(default_factory=dict)

    def replace(self, node: ir.Node) -> None:
        """The node becomes MatMulNBits; it keeps its name, its output and its place.

        Raises:
            Refused: MatMulNBits cannot hold it.
        """
        dq = dequantized(node.inputs[1])
        if dq is None:
            raise Refused("the weight is the left operand")
        _check_surroundings(node)
        weight = read_weight(dq)
        bias = self._bias(node, weight.columns) if onnx_op(node, "Gemm") else None
        inputs = [node.inputs[0], *self._store(dq, weight), None, bias]
        while inputs[-1] is None:
            inputs.pop()
        given = {"K": weight.rows, "N": weight.columns, "bits": weight.qtype.bits, "block_size": weight.size}
        if self.level:
            given["accuracy_level"] = self.level
        node.domain, node.op_type = DOMAIN, OP
        node.attributes.clear()
        for key, value in given.items():
            node.attributes.add(ir.AttrInt64(key, value))
        node.resize_inputs(len(inputs))
        for i, each in enumerate(inputs):
            node.replace_input_with(i, each)
        copy_metadata(node, dq, ToMatmulnbits.name)
        self.layers += 1
        self.eight_bit += weight.qtype.bits == 8

    def _store(self, dq: ir.Node, weight: Weight) -> list[ir.Value | None]:
        """B, scales and zero points; None for zero points that are the default."""
        key = (*dq.inputs, None)[:3]
        source = dq.inputs[0]
        assert source is not None
        if key not in self._stored:
            home, base = graph_of(source), (source.name or "weight").removesuffix("_quantized")
            parts = {"packed": weight.packed(), "scales": weight.scales(), "zero_points": weight.zero_points()}
            self._stored[key] = [
                None if part is None else add_initializer(home, f"{base}_{what}", part, self.namer)
                for what, part in parts.items()
            ]
        return self._stored[key]

    def _bias(self, node: ir.Node, columns: int) -> ir.Value | None:
        """The bias of a Gemm as [N]."""
        if attr_int(node, "transA", 0) or attr_int(node, "transB", 0):
            raise Refused("it transposes an operand (untranspose-gemm makes weights ready)")
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if attr_float(node, "alpha", 1.0) != 1 or (bias is not None and attr_float(node, "beta", 1.0) != 1):
            raise Refused("it has factors (normalize-gemm moves them into constants)")
        if bias is None or dims_of(bias) == (columns,):
            return bias
        tensor = constant_tensor(bias)
        if tensor is None or not per_channel([int(d) for d in tensor.shape.numpy()], columns):
            raise Refused(f"its bias is not known to have the shape [{columns}]")
        data = np.ascontiguousarray(np.broadcast_to(tensor.numpy().reshape(-1), columns))
        return add_initializer(graph_of(bias), bias.name or "bias", ir.Tensor(data, dtype=tensor.dtype), self.namer)


def _check_surroundings(node: ir.Node) -> None:
    """Raise `Refused` where 8-bit integers come in or go out."""
    made = None if node.inputs[0] is None else node.inputs[0].producer()
    if made is not None and onnx_op(made, "DequantizeLinear") and _integer_type(made) in _EIGHT_BITS:
        raise Refused("its input is quantized to 8 bits: not weight-only")
    readers = (edge.node for edge in uses(node.outputs[0]) if edge.index == 0)
    if any(onnx_op(reader, "QuantizeLinear") and _integer_type(reader) in _EIGHT_BITS for reader in readers):
        raise Refused("its output is quantized to 8 bits: not weight-only")


def _integer_type(node: ir.Node) -> ir.DataType | None:
    """The integer type that a QuantizeLinear writes or a DequantizeLinear reads."""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is not None and zero.dtype is not None:
        return zero.dtype
    if node.op_type == "DequantizeLinear":
        assert node.inputs[0] is not None
        return node.inputs[0].dtype
    return ir.DataType(attr_int(node, "output_dtype", ir.DataType.UINT8) or ir.DataType.UINT8)
