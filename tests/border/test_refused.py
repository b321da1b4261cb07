"""Every corner that cannot be carried: refused before anything is done, with construct and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from onnxq import border
from onnxq.errors import InputError, UnsupportedError

UNKNOWN = b"\xfa\x3f\x03abc"  # field 1023 with three bytes
FLOAT = TensorProto.FLOAT
MAP = onnx.TypeProto(map_type=onnx.TypeProto.Map(key_type=7))
OPAQUE = onnx.TypeProto(opaque_type=onnx.TypeProto.Opaque(name="o"))
EMPTY_SEQUENCE = onnx.TypeProto(sequence_type=onnx.TypeProto.Sequence())


def devices(_: Any, m: ModelProto) -> None:
    m.ir_version = 10
    m.graph.node[0].device_configurations.add(configuration_id="c")


def configuration(_: Any, m: ModelProto) -> None:
    m.ir_version = 10
    m.configuration.add(name="c", num_devices=1)


def nameless_devices(_: Any, m: ModelProto) -> None:
    m.ir_version = 11
    m.graph.node[0].device_configurations.add()


def sparse_of_strings(b: Any, m: ModelProto) -> None:
    m.graph.sparse_initializer.append(b.sparse("s"))
    m.graph.sparse_initializer[0].values.ClearField("raw_data")
    m.graph.sparse_initializer[0].values.data_type = TensorProto.STRING
    m.graph.sparse_initializer[0].values.string_data.append(b"a")


def old_function(b: Any, m: ModelProto) -> None:
    m.ir_version = 9
    m.functions.append(b.function(value_info=[b.info("t", 1)]))


def extra_input(kind: onnx.TypeProto) -> Callable[[Any, ModelProto], None]:
    return lambda b, m: m.graph.input.add(name="extra").type.CopyFrom(kind)


def attribute(**fields: Any) -> Callable[[Any, ModelProto], None]:
    return lambda b, m: m.graph.node[0].attribute.add(name="k", **fields)


def tensor(**fields: Any) -> Callable[[Any, ModelProto], None]:
    return lambda b, m: m.graph.initializer.add(name="t", **fields)


# What is done to `Build.model()`, and what the error says.
UNSUPPORTED: dict[str, tuple[Callable[[Any, ModelProto], Any], str]] = {
    "sparse attribute": (
        attribute(type=AttributeProto.SPARSE_TENSOR),
        "node 'a' (Relu): attribute 'k' is of type SPARSE",
    ),
    "attribute without type": (attribute(i=3), "node 'a' (Relu): attribute 'k' is of type UNDEFINED"),
    "strings": (attribute(type=AttributeProto.STRINGS, strings=[b"\xff"]), "attribute 'k': a string that is not UTF-8"),
    "map type": (extra_input(MAP), "graph 'g': value 'extra' is of type map"),
    "opaque type": (extra_input(OPAQUE), "graph 'g': value 'extra' is of type opaque"),
    "denotation alone": (extra_input(onnx.TypeProto(denotation="D")), "value 'extra': a type that is nothing but"),
    "future element type": (tensor(data_type=77), "graph 'g': tensor 't' has the element type 77"),
    "future type": (
        lambda b, m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77),
        "value 'x' has the element type 77",
    ),
    "future opset": (lambda b, m: setattr(m.opset_import[0], "version", 999), "opset 999 of 'ai.onnx', and onnx"),
    "future ml opset": (lambda b, m: m.opset_import.add(domain="ai.onnx.ml", version=99), "opset 99 of 'ai.onnx.ml'"),
    "future IR": (lambda b, m: setattr(m, "ir_version", 99), "IR version 99 is newer than onnx"),
    "unknown field": (lambda b, m: m.MergeFromString(UNKNOWN), "ModelProto has the unknown field 1023"),
    "unknown in a node": (
        lambda b, m: m.graph.node[1].MergeFromString(UNKNOWN),
        "node 'b': NodeProto has the unknown field 1023",
    ),
    "unknown in a tensor": (
        lambda b, m: m.graph.initializer[0].MergeFromString(UNKNOWN),
        "initializer 'w': TensorProto",
    ),
    "configuration in IR 10": (configuration, "device configurations need IR version 11, not 10"),
    "sparse strings": (sparse_of_strings, "graph 'g': sparse initializer 's' has external data or strings"),
    "devices in IR 10": (devices, "node 'a' (Relu): device configurations need IR version 11"),
    "function types in IR 9": (old_function, "function 'loc::F': value_info needs IR version 10"),
    "graph as default": (
        lambda b, m: m.functions.append(b.function(attribute_proto=[helper.make_attribute("k", b.branch("g"))])),
        "function 'loc::F': attribute 'k' has a graph",
    ),
}

INVALID: dict[str, tuple[Callable[[Any, ModelProto], Any], str]] = {
    "import twice": (lambda b, m: m.opset_import.add(version=13), "opset import of domain '' occurs twice"),
    "both spellings": (lambda b, m: m.opset_import.add(domain="ai.onnx", version=24), "of domain '' occurs twice"),
    "metadata twice": (
        lambda b, m: m.graph.node[1].metadata_props.extend(b.entries(k="1") + b.entries(k="2")),
        "node 'b' (Neg): metadata key 'k' occurs twice",
    ),
    "attribute twice": (
        lambda b, m: m.graph.node[0].attribute.extend([helper.make_attribute("k", 1)] * 2),
        "graph 'g': node 'a' (Relu): attribute 'k' occurs twice",
    ),
    "two values": (attribute(type=AttributeProto.INT, i=1, f=2), "attribute 'k' has more than one value: i, f"),
    "no value": (attribute(type=AttributeProto.GRAPH), "attribute 'k' has no value"),
    "no kind": (attribute(type=AttributeProto.TYPE_PROTO, tp=onnx.TypeProto()), "'k' is a type without a kind"),
    "sequence of nothing": (extra_input(EMPTY_SEQUENCE), "value 'extra' is of type sequence without an element type"),
    "initializer twice": (
        lambda b, m: m.graph.initializer.append(b.three()),
        "graph 'g': initializer 'w' occurs twice",
    ),
    "dense and sparse": (lambda b, m: m.graph.sparse_initializer.append(b.sparse("w")), "initializer 'w' occurs twice"),
    "initializer without name": (
        lambda b, m: m.graph.initializer.append(b.three("")),
        "initializer number 1 has no name",
    ),
    "sparse without name": (lambda b, m: m.graph.sparse_initializer.append(b.sparse("")), "number 1 has no name"),
    "output without name": (lambda b, m: m.graph.output.add(), "output number 1 has no name"),
    "no element type": (tensor(dims=[1]), "tensor 't' has no element type"),
    "negative dimension": (tensor(dims=[-1], data_type=FLOAT), "tensor 't' has no element type, or a negative"),
    "strings as floats": (tensor(data_type=TensorProto.STRING, float_data=[1]), "'t' of strings has float_data"),
    "input twice": (lambda b, m: m.graph.input.append(m.graph.input[0]), "graph 'g': input 'x' occurs twice"),
    "unlike outputs": (lambda b, m: m.graph.output.append(b.info("y", "N")), "graph 'g': an output is listed twice"),
    "function twice": (lambda b, m: m.functions.extend([b.function()] * 2), "local function 'loc::F:' occurs twice"),
    "function input twice": (
        lambda b, m: m.functions.append(b.function(input=["a"])),
        "'loc::F': input 'a' occurs twice",
    ),
    "function output": (
        lambda b, m: m.functions.append(b.function(output=["no"])),
        "function 'loc::F': nothing defines its output 'no'",
    ),
    "function input without name": (
        lambda b, m: m.functions.append(b.function(input=[""])),
        "function 'loc::F' has an input without a name",
    ),
    "devices without id": (nameless_devices, "node 'a' (Relu): a device configuration without id"),
    "annotation twice": (
        lambda b, m: [m.graph.quantization_annotation.add(tensor_name="h") for _ in range(2)],
        "graph 'g': quantization annotation of 'h' occurs twice",
    ),
    "no IR version": (lambda b, m: m.ClearField("ir_version"), "no IR version"),
    "no graph": (lambda b, m: m.ClearField("graph"), "it has no graph"),
}

NOT_SSA: dict[str, tuple[Callable[[Any], list[NodeProto]], str]] = {
    "twice": (
        lambda b: [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])],
        "graph 'g': node number 1, Neg without a name, defines 'y'",
    ),
    "input": (lambda b: [helper.make_node("Relu", ["y"], ["x"], name="n")], "'n' (Relu), defines 'x'"),
    "initializer": (lambda b: [helper.make_node("Relu", ["x"], ["w"], name="n")], "'n' (Relu), defines 'w'"),
    "in a branch": (lambda b: [b.branches(b.three("r"))], "graph 'If/then_branch/then': node number 0"),
}


def refusal(model: ModelProto, kind: type[InputError]) -> str:
    """The one message, the same for a message and for bytes."""
    with pytest.raises(kind) as as_message:
        border.open_model(model)
    with pytest.raises(kind) as as_bytes:
        border.open_model(model.SerializeToString())
    assert type(as_message.value) is type(as_bytes.value) is kind
    assert str(as_message.value) == str(as_bytes.value)
    return str(as_message.value)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(name: str, build: Any) -> None:
    change, message = UNSUPPORTED[name]
    model = build.model()
    change(build, model)
    assert message in refusal(model, UnsupportedError)


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name: str, build: Any) -> None:
    change, message = INVALID[name]
    model = build.model()
    change(build, model)
    assert message in refusal(model, InputError)


@pytest.mark.parametrize("name", NOT_SSA)
def test_not_in_ssa_form(name: str, build: Any) -> None:
    nodes, message = NOT_SSA[name]
    assert message in refusal(build.model(*nodes(build)), InputError)


@pytest.mark.parametrize("where", ["op_type", "name", "doc_string"])
def test_text_that_is_not_utf8(where: str, build: Any) -> None:
    model = build.model()
    setattr(model.graph.node[0], where, "@@")
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        border.open_model(model.SerializeToString().replace(b"@@", b"\xff\xfe")).give_back()


def test_sparse_indices_outside(build: Any) -> None:
    model = build.model()
    model.graph.sparse_initializer.append(build.sparse("s"))
    model.graph.sparse_initializer[0].dims[0] = 2
    tensor = border.open_model(model).model.graph.initializers["s"].const_value
    with pytest.raises(InputError, match=r"sparse initializer 's' of shape \[2\]: index 2 is out of bounds"):
        tensor.numpy()


@pytest.mark.parametrize("size", [8, 16, 8000])
def test_data_that_do_not_fit_are_an_error_when_read(size: int, build: Any) -> None:
    model = build.model()
    model.graph.initializer.append(build.raw(FLOAT, [3], b"\0" * size))
    tensor = border.open_model(model.SerializeToString()).model.graph.initializers["t"].const_value
    with pytest.raises(InputError, match=rf"tensor 't': the data do not fit FLOAT\[3\]: {size} bytes instead of 12"):
        tensor.numpy()


def test_no_data_are_no_zeros(build: Any) -> None:
    model = build.model()
    model.graph.initializer.add(name="t", data_type=FLOAT, dims=[3])
    with pytest.raises(InputError, match="0 bytes instead of 12"):
        border.open_model(model).model.graph.initializers["t"].const_value.numpy()


def test_every_field_of_onnx_is_known_here() -> None:
    """A field that a newer onnx adds must be looked at: does the border carry it?"""
    fields: dict[str, int] = {}

    def count(descriptor: Any) -> None:
        if descriptor.name not in fields:
            fields[descriptor.name] = len(descriptor.fields)
            for field in descriptor.fields:
                if field.message_type is not None:
                    count(field.message_type)

    count(ModelProto.DESCRIPTOR)
    assert (len(fields), sum(fields.values())) == (28, 134)
