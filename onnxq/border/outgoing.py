"""From an `onnx_ir.Model` to a message. The model is only read: nothing is swapped, renamed or cached on the way.

The serializer of `onnx_ir` writes values, types and attributes; graphs, nodes and tensors are written here, since it
would add a value_info for every initializer, double the metadata of tensors, and hold all weights at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import onnx_ir as ir
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
)

from onnxq.border.infos import Types, bare, boundary, entries, initializer_info, says_something, value_info
from onnxq.border.model import ANNOTATIONS_KEY, Left, root_cause
from onnxq.border.part import Part
from onnxq.border.tensors import Elsewhere, RecordTensor, SparseTensor, payload_size
from onnxq.errors import InputError, UnsupportedError
from onnxq.wording import plural

# Where `onnx_ir` keeps the quantization annotation of a value.
_IR_ANNOTATION_KEY = "quant_parameter_tensor_names"
_FUNCTION_VALUE_INFO_IR = 10
_CONFIGURATION_IR = 11
# A record with fewer elements than this needs no slot.
_SMALL = 128


class Slot(NamedTuple):
    """A record, the tensor that has its data, and how many bytes they are."""

    record: TensorProto
    tensor: ir.TensorProtocol
    size: int

    @property
    def complete(self) -> bool:
        """Whether the record holds the data already."""
        return type(self.tensor) is RecordTensor and self.tensor.payload is None

    def fill(self) -> None:
        """Write the data into the record."""
        if not self.complete:
            data = self.tensor.tobytes()
            self.check(len(data))
            self.record.raw_data = data

    def check(self, size: int) -> None:
        """Refuse data of another size than the tensor says it has.

        Raises:
            InputError: Names the tensor.
        """
        if size != self.size:
            raise InputError(
                f"tensor '{self.record.name}' has {plural(size, 'byte')}, and its type and shape need {self.size}"
            )


def shell(model: ir.Model, left: Left, part: Part | None = None) -> tuple[ModelProto, list[Slot]]:
    """The message without the data of most tensors, and slots for all that are large or have none yet, in order.

    Args:
        model: The model.
        left: What the border keeps for it.
        part: Write only this part of the main graph, for a session; no annotations then.
    """
    writer = _Writer(model, part)
    try:
        out = writer.model()
    except (UnicodeDecodeError, ir.serde.SerdeError) as error:
        if not isinstance(cause := root_cause(error), UnicodeDecodeError):
            raise
        raise UnsupportedError(f"the model has a text that is not UTF-8: {cause.object!r}") from error
    if gone := left.training_names and left.training_names - _main_names(model.graph):
        left.note(
            "training-info-dropped", min(gone), f"training_info dropped: it refers to '{min(gone)}', which is gone"
        )
    else:
        out.training_info.extend(left.training_info)
    return out, writer.slots


def _main_names(graph: ir.Graph) -> set[str | None]:
    return {*(v.name for v in graph.inputs), *graph.initializers, *(v.name for n in graph for v in n.outputs)}


class _Writer:
    def __init__(self, model: ir.Model, part: Part | None) -> None:
        self.source, self.part = model, part
        self.slots: list[Slot] = []
        self.types: Types = {}

    def model(self) -> ModelProto:
        source, out = self.source, ModelProto(ir_version=self.source.ir_version)
        for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
            if value := getattr(source, name):
                setattr(out, name, value)
        _opsets(source.opset_imports, out.opset_import)
        entries(source.metadata_props, out.metadata_props)
        if source.ir_version >= _CONFIGURATION_IR:
            out.configuration.extend(map(ir.serde.serialize_model_configuration, source.device_configurations))
        out.graph.SetInParent()
        self.graph(source.graph, out.graph, self.part)
        for function in source.functions.values():
            self.function(function, out)
        return out

    def graph(self, graph: ir.Graph, out: GraphProto, part: Part | None = None) -> None:
        _texts(graph, out)
        entries(graph.metadata_props, out.metadata_props)
        for value in graph.inputs:
            boundary(value, 0, out.input.add())
        inputs = set(graph.inputs)
        for value in graph.initializers.values():
            if part is None or value in part.values:
                self.initializer(value, out)
                if value not in inputs:
                    initializer_info(value, out)
        outputs = set(graph.outputs if part is None else part.outputs)
        for node in graph if part is None else part.nodes:
            self.node(node, out.node.add())
            for value in node.outputs:
                if value.name and value not in outputs and says_something(value):
                    value_info(value, out.value_info.add(), self.types)
        if part is not None:
            for value in part.outputs:
                bare(value, out.output.add())
            return
        for value in graph.outputs:
            boundary(value, 1, out.output.add())
        _annotations(graph, out)

    def initializer(self, value: ir.Value, out: GraphProto) -> None:
        tensor = value.const_value
        if tensor is None:
            raise ValueError(f"initializer '{value.name}' has no tensor")
        if type(tensor) is SparseTensor:
            sparse = out.sparse_initializer.add()
            sparse.CopyFrom(tensor.record)
            sparse.values.name = value.name or ""
            return
        record = out.initializer.add()
        self.tensor(tensor, record)
        record.name = value.name or ""

    def tensor(self, tensor: ir.TensorProtocol, out: TensorProto) -> None:
        if type(tensor) is RecordTensor:
            tensor.head_into(out)
            if tensor.payload is None and math.prod(tensor.record.dims) < _SMALL:
                return
        elif type(tensor) is Elsewhere:
            out.CopyFrom(tensor.record)
        elif tensor.dtype == ir.DataType.STRING:
            ir.serde.serialize_tensor_into(out, tensor)
            return
        else:
            _head(tensor, out)
        self.slots.append(Slot(out, tensor, payload_size(tensor)))

    def node(self, node: ir.Node, out: NodeProto) -> None:
        out.op_type = node.op_type
        for name in ("domain", "name", "overload", "doc_string"):
            if value := getattr(node, name):
                setattr(out, name, value)
        out.input.extend("" if value is None else cast("str", value.name) for value in node.inputs)
        outputs = [value.name or "" for value in node.outputs]
        while outputs and not outputs[-1]:
            outputs.pop()
        out.output.extend(outputs)
        for attr in node.attributes.values():
            self.attribute(attr, out.attribute.add())
        if node.metadata_props:
            entries(node.metadata_props, out.metadata_props)
        if node.device_configurations and (self.source.ir_version or 0) >= _CONFIGURATION_IR:
            convert = ir.serde.serialize_node_device_configuration
            out.device_configurations.extend(map(convert, node.device_configurations))

    def attribute(self, attr: ir.Attr, out: AttributeProto) -> None:
        kind = attr.type
        if attr.is_ref():
            ir.serde.serialize_reference_attribute_into(out, attr)
        elif kind in _NESTED:
            out.name, out.type = attr.name, cast("AttributeProto.AttributeType", kind.value)
            if attr.doc_string:
                out.doc_string = attr.doc_string
            if kind == ir.AttributeType.GRAPH:
                out.g.SetInParent()
                self.graph(attr.as_graph(), out.g)
            elif kind == ir.AttributeType.GRAPHS:
                for graph in attr.as_graphs():
                    self.graph(graph, out.graphs.add())
            elif kind == ir.AttributeType.TENSOR:
                out.t.SetInParent()
                self.tensor(attr.value, out.t)
            else:
                for tensor in attr.value:
                    self.tensor(tensor, out.tensors.add())
        else:
            ir.serde.serialize_attribute_into(out, attr)

    def function(self, function: ir.Function, model: ModelProto) -> None:
        out = model.functions.add()
        _texts(function, out)
        for name in ("domain", "overload"):
            if value := getattr(function, name):
                setattr(out, name, value)
        _opsets(function.opset_imports, out.opset_import)
        entries(function.metadata_props, out.metadata_props)
        out.input.extend(cast("str", value.name) for value in function.inputs)
        out.output.extend(cast("str", value.name) for value in function.outputs)
        for attr in function.attributes.values():
            if attr.value is None:
                out.attribute.append(attr.name)
            else:
                self.attribute(attr, out.attribute_proto.add())
        for node in function:
            self.node(node, out.node.add())
        self.function_values(function, model, out)

    def function_values(self, function: ir.Function, model: ModelProto, out: FunctionProto) -> None:
        """Types of values in a function; before IR version 10 they stand in the main graph, under long names."""
        values = [*function.inputs, *(value for node in function for value in node.outputs)]
        for value in values:
            if not (value.name and says_something(value)):
                continue
            if model.ir_version >= _FUNCTION_VALUE_INFO_IR:
                ir.serde.serialize_value_into(out.value_info.add(), value)
            else:
                name = f"{function.domain}::{function.name}/{value.name}"
                ir.serde.serialize_value_into(model.graph.value_info.add(), value, name=name)


_NESTED = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def _texts(source: Any, out: Any) -> None:
    if source.name:
        out.name = source.name
    if source.doc_string:
        out.doc_string = source.doc_string


def _head(tensor: ir.TensorProtocol, out: TensorProto) -> None:
    """Everything of a tensor but its name and data."""
    out.data_type = cast("TensorProto.DataType", tensor.dtype.value)
    out.dims.extend(cast("tuple[int, ...]", tensor.shape.dims))
    if tensor.name:
        out.name = tensor.name
    if tensor.doc_string:
        out.doc_string = tensor.doc_string
    if tensor.metadata_props:
        entries(tensor.metadata_props, out.metadata_props)


def _opsets(imports: Mapping[str, int], out: Any) -> None:
    for domain, version in imports.items():
        out.add(domain=domain, version=version)


def _annotations(graph: ir.Graph, out: GraphProto) -> None:
    produced = [value for node in graph for value in node.outputs]
    for value in dict.fromkeys([*graph.inputs, *graph.initializers.values(), *produced]):
        if _IR_ANNOTATION_KEY in value.meta and (parameters := value.meta[_IR_ANNOTATION_KEY]):
            annotation = out.quantization_annotation.add(tensor_name=value.name)
            entries(parameters, annotation.quant_parameter_tensor_names)
    out.quantization_annotation.extend(graph.meta.get(ANNOTATIONS_KEY, ()))
