"""Changes of messages at random, whatever ONNX thinks of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

INTEGERS = (0, 1, -1, 2, 3, 7, 127, 128, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-39, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *("", "x", "s", "z", "w", "y", "axis", "ai.onnx", "com.microsoft", "ai.onnx.ml", "local"),
    *("../w", "\0", "\u202e\n", "%s", "<b>", "]]>"),
)
OPS = (
    *("QuantizeLinear", "DequantizeLinear", "Conv", "MatMul", "Gemm", "Concat", "Reshape", "Constant", "If", "Loop"),
    *("QLinearConv", "MatMulNBits", "Transpose", "Gather", "ConstantOfShape", "Clip", "Split", "Cast", "Pair", "Twice"),
)
ATTRIBUTES = ("axis", "block_size", "to", "perm", "output_dtype", "transB", "group", "K", "N", "bits", "strides")
PATHS = (
    *("weights.bin", "", ".", "..", "../weights.bin", "/", "/dev/zero", "/etc/passwd", "a\0b", "x" * 5000),
    *("model.onnx", "~/w", "file:///w", "pipe", "link", "folder"),
)
NUMBERS = ("0", "-1", "64", str(2**63), "1e3", "nan", "", "٣", "0x10", "9" * 5000)


def mutated_message(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a serialized model as a message; one that cannot be read, or not be written afterwards, stays as it is."""
    model, donor = ModelProto(), ModelProto()
    try:
        model.ParseFromString(data)
        donor.ParseFromString(other)
        rng.choice(CHANGES)(rng, model, donor)
        return model.SerializeToString()
    except (DecodeError, EncodeError, ValueError):  # ValueError: a number that an enum does not have, text that is none
        return data


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _messages(inner)


def _any_field(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Set, clear, repeat, drop or reorder any field of any message."""
    message = rng.choice(list(_messages(model)))
    filled = [field for field, _ in message.ListFields()]
    fields = filled if filled and rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    value = getattr(message, field.name)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif isinstance(value, Message):
        _transplant(rng, value, donor)
    elif isinstance(value, (str, bytes, int, float)):
        setattr(message, field.name, scalar(rng, field, model))
    elif len(value) and rng.random() < 0.3:
        del value[rng.randrange(len(value))]
    elif field.message_type is None:
        if len(value) and rng.random() < 0.6:
            value[rng.randrange(len(value))] = scalar(rng, field, model)
        else:
            value.extend([scalar(rng, field, model)] * rng.choice((1, 1, 2, 9)))
    elif len(value) and rng.random() < 0.4:
        value.add().CopyFrom(rng.choice(list(value)))
    elif len(value) > 1 and rng.random() < 0.5:
        kept = list(value)
        rng.shuffle(kept)
        copies = [type(m)() for m in kept]
        for copy, old in zip(copies, kept, strict=True):
            copy.CopyFrom(old)
        del value[:]
        value.extend(copies)
    else:
        _transplant(rng, value.add(), donor)


def _transplant(rng: random.Random, message: Message, donor: ModelProto) -> None:
    """Put a message of the same kind from another model in the place of this one."""
    same = [m for m in _messages(donor) if m.DESCRIPTOR is message.DESCRIPTOR]
    message.SetInParent()  # type: ignore[attr-defined]
    if same:
        message.CopyFrom(rng.choice(same))


def scalar(rng: random.Random, field: FieldDescriptor, model: ModelProto) -> Any:
    """A value that a field can hold: extremes, and names that occur in the model."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = rng.choice(_names(model) if rng.random() < 0.7 else TEXTS + OPS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    number = rng.choice(INTEGERS) if rng.random() < 0.6 else rng.randrange(-3, 32)
    low = 0 if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64) else -(2 ** (bits - 1))
    return max(low, min(2 ** (bits - 1) - 1, number))


def _graphs(model: ModelProto) -> list[GraphProto]:
    return [m for m in _messages(model) if isinstance(m, GraphProto)]


def _nodes(model: ModelProto) -> list[NodeProto]:
    return [m for m in _messages(model) if isinstance(m, NodeProto)]


def _names(model: ModelProto) -> list[str]:
    names = [name for node in _nodes(model) for name in (*node.input, *node.output)]
    try:
        "".join(names)
    except TypeError:  # protobuf hands out what is not UTF-8 as bytes
        names = [n for n in names if isinstance(n, str)]
    return names or ["x"]


