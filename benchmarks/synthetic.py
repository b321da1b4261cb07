"""The synthetic models of the speed benchmarks: many nodes with tiny weights, few nodes with 400 MB of weights.

Built with `onnx.helper` alone so that neither tool under test has a hand in it.
``python -m benchmarks.synthetic KIND SIZE FILE [--external]`` writes one and prints facts about it; the benchmark calls
that in a child process, so that building does not count as memory of the tool.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass
class Builder:
    """Collects nodes and weights of a chain; `op` names nodes and outputs by a counter."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def normal(self, shape: tuple[int, ...], std: float) -> str:
        """A float32 weight drawn from N(0, std^2)."""
        return self.constant(self.rng.standard_normal(shape, dtype=np.float32) * np.float32(std))

    def constant(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def model(self, shape: tuple[int, ...], output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "benchmark",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def conv_chain(nodes: int, channels: int = 8, side: int = 8) -> onnx.ModelProto:
    """Conv 3x3 + bias, Relu, repeated: ``nodes`` graph nodes, weights of a few kB each."""
    b, x = Builder(), "x"
    for _ in range(nodes // 2):
        weight = b.normal((channels, channels, 3, 3), (9 * channels / 2) ** -0.5)
        x = b.op("Relu", b.op("Conv", x, weight, b.normal((channels,), 0.1), pads=[1, 1, 1, 1]))
    return b.model((1, channels, side, side), x)


def transformer(nodes: int, width: int = 16, heads: int = 2, tokens: int = 8) -> onnx.ModelProto:
    """Pre-norm encoder blocks with decomposed Gelu, 33 nodes each, as exporters write them."""
    b, x = Builder(), "x"
    head = width // heads
    split = b.constant(np.array([1, tokens, heads, head], np.int64))
    joined = b.constant(np.array([1, tokens, width], np.int64))
    scale, root2, one, half = (b.constant(np.array(v, np.float32)) for v in (head**-0.5, 2**0.5, 1.0, 0.5))

    def linear(x: str, fan_in: int, fan_out: int) -> str:
        product = b.op("MatMul", x, b.normal((fan_in, fan_out), fan_in**-0.5))
        return b.op("Add", product, b.normal((fan_out,), 0.02))

    def norm(x: str) -> str:
        gain, shift = b.constant(np.ones(width, np.float32)), b.constant(np.zeros(width, np.float32))
        return b.op("LayerNormalization", x, gain, shift)

    def to_heads(x: str, perm: list[int]) -> str:
        return b.op("Transpose", b.op("Reshape", linear(x, width, width), split), perm=perm)

    for _ in range(nodes // 33):
        h = norm(x)
        query, key, value = to_heads(h, [0, 2, 1, 3]), to_heads(h, [0, 2, 3, 1]), to_heads(h, [0, 2, 1, 3])
        weights = b.op("Softmax", b.op("Mul", b.op("MatMul", query, key), scale), axis=-1)
        context = b.op("Transpose", b.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        x = b.op("Add", x, linear(b.op("Reshape", context, joined), width, width))
        h = linear(norm(x), width, 4 * width)
        gate = b.op("Add", b.op("Erf", b.op("Div", h, root2)), one)
        x = b.op("Add", x, linear(b.op("Mul", b.op("Mul", h, gate), half), 4 * width, width))
    return b.model((1, tokens, width), x)


def mlp(megabytes: int, width: int = 2048) -> onnx.ModelProto:
    """MatMul and Relu in turn, ``width`` x ``width`` float32 weights, at least ``megabytes`` MiB in all."""
    b, x = Builder(), "x"
    for _ in range(-(-megabytes * 2**20 // (4 * width * width))):
        x = b.op("Relu", b.op("MatMul", x, b.normal((width, width), (width / 2) ** -0.5)))
    return b.model((4, width), x)


def conv_big(megabytes: int, channels: int = 1024, side: int = 4) -> onnx.ModelProto:
    """Conv 3x3 + bias and Relu in turn, 36 MiB of weights each at 1024 channels, about ``megabytes`` MiB in all."""
    b, x = Builder(), "x"
    for _ in range(max(1, round(megabytes * 2**20 / (36 * channels * channels)))):
        weight = b.normal((channels, channels, 3, 3), (9 * channels / 2) ** -0.5)
        x = b.op("Relu", b.op("Conv", x, weight, b.normal((channels,), 0.1), pads=[1, 1, 1, 1]))
    return b.model((1, channels, side, side), x)


def activations(megabytes: int, channels: int = 16, layers: int = 8) -> onnx.ModelProto:
    """A few convolutions over a large map: about ``megabytes`` MiB of activations a sample, next to no weights."""
    b, x = Builder(), "x"
    side = int((megabytes * 2**20 / (4 * channels * (2 * layers + 1))) ** 0.5)
    for _ in range(layers):
        weight = b.normal((channels, channels, 3, 3), (9 * channels / 2) ** -0.5)
        x = b.op("Relu", b.op("Conv", x, weight, b.normal((channels,), 0.1), pads=[1, 1, 1, 1]))
    return b.model((1, channels, side, side), x)


BUILDERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "conv-chain": conv_chain,
    "transformer": transformer,
    "mlp": mlp,
    "conv-big": conv_big,
    "activations": activations,
}


def main() -> None:
    kind, size, file, *flags = sys.argv[1:]
    model = BUILDERS[kind](int(size))
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    weights = [len(t.raw_data) for t in model.graph.initializer]
    onnx.save(model, file, save_as_external_data="--external" in flags, location=f"{Path(file).name}.data")
    facts = {"nodes": len(model.graph.node), "weight_bytes": sum(weights), "largest": max(weights), "shape": dims}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
