"""A quantized graph beside the graph that onnxruntime makes of it when it loads.

Fused nodes keep the names of what they make, which is how the two are laid beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnxq.look import Array, constant, nested_graphs, onnx_op
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Graphs:
    """The quantized graph and what onnxruntime makes of it.

    Attributes:
        written: The graph as the file has it.
        optimized: The graph that runs.
    """

    written: ir.Graph
    optimized: ir.Graph

    @cached_property
    def _makers(self) -> dict[str, ir.Node]:
        return {value.name: node for node in _nodes(self.optimized) for value in node.outputs if value.name}

    def maker(self, name: str | None) -> ir.Node | None:
        """The node of the optimized graph that makes the value of a name."""
        return self._makers.get(name or "")

    def becomes(self, node: ir.Node) -> ir.Node | None:
        """What a layer became: the optimized node that makes its output, or what is behind its Add, Relu, Clip or Q."""
        value: ir.Value | None = node.outputs[0]
        while value is not None:
            made = self.maker(value.name)
            if made is not None:
                return made
            readers = value.consumers()
            follows = len(readers) == 1 and (onnx_op(readers[0], "Add", "Relu", "Clip") or is_q(readers[0], QUANTIZE))
            value = readers[0].outputs[0] if follows else None
        return None

    @cached_property
    def layers(self) -> list[ir.Node]:
        """Conv, ConvTranspose, Gemm and MatMul of the quantized graph, also inside bodies."""
        return [node for node in self.nodes if onnx_op(node, *LAYERS)]

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the quantized graph, also inside bodies."""
        return list(_nodes(self.written))


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    for scope in nested_graphs(graph):
        yield from scope


def dequantizer(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that makes a value."""
    node = value.producer() if value is not None else None
    return node if is_q(node, DEQUANTIZE) else None


def bias_of(node: ir.Node) -> ir.Value | None:
    """The bias of a layer: its third input, or what a following Add adds."""
    if len(node.inputs) > 2:
        return node.inputs[2]
    readers = node.outputs[0].consumers()
    if len(readers) != 1 or not onnx_op(readers[0], "Add"):
        return None
    left, right = readers[0].inputs
    return right if left is node.outputs[0] else left


def scale_of(node: ir.Node | None) -> Array | None:
    """The constant scale of a DequantizeLinear as float64."""
    scale = constant(node.inputs[1]) if node is not None else None
    return None if scale is None else scale.astype(np.float64)