def _retarget(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Let a node read, or make, another value: cycles, types that do not fit, values made twice."""
    node = rng.choice(_nodes(model) or [NodeProto()])
    names = node.input if node.input and rng.random() < 0.8 else node.output
    if names:
        names[rng.randrange(len(names))] = rng.choice(_names(model))


def _operator(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Let a node be of another operator or domain."""
    node = rng.choice(_nodes(model) or [NodeProto()])
    if rng.random() < 0.7:
        node.op_type = rng.choice((*OPS, *(f.name for f in model.functions)))
    if rng.random() < 0.5:
        node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "local", "ai.onnx.ml"))


def _arity(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Take inputs, outputs or attributes from a node, leave gaps, or let an attribute be of another kind."""
    node = rng.choice(_nodes(model) or [NodeProto()])
    what = rng.randrange(5)
    names = node.input if rng.random() < 0.7 else node.output
    if what == 0:
        del names[rng.randrange(len(names) + 1) :]
    elif what == 1 and names:
        names[rng.randrange(len(names))] = ""
    elif what == 2:
        names.extend(rng.choice(_names(model)) for _ in range(rng.choice((1, 3, 12))))
    elif node.attribute:
        attribute = rng.choice(node.attribute)
        if what == 3:
            attribute.type = rng.randrange(1, 15)
        else:
            kept = attribute.name
            _transplant(rng, attribute, donor)
            attribute.name = kept
    else:
        node.attribute.add(name=rng.choice(ATTRIBUTES), type=2, i=rng.choice(INTEGERS))


def _tensor(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Change type, shape, or data of a tensor."""
    tensor = rng.choice([m for m in _messages(model) if isinstance(m, TensorProto)] or [TensorProto()])
    what = rng.randrange(6)
    if what == 0:
        tensor.data_type = rng.randrange(-1, 30)
    elif what == 1:
        del tensor.dims[:]
        tensor.dims.extend(rng.choice((*INTEGERS, 1, 1, 2, 4)) for _ in range(rng.choice((0, 1, 2, 4, 70))))
    elif what == 2:
        tensor.raw_data = bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 4, 63, 5000))))
    elif what == 3:
        tensor.float_data.extend(rng.choice(FLOATS) for _ in range(4))
    elif what == 4:
        tensor.data_location = TensorProto.EXTERNAL
        for key in rng.sample(("location", "offset", "length", "checksum", "basepath"), 3):
            tensor.external_data.add(key=key, value=rng.choice(PATHS if key == "location" else NUMBERS))
    elif tensor.raw_data:
        data = bytearray(tensor.raw_data)
        for _ in range(4):
            data[rng.randrange(len(data))] = rng.choice((0, 255, 127, 128))
        tensor.raw_data = bytes(data)


def _wrap(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Put a graph of the model into bodies of Ifs, several deep."""
    graph = rng.choice(_graphs(model) or [model.graph])
    for _ in range(rng.choice((1, 2, 5, 25, 40))):
        inner = GraphProto()
        inner.CopyFrom(graph)
        del graph.node[:]
        node = graph.node.add(
            op_type=rng.choice(("If", "Loop", "Scan", "Odd")), input=["c"], output=list(_outputs(inner))
        )
        body = node.attribute.add(name=rng.choice(("then_branch", "else_branch", "body")), type=5)
        body.g.CopyFrom(inner)


def _outputs(graph: GraphProto) -> list[str]:
    return [v.name for v in graph.output]


def _calls(rng: random.Random, model: ModelProto, donor: ModelProto) -> None:
    """Let local functions call each other, or themselves."""
    if not model.functions:
        for function in donor.functions:
            model.functions.add().CopyFrom(function)
    if model.functions:
        caller, called = rng.choice(model.functions), rng.choice(model.functions)
        node = caller.node.add(op_type=called.name, domain=called.domain)
        node.input.extend(list(caller.input)[: len(called.input)])
        node.output.extend(list(caller.output)[: len(called.output)])


Change = Callable[[random.Random, ModelProto, ModelProto], None]
CHANGES: tuple[Change, ...] = (
    *(_any_field, _any_field, _any_field, _any_field),
    *(_retarget, _retarget, _operator, _arity, _arity, _tensor, _tensor, _wrap, _calls),
)
