"""Nodes and initializers of a model that is being built; each node's only output bears its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.weights import Array


class GraphBuilder:
    """Collects what `save` writes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Array | float) -> str:
        """An initializer; numbers become float32, and a name that is known keeps its value."""
        if name not in self.initializers:
            array = np.asarray(value, np.float32) if isinstance(value, float) else np.ascontiguousarray(value)
            self.initializers[name] = numpy_helper.from_array(array.reshape(np.shape(value)), name)
        return name

    def ints(self, name: str, *values: int) -> str:
        """An int64 initializer of one axis."""
        return self.constant(name, np.array(values, np.int64))

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def save(
        self, target: Path, name: str, inputs: Sequence[onnx.ValueInfoProto], output: onnx.ValueInfoProto, opset: int
    ) -> None:
        """Check the model and write it, weights inside."""
        graph = helper.make_graph(self.nodes, name, list(inputs), [output], list(self.initializers.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, target)


def info(name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))
