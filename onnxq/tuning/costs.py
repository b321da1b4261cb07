"""What a plan costs on onnxruntime's CPU, told from the plan alone: nanoseconds by a table of kinds, and bytes.

`TABLE` was measured once: onnxruntime 1.32, x86-64 with AVX512-VNNI, one thread, least CPU time of 25 runs. No timing
of the machine at hand enters a decision, so that the same model, samples and accuracies give the same plan anywhere;
what a plan really takes is measured afterwards and printed beside the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxq.facts import Edge, Plan, Range
from onnxq.inventory import constants_of
from onnxq.layers import Layer, read_layer
from onnxq.look import all_graphs, attr_int, dims_of, is_constant, nbytes, onnx_op
from onnxq.numerics.spec import Blocked, PerTensor, TensorSpec
from onnxq.ops import channel_axis
from onnxq.weights import weight_tensor

FEW_TERMS = 48
"""A Conv that sums fewer products in groups is bound by memory (depthwise)."""


@dataclass(frozen=True)
class Rate:
    """Nanoseconds for each product, each value made, each number of the weight, each tap of a kernel at each place."""

    product: float
    value: float = 0.0
    weight: float = 0.0
    tap: float = 0.0


TABLE: Mapping[str, Rate] = {
    # 64 -> 64 channels 3x3 at 56x56: 12.0 ps a product in float, 3.5 ps as integers, 15 with an unpacked weight; the
    # integer kernel first gathers patches, which is most of its time where there are few channels (LeNet's first
    # convolution, 1 -> 8, 5x5: 3.5 times as long as in float)
    "conv float": Rate(0.0125, 0.4),
    "conv int8": Rate(0.003, 0.1, tap=1.3),
    "conv unpacked": Rate(0.015, 0.25, 0.3),
    # 128 channels 3x3 and 5x5 depthwise, ns a value: 0.94, 0.89 in float; 0.6, 1.0 as integers; 2.4, 6.9 unpacked
    "depthwise float": Rate(0.0, 0.9),
    "depthwise int8": Rate(0.025, 0.4),
    "depthwise unpacked": Rate(0.27, 0.3, 0.3),
    # 1, 8, 64 and 128 rows; with one row each number of the weight comes from memory. The bias Add of an integer MatMul
    # of rank 3 is a kernel of its own, and so is the QuantizeLinear behind it; at run time neither is.
    "matmul float": Rate(0.0123, 0.05, 0.14),
    "matmul int8": Rate(0.0023, 0.6, 0.034),
    "matmul dynamic": Rate(0.0025, 0.1, 0.030),
    "matmul nbits8": Rate(0.0145, 0.1, 0.016),
    "matmul nbits4": Rate(0.0165, 0.1, 0.010),
    "matmul unpacked": Rate(0.017, 0.05, 2.3),
    "gemm float": Rate(0.0123, 0.05, 0.14),
    "gemm int8": Rate(0.0020, 0.1, 0.034),
    # Attention: 12 heads, 123 x 123 x 32; integers are slower, for neither operand can be packed before.
    "activations float": Rate(0.016),
    "activations int8": Rate(0.022),
    "float": Rate(0.0, 0.3),
    "int8": Rate(0.0, 0.25),
    "moves float": Rate(0.0, 0.15),
    "moves int8": Rate(0.0, 0.05),
    # A QuantizeLinear behind a MaxPool of floats is moved in front of it, and the kernel for uint8 in NCHW is slow.
    "pool uint8": Rate(0.0, 12.0),
    "quantize 8": Rate(0.0, 0.2),
    "quantize 16": Rate(0.0, 0.3),
    "dequantize": Rate(0.0, 0.2),
    "lookup int8": Rate(0.0, 0.5),
}
CALL = 1000.0
"""Nanoseconds to call a kernel, whatever it does."""


@dataclass
class Costs:
    """Estimates for the plans of one model.

    Attributes:
        model: The prepared float model.
        ranges: What calibration found; sizes of values are taken from here first.
        dims: Shapes of values for one sample, as far as known.
    """

    model: ir.Model
    ranges: Mapping[ir.Value, Range]
    dims: Mapping[ir.Value, tuple[int | None, ...]]
    _layers: dict[ir.Node, Layer | None] = field(init=False, default_factory=dict)
    _float: dict[ir.Node, float] = field(init=False, default_factory=dict)
    _sizes: dict[ir.Value, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.model.graph:
            layer = read_layer(node)
            self._layers[node] = layer if isinstance(layer, Layer) else None
            for value in node.outputs:
                self._sizes[value] = self._measure(value, node)
        self._weights = sum(nbytes(tensor) for graph in all_graphs(self.model) for _, tensor in constants_of(graph))
        self._float = {node: self._node(node, "float") for node in self.model.graph}

    def latency(self, plan: Plan) -> float:
        """Estimated nanoseconds for one sample on one thread; constants are folded before."""
        total = 0.0
        for node, alone in self._float.items():
            decision = plan.decisions[node]
            if decision.code == "part-of-layer" or (decision.code == "behind-dynamic-layer" and onnx_op(node, "Add")):
                continue  # also a bias behind DynamicQuantizeMatMul
            if onnx_op(node, "MaxPool") and decision.status == "float" and node.outputs[0] in plan.activations:
                total += CALL + TABLE["pool uint8"].value * self._out(node)
            else:
                total += alone if decision.status == "float" else self._node(node, self._form(node, plan))
        return total + self._pairs(plan)

    def size(self, plan: Plan) -> int:
        """Estimated bytes of all constants."""
        total = float(self._weights)
        stored: dict[tuple[ir.Value, TensorSpec], Edge] = {}
        kept: dict[ir.Value, int] = {}
        for edge, spec in plan.weights.items():
            stored[edge.value, spec] = edge
            kept[edge.value] = kept.get(edge.value, 0) + 1
        for (_, spec), edge in stored.items():
            total += _bytes(edge, spec)
        for value, count in kept.items():
            tensor = weight_tensor(value)
            if tensor is not None and count == len(value.uses()):
                total -= nbytes(tensor)
        return round(total)

    def layer(self, node: ir.Node) -> Layer | None:
        """The layer that a node starts, if it does."""
        return self._layers.get(node)

    def _form(self, node: ir.Node, plan: Plan) -> str:
        """How a node that is not float runs."""
        decision, layer = plan.decisions[node], self._layers.get(node)
        x = plan.read_by(layer.inputs[0]) if layer and layer.inputs else None
        if layer is None or layer.weight is None:
            spec = next((s for e in _edges(node) if (s := plan.read_by(e)) is not None), None)
            if onnx_op(node, "Gather") and decision.status == "weight-only":
                return "lookup int8"
            return "int8" if spec is not None and spec.qtype.bits == 8 else "float"
        weight = plan.weights.get(layer.weight)
        if decision.status == "dynamic":
            return "dynamic"
        if weight is None:
            return "float"
        if x is not None and x.qtype.bits == weight.qtype.bits == 8:
            return "int8"
        # With 16-bit activations `insert-qdq` keeps the product unfused: fused, its input is rounded to 8 bits.
        fused = onnx_op(node, "MatMul") or (onnx_op(node, "Gemm") and not attr_int(node, "transB", 0))
        whole = x is None and fused and len(layer.weight_dims) == 2 and weight.qtype.bits <= 8
        return f"nbits{'4' if weight.qtype.bits < 8 else '8'}" if whole else "unpacked"

    def _node(self, node: ir.Node, form: str) -> float:
        if form == "lookup int8":
            return CALL * 3 + TABLE[form].value * self._out(node)
        layer = self._layers.get(node)
        if layer is None:
            if is_constant(node.outputs[0]):
                return 0.0
            moves = "moves " if onnx_op(node, *_MOVES) else ""
            return CALL + TABLE[moves + form].value * self._out(node)
        values = self._out(node)
        if layer.weight is None:
            rate, terms, weight = TABLE[f"activations {form}"], float(self._inner(node)), 0.0
        else:
            weight, terms = float(math.prod(layer.weight_dims)), float(layer.terms)
            kind = "gemm" if onnx_op(node, "Gemm") and form in ("float", "int8") else "matmul"
            if len(layer.weight_dims) > 2 and not onnx_op(node, "MatMul"):
                kind = "depthwise" if terms < FEW_TERMS and attr_int(node, "group", 1) > 1 else "conv"
            rate = TABLE.get(f"{kind} {form}", TABLE[f"{kind} float"])
        taps = math.prod(layer.weight_dims[2:]) * values / (layer.channels or 1) if rate.tap else 0.0
        return CALL + (rate.product * terms + rate.value) * values + rate.weight * weight + rate.tap * taps

    def _pairs(self, plan: Plan) -> float:
        """QuantizeLinear and DequantizeLinear nodes that no integer kernel takes in."""
        total = 0.0
        fused = {n for n, d in plan.decisions.items() if d.status in ("integer", "moves")}
        for value, spec in plan.activations.items():
            values, eight = self._size(value), spec.qtype.bits == 8
            maker = value.producer()
            if not eight or maker is None or maker not in fused:
                total += CALL + TABLE["quantize 8" if eight else "quantize 16"].value * values
        open_ends: dict[ir.Value, None] = {}
        for edge, value in plan.readers.items():
            if edge.node not in fused or plan.activations[value].qtype.bits != 8 or edge in plan.bridges:
                open_ends[value] = None
        open_ends |= dict.fromkeys(v for v in plan.outputs if v in plan.activations)
        for value in open_ends:
            total += CALL + TABLE["dequantize"].value * self._size(value)
        for value, spec in dict.fromkeys((e.value, s) for e, s in plan.bridges.items()):
            rate = TABLE["quantize 8" if spec.qtype.bits == 8 else "quantize 16"]
            total += 2 * CALL + (rate.value + TABLE["dequantize"].value) * self._size(value)
        return total

    def _out(self, node: ir.Node) -> float:
        return self._size(node.outputs[0])

    def _size(self, value: ir.Value) -> float:
        if value in self._sizes:
            return self._sizes[value]
        known = self.ranges.get(value)
        return known.size if known is not None and known.size else _count(dims_of(value)) or 0.0

    def _measure(self, value: ir.Value, node: ir.Node) -> float:
        """Numbers in a value: as observed, as inferred, else as many as the largest operand has."""
        known = self.ranges.get(value)
        if known is not None and known.size:
            return known.size
        count = _count(self.dims.get(value)) or _count(dims_of(value))
        if count is not None:
            return count
        layer = self._layers[node]
        inputs = [self._size(v) for v in node.inputs if v is not None and not is_constant(v)]
        largest = max(inputs, default=0.0)
        if layer is not None and layer.channels and onnx_op(node, "MatMul", "Gemm"):
            return largest / max(layer.terms, 1) * layer.channels
        return largest

    def _inner(self, node: ir.Node) -> int:
        """Products in a sum of a MatMul of two activations."""
        value = node.inputs[0]
        dims = (self.dims.get(value) or dims_of(value) or ()) if value is not None else ()
        return (dims[-1] or 64) if dims else 64


_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Flatten", "Gather", "Expand", "Concat")


def _edges(node: ir.Node) -> list[Edge]:
    return [Edge(node, i) for i, value in enumerate(node.inputs) if value is not None]


def _count(dims: tuple[int | None, ...] | None) -> float | None:
    if dims is None or any(d is None for d in dims):
        return None
    return float(math.prod(d for d in dims if d is not None))


def _bytes(edge: Edge, spec: TensorSpec) -> float:
    """Bytes of the integers of a weight, and of their scales and zero points."""
    tensor = weight_tensor(edge.value)
    dims = [] if tensor is None else [int(d) for d in tensor.shape.numpy()]
    count, granularity = math.prod(dims), spec.granularity
    axis = channel_axis(edge.node, edge.index, len(dims))
    scales = 1 if axis is None or isinstance(granularity, PerTensor) else dims[axis]
    if isinstance(granularity, Blocked):
        scales = -(-count // granularity.size)
    return count * spec.qtype.bits / 8 + scales * (4 + spec.qtype.bits / 8)
