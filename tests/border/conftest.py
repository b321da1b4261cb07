"""Builders of corner models, and what the border may change, written as a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


class Build:
    """Small parts of models."""

    tensor_type = TypeProto(tensor_type=TypeProto.Tensor(elem_type=FLOAT))
    nested_type = TypeProto(
        optional_type=TypeProto.Optional(elem_type=TypeProto(sequence_type=TypeProto.Sequence(elem_type=tensor_type))),
        denotation="BOX",
    )

    @staticmethod
    def info(name: str, *dims: Any) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, FLOAT, dims)

    @staticmethod
    def model(*nodes: NodeProto, ir: int = 11) -> ModelProto:
        """x -> Relu a -> h -> Neg b -> y, or these nodes from x to y; an initializer w of three floats."""
        chain = nodes or (
            helper.make_node("Relu", ["x"], ["h"], name="a"),
            helper.make_node("Neg", ["h"], ["y"], name="b"),
        )
        graph = helper.make_graph(chain, "g", [Build.info("x", 1, 3)], [Build.info("y", 1, 3)], [Build.three()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=ir)

    @staticmethod
    def three(name: str = "w") -> TensorProto:
        return numpy_helper.from_array(np.ones(3, np.float32), name)

    @staticmethod
    def sparse(name: str) -> onnx.SparseTensorProto:
        values, indices = np.array([2, 4], np.float32), np.array([0, 2], np.int64)
        return helper.make_sparse_tensor(
            numpy_helper.from_array(values, name), numpy_helper.from_array(indices, "at"), [3]
        )

    @staticmethod
    def foo(**attributes: Any) -> NodeProto:
        return helper.make_node("Foo", ["x"], ["y"], name="foo", domain="c", **attributes)

    @staticmethod
    def typed(kind: int, field: str, *values: Any) -> NodeProto:
        """A node with an attribute k of this type whose value is in this field."""
        node = Build.foo()
        attribute = node.attribute.add(name="k", type=kind)
        getattr(attribute, field).extend(values)
        return node

    @staticmethod
    def branch(name: str, *tensors: TensorProto) -> GraphProto:
        nodes = [helper.make_node("Relu", ["x"], ["r"])]
        return helper.make_graph(nodes, name, [], [Build.info("r", 1, 3)], list(tensors))

    @staticmethod
    def branches(*tensors: TensorProto) -> NodeProto:
        then, other = Build.branch("then", *tensors), Build.branch("else")
        return helper.make_node("If", ["x"], ["y"], then_branch=then, else_branch=other)

    @staticmethod
    def function(**fields: Any) -> onnx.FunctionProto:
        nodes = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
        out = helper.make_function("loc", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 24)])
        for name, value in fields.items():
            if isinstance(value, str):
                setattr(out, name, value)
            else:
                getattr(out, name).extend(value)
        return out

    @staticmethod
    def entries(**pairs: str) -> list[onnx.StringStringEntryProto]:
        return [onnx.StringStringEntryProto(key=k, value=v) for k, v in pairs.items()]

    @staticmethod
    def raw(kind: int, dims: list[int], data: bytes) -> TensorProto:
        return TensorProto(name="t", data_type=kind, dims=dims, raw_data=data)

    @staticmethod
    def external(**pairs: str) -> TensorProto:
        record = TensorProto(name="t", data_type=FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
        record.external_data.extend(Build.entries(location="nowhere.bin", **pairs))
        return record

    @staticmethod
    def mlp(layers: int = 3, width: int = 64) -> ModelProto:
        """A chain of MatMul and Relu with random weights w0, w1, …"""
        rng = np.random.default_rng(0)
        nodes, weights = [], []
        for i in range(layers):
            weight = rng.standard_normal((width, width), dtype=np.float32) / np.float32(np.sqrt(width))
            weights.append(numpy_helper.from_array(weight, f"w{i}"))
            nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"], name=f"mm{i}"))
            nodes.append(helper.make_node("Relu", [f"m{i}"], [f"x{i + 1}"], name=f"relu{i}"))
        ends = [Build.info(f"x{i}", "N", width) for i in (0, layers)]
        graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="session")
def build() -> type[Build]:
    return Build


@pytest.fixture(name="normal_form", scope="session")
def _normal_form() -> Callable[[ModelProto], ModelProto]:
    return normal_form


def normal_form(model: ModelProto) -> ModelProto:
    """Apply the changes listed in the docstring of `onnxq.border`, and nothing else."""
    out = ModelProto()
    out.CopyFrom(model)
    _graph(out.graph, bool(out.functions))
    for function in out.functions:
        _nodes(function.node)
        _value_info(function, {*function.input, *(name for node in function.node for name in node.output)})
    for imports in (out.opset_import, *(f.opset_import for f in out.functions)):
        for entry in imports:
            if entry.domain == "ai.onnx":
                entry.domain = ""
    _everywhere(out)
    return out


def _graph(graph: GraphProto, functions: bool = False) -> None:
    defined = {name for node in graph.node for name in node.output} | {t.name for t in graph.initializer}
    defined -= {v.name for v in graph.output} | {v.name for v in graph.input}
    defined |= {v.name for v in graph.value_info if functions and "::" in v.name}
    _value_info(graph, defined)
    _sort(graph.quantization_annotation, lambda a: a.tensor_name)
    for annotation in graph.quantization_annotation:
        _sort(annotation.quant_parameter_tensor_names, lambda e: e.key)
    _nodes(graph.node)


def _nodes(nodes: Any) -> None:
    for node in nodes:
        while node.output and not node.output[-1]:
            node.output.pop()
        if node.domain == "ai.onnx":
            node.ClearField("domain")
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _graph(graph)


def _value_info(owner: Any, defined: set[str]) -> None:
    last = {v.name: v for v in owner.value_info if v.name in defined}
    kept = [v for v in last.values() if v.type.WhichOneof("value") or v.doc_string or v.metadata_props]
    _replace(owner.value_info, sorted(kept, key=lambda v: v.name))


def _sort(items: Any, key: Callable[[Any], Any]) -> None:
    _replace(items, sorted(items, key=key))


def _replace(items: Any, new: list[Any]) -> None:
    copies = [type(item).FromString(item.SerializeToString()) for item in new]
    del items[:]
    items.extend(copies)


def _everywhere(message: Message) -> None:
    """Metadata by key; scalars that hold their default, and types without a kind, are as good as absent."""
    if isinstance(message, ValueInfoProto) and message.type.WhichOneof("value") is None:
        message.ClearField("type")
    for field, value in message.ListFields():
        if field.name == "metadata_props":
            _sort(value, lambda e: e.key)
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                _everywhere(inner)
        elif (
            not field.containing_oneof and isinstance(value, (int, float, str, bytes)) and value == field.default_value
        ):
            message.ClearField(field.name)
