"""What may come in: every construct that the IR would merge, drop or choke on is refused, with construct and place.

`Admission` reads the message (weights cut out) once, in time linear in its fields. It makes two changes that mean
nothing: the operator-set domain ``ai.onnx`` becomes its other spelling ``""``, and an absent element type of a tensor
type becomes an explicit 0 (undefined).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import onnx
import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxq.border.unknown import refuse_unknown_fields
from onnxq.errors import InputError, UnsupportedError

# Attribute type -> the one field that holds its value.
_VALUE_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_COMMON_FIELDS = {"name", "type", "doc_string"}
# Of attributes of numbers and a text: the field numbers of name, type and value.
_FIELDS = AttributeProto.DESCRIPTOR.fields_by_name
_PLAIN = {
    kind: {_FIELDS[name].number for name in ("name", "type", field)}
    for kind, field in _VALUE_FIELDS.items()
    if field in ("f", "i", "s", "floats", "ints")
}
_MESSAGE_VALUES = {"t", "g", "tp"}
_STRING_FIELDS = {"name", "dims", "data_type", "string_data", "doc_string", "metadata_props", "data_location"}
_ELEMENT_TYPES = frozenset(int(t) for t in ir.DataType)
_FUNCTION_VALUE_INFO_IR = 10
_CONFIGURATION_IR = 11


class Admission:
    """One reading of a model message.

    Args:
        model: The message, without large weights.

    Attributes:
        graphs: Its graphs: the main graph, its subgraphs in node order, then those inside local functions.
        external: Its tensors with external data.

    Raises:
        InputError: Invalid in a way that cannot be carried: a name defined twice, a repeated key, ….
        UnsupportedError: Valid, but unknown to the IR or to the installed onnx.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.graphs: list[GraphProto] = []
        self.external: list[TensorProto] = []
        refuse_unknown_fields(model)
        if model.ir_version > onnx.IR_VERSION:
            raise UnsupportedError(
                f"IR version {model.ir_version} is newer than onnx {onnx.__version__} knows ({onnx.IR_VERSION}):"
                " upgrade onnx, or export with an older version"
            )
        _texts((model.producer_name, model.producer_version, model.domain, model.doc_string), "the model")
        self._opsets(model.opset_import, "the model")
        self._metadata(model, "the model")
        if model.configuration and model.ir_version < _CONFIGURATION_IR:
            raise UnsupportedError(f"device configurations need IR version {_CONFIGURATION_IR}, not {model.ir_version}")
        self._graph(model.graph, "")
        for function in model.functions:
            self._function(function)
        _unique([f"{f.domain}::{f.name}:{f.overload}" for f in model.functions], "local function", "the model")

    def _opsets(self, imports: Iterable[onnx.OperatorSetIdProto], where: str) -> None:
        known = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}
        for entry in imports:
            if entry.domain == "ai.onnx":
                entry.domain = ""
            if entry.version > known.get(entry.domain, entry.version):
                raise UnsupportedError(
                    f"{where} imports opset {entry.version} of '{entry.domain or 'ai.onnx'}', and onnx"
                    f" {onnx.__version__} knows up to {known[entry.domain]}: upgrade onnx, or export with an older one"
                )
        _unique([entry.domain for entry in imports], "opset import of domain", where)

    def _metadata(self, owner: Any, where: str) -> None:
        if owner.metadata_props:
            _texts([e.value for e in owner.metadata_props], where)
            _unique([e.key for e in owner.metadata_props], "metadata key", where)

    def _graph(self, graph: GraphProto, path: str) -> None:
        where = f"graph '{path}{graph.name}'"
        self.graphs.append(graph)
        _texts((graph.name, graph.doc_string), where)
        self._metadata(graph, where)
        inputs, tensors = [v.name for v in graph.input], [t.name for t in graph.initializer]
        tensors += [s.values.name for s in graph.sparse_initializer]
        for kind, names in (("input", inputs), ("initializer", tensors), ("output", [v.name for v in graph.output])):
            if not all(names):
                raise InputError(f"{where}: {kind} number {names.index('')} has no name")
        _unique(inputs, "input", where)
        _unique(tensors, "initializer", where)
        outputs = {v.name: v for v in graph.output}
        if len(outputs) < len(graph.output) and any(v != outputs[v.name] for v in graph.output):
            raise InputError(f"{where}: an output is listed twice, with different types or texts")
        for tensor in graph.initializer:
            self._tensor(tensor, where)
        for sparse in graph.sparse_initializer:
            self._sparse(sparse, where)
        for value in (*graph.input, *graph.output, *graph.value_info):
            self._value(value, where)
        for annotation in graph.quantization_annotation:
            keys = [e.key for e in annotation.quant_parameter_tensor_names]
            _unique(keys, "quantization parameter", f"{where}: annotation of '{annotation.tensor_name}'")
        _unique([a.tensor_name for a in graph.quantization_annotation], "quantization annotation of", where)
        self._nodes(graph.node, {*inputs, *tensors}, where, path)

    def _nodes(self, nodes: Iterable[NodeProto], defined: set[str], where: str, path: str) -> None:
        nodes = list(nodes)
        makes = [node.output[:] for node in nodes]
        for texts in ([n.name for n in nodes], [n.op_type for n in nodes], [n.domain for n in nodes],
                      [n.overload for n in nodes], [n.doc_string for n in nodes],
                      chain.from_iterable([n.input[:] for n in nodes]), chain.from_iterable(makes)):  # fmt: skip
            _texts(texts, where)
        made = [name for names in makes for name in names if name]
        if len(set(made)) < len(made) or not defined.isdisjoint(made):
            raise self._defined_twice(nodes, defined, where)
        defined.update(made)
        entries = [entry for node in nodes for entry in node.metadata_props]
        _texts([text for entry in entries for text in (entry.key, entry.value)], where)
        for node in nodes:
            if node.device_configurations or len(node.metadata_props) > 1 or not _is_plain(node.attribute):
                self._node(node, where, path)

    def _defined_twice(self, nodes: Sequence[NodeProto], defined: set[str], where: str) -> InputError:
        for index, node in enumerate(nodes):
            for name in filter(None, node.output):
                if name in defined:
                    text = f"node number {index}, {_label(node)}, defines '{name}', which is defined already"
                    return InputError(f"{where}: {text}")
                defined.add(name)
        raise AssertionError("no name is defined twice")

    def _node(self, node: NodeProto, where: str, path: str) -> None:
        where = f"{where}: node {_label(node)}"
        if len(node.metadata_props) > 1:
            self._metadata(node, where)
        for configuration in node.device_configurations:
            if not configuration.configuration_id or not all(s.tensor_name for s in configuration.sharding_spec):
                raise InputError(f"{where}: a device configuration without id, or a sharding without tensor name")
        if node.device_configurations and self.model.ir_version < _CONFIGURATION_IR:
            raise UnsupportedError(f"{where}: device configurations need IR version {_CONFIGURATION_IR}")
        _unique([a.name for a in node.attribute], "attribute", where)
        path = f"{path}{node.name or node.op_type}"
        for attribute in node.attribute:
            self._attribute(attribute, where, f"{path}/{attribute.name}/")

    def _attribute(self, attribute: AttributeProto, where: str, path: str) -> None:
        kind = attribute.type
        _texts((attribute.ref_attr_name, attribute.doc_string), where)
        field = "ref_attr_name" if attribute.ref_attr_name else _VALUE_FIELDS.get(kind)
        if field is None:
            known = AttributeProto.AttributeType.items()
            what = next((name for name, number in known if number == kind), str(kind))
            raise UnsupportedError(f"{where}: attribute '{attribute.name}' is of type {what}, which cannot be carried")
        extra = {f.name for f, _ in attribute.ListFields()} - _COMMON_FIELDS - {field}
        if extra:
            raise InputError(f"{where}: attribute '{attribute.name}' has more than one value: {field}, {min(extra)}")
        if field in _MESSAGE_VALUES and not attribute.HasField(field):
            raise InputError(f"{where}: attribute '{attribute.name}' has no value")
        where = f"{where}: attribute '{attribute.name}'"
        if field == "g":
            self._graph(attribute.g, path)
        elif field == "graphs":
            for graph in attribute.graphs:
                self._graph(graph, path)
        elif field == "t":
            self._tensor(attribute.t, where)
        elif field == "tensors":
            for tensor in attribute.tensors:
                self._tensor(tensor, where)
        elif field == "strings":
            for text in attribute.strings:
                _utf8(text, where)
        elif field in ("tp", "type_protos"):
            for one in [attribute.tp] if field == "tp" else attribute.type_protos:
                if one.WhichOneof("value") is None:
                    raise InputError(f"{where} is a type without a kind")
                self._type(one, where)

    def _tensor(self, tensor: TensorProto, where: str) -> None:
        if tensor.data_type not in _ELEMENT_TYPES:
            raise _unknown_type(tensor.data_type, f"{where}: tensor '{tensor.name}'")
        if tensor.data_type == TensorProto.UNDEFINED or min(tensor.dims, default=0) < 0:
            raise InputError(f"{where}: tensor '{tensor.name}' has no element type, or a negative dimension")
        if tensor.data_location == TensorProto.EXTERNAL:
            self.external.append(tensor)
            _texts(
                (text for e in tensor.external_data for text in (e.key, e.value)), f"{where}: tensor '{tensor.name}'"
            )
        _texts((tensor.name, tensor.doc_string), where)
        if tensor.metadata_props:
            self._metadata(tensor, f"{where}: tensor '{tensor.name}'")
        if tensor.data_type == TensorProto.STRING:
            extra = {f.name for f, _ in tensor.ListFields()} - _STRING_FIELDS
            if extra or tensor.data_location == TensorProto.EXTERNAL:
                raise InputError(
                    f"{where}: tensor '{tensor.name}' of strings has {', '.join(extra) or 'external data'}"
                )

    def _sparse(self, sparse: onnx.SparseTensorProto, where: str) -> None:
        where = f"{where}: sparse initializer '{sparse.values.name}'"
        for tensor in (sparse.values, sparse.indices):
            self._tensor(tensor, where)
            if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type == TensorProto.STRING:
                raise UnsupportedError(f"{where} has external data or strings")

    def _value(self, value: onnx.ValueInfoProto, where: str) -> None:
        _texts((value.name, value.doc_string, value.type.denotation), where)
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and value.type.tensor_type.elem_type in _ELEMENT_TYPES:
            if not value.type.tensor_type.HasField("elem_type"):
                value.type.tensor_type.elem_type = 0
        elif value.HasField("type"):
            self._type(value.type, f"{where}: value '{value.name}'")
        self._metadata(value, where)

    def _type(self, proto: TypeProto, where: str) -> None:
        kind = proto.WhichOneof("value")
        if kind is None:
            if proto.denotation:
                raise UnsupportedError(f"{where}: a type that is nothing but a denotation")
            return
        if kind in ("map_type", "opaque_type"):
            raise UnsupportedError(f"{where} is of type {kind.removesuffix('_type')}, which cannot be carried")
        inner = getattr(proto, kind)
        if kind in ("tensor_type", "sparse_tensor_type"):
            if inner.elem_type not in _ELEMENT_TYPES:
                raise _unknown_type(inner.elem_type, where)
            inner.elem_type = inner.elem_type
        elif inner.elem_type.WhichOneof("value") is None:
            raise InputError(f"{where} is of type {kind.removesuffix('_type')} without an element type")
        else:
            self._type(inner.elem_type, where)

    def _function(self, function: FunctionProto) -> None:
        where = f"function '{function.domain}::{function.name}'"
        _texts((function.domain, function.name, function.overload, function.doc_string), where)
        self._opsets(function.opset_import, where)
        self._metadata(function, where)
        if function.value_info and self.model.ir_version < _FUNCTION_VALUE_INFO_IR:
            raise UnsupportedError(f"{where}: value_info needs IR version {_FUNCTION_VALUE_INFO_IR}")
        if not all(function.input):
            raise InputError(f"{where} has an input without a name")
        _unique(function.input, "input", where)
        _unique([*function.attribute, *(a.name for a in function.attribute_proto)], "attribute", where)
        for attribute in function.attribute_proto:
            if attribute.HasField("g") or attribute.graphs:
                raise UnsupportedError(f"{where}: attribute '{attribute.name}' has a graph as its default")
            self._attribute(attribute, where, f"{function.name}/{attribute.name}/")
        for value in function.value_info:
            self._value(value, where)
        defined = set(function.input)
        self._nodes(function.node, defined, where, f"{function.name}/")
        for name in function.output:
            if name not in defined or not name:
                raise InputError(f"{where}: nothing defines its output '{name}'")


