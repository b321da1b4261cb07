"""Changes of models at random: of messages, whatever ONNX thinks of them, and of bytes, whatever protobuf does.

All take a `random.Random`, so an input is told by its seed, and hypothesis can take the place of chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxq.border.wire import WireError, _fields, _varint

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
PATHS = (
    *("weights.bin", "", ".", "..", "../weights.bin", "/", "/dev/zero", "/etc/passwd", "a\0b", "x" * 5000),
    *("model.onnx", "~/w", "file:///w", "pipe", "link", "folder"),
)
NUMBERS = ("0", "-1", "64", str(2**63), "1e3", "nan", "", "٣", "0x10", "9" * 5000)
MAX_BYTES = 1 << 18


def mutated(rng: random.Random, models: list[bytes]) -> bytes:
    """One of the models, changed a few times."""
    data = rng.choice(models)
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        change = rng.choice((mutated_message,) * 3 + (mutated_bytes,))
        data = change(rng, data, rng.choice(models))
    return data[:MAX_BYTES]


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
    _any_field, _any_field, _any_field, _any_field, _retarget, _retarget, _operator, _tensor, _tensor, _wrap, _calls
)  # fmt: skip


def mutated_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a serialized model as bytes."""
    if not data:
        return other
    changed = bytearray(data)
    what = rng.randrange(8)
    at = rng.randrange(len(changed))
    if what == 0:
        for _ in range(rng.choice((1, 3, 20))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif what == 1:
        del changed[at:]
    elif what == 2:
        del changed[at : at + rng.choice((1, 2, 16, 400))]
    elif what == 3:
        changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 8))))
    elif what == 4:
        start = rng.randrange(len(other) or 1)
        changed[at:at] = other[start : start + rng.choice((4, 40, 4000))]
    elif what == 5:
        changed[at : at + 1] = rng.choice(
            (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x07", b"\x80\x00", b"\xff\xfe", b"\x00")
        )
    else:
        return _field_of(rng, data, other, splice=what == 6)
    return bytes(changed)


def _field_of(rng: random.Random, data: bytes, other: bytes, *, splice: bool) -> bytes:
    """Go down the wire format to a field; put one of another model there, or another length or text.

    The lengths of the messages around it are put right, or left wrong.
    """
    path = _path(rng, data)
    if not path:
        return data
    head, start, end = path[-1]
    if splice:
        taken = _path(rng, other)
        new = other[taken[-1][0] : taken[-1][2]] if taken else b""
    else:
        key, _ = _varint_at(data, head)
        text = rng.choice((b"\xff\xfe\x80", b"", b"\xc3\x28", data[start:end] * 2, b"\x0a" * 9))
        new = _varint(key) + _varint(rng.choice((len(text), 0, end - start + 1, 2**31, 2**63))) + text
    for index in range(len(path) - 1, -1, -1):
        head, start, end = path[index]
        whole_end = path[index - 1][2] if index else len(data)
        whole_start = path[index - 1][1] if index else 0
        new = data[whole_start:head] + new + data[end:whole_end]
        if index:
            outer_key, _ = _varint_at(data, path[index - 1][0])
            size = len(new) if rng.random() < 0.9 else rng.choice((0, len(new) + 1, 2**40))
            new = _varint(outer_key) + _varint(size) + new
    return new


def _path(rng: random.Random, data: bytes) -> list[tuple[int, int, int]]:
    """Fields, each within the one before: where it starts, and where its value starts and ends."""
    path: list[tuple[int, int, int]] = []
    start, end = 0, len(data)
    while True:
        try:
            inner = [(h, a, z) for key, h, a, z in _fields(data, start, end) if key & 7 == 2]
        except WireError:
            return path
        if not inner or (path and rng.random() < 0.2):
            return path
        path.append(rng.choice(inner))
        _, start, end = path[-1]


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        result |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return result, at