def _is_plain(attributes: Sequence[AttributeProto]) -> bool:
    """Whether a node has nothing but numbers and texts, one of each name: the quick way to tell what most nodes are."""
    names = set()
    for attribute in attributes:
        field, name = _PLAIN.get(attribute.type), attribute.name
        if field is None or type(name) is not str or name in names:
            return False
        if not all(f.number in field for f, _ in attribute.ListFields()):
            return False
        names.add(name)
    return True


def _unique(names: Sequence[str], what: str, where: str) -> None:
    _texts(names, where)
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise InputError(f"{where}: {what} '{twice}' occurs twice; the IR would keep one of them")


def _texts(texts: Iterable[str], where: str) -> None:
    """Refuse text that is not UTF-8: protobuf hands it out as bytes, and takes no such bytes back."""
    try:
        "".join(texts)
    except TypeError:
        raise UnsupportedError(f"{where}: a name or text that is not UTF-8") from None


def _unknown_type(number: int, where: str) -> UnsupportedError:
    return UnsupportedError(f"{where} has the element type {number}, which onnx-ir {ir.__version__} does not know")


def _utf8(text: bytes, where: str) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise UnsupportedError(f"{where}: a string that is not UTF-8 in a list of strings") from None


def _label(node: NodeProto) -> str:
    return f"'{node.name}' ({node.op_type})" if node.name else f"{node.op_type} without a name"
