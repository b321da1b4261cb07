"""Messages and bytes changed at random: carried as they are, or refused; never a traceback, never a silent loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from onnxq import border
from onnxq.errors import OnnxqError

NormalForm = Callable[[ModelProto], ModelProto]


class Mutation:
    """Random changes of a message that protobuf allows, whatever ONNX thinks of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def apply(self, model: ModelProto) -> None:
        message = self.rng.choice(list(self.messages(model)))
        field = self.rng.choice(list(message.DESCRIPTOR.fields))
        value = getattr(message, field.name)
        if isinstance(value, Message):
            value.SetInParent()
            self.fill(value)
        elif not hasattr(value, "__len__") or isinstance(value, (str, bytes)):
            if self.rng.random() < 0.3:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, self.scalar(field))
        elif len(value) and self.rng.random() < 0.4:
            del value[self.rng.randrange(len(value))]
        elif field.message_type is None:
            value.append(self.scalar(field))
        elif len(value) and self.rng.random() < 0.6:
            value.add().CopyFrom(value[0])
        else:
            self.fill(value.add())

    def messages(self, message: Message) -> Iterator[Message]:
        yield message
        for field, value in message.ListFields():
            if field.message_type is not None:
                for inner in [value] if isinstance(value, Message) else value:
                    yield from self.messages(inner)

    def fill(self, message: Message) -> None:
        for field in message.DESCRIPTOR.fields:
            if field.message_type is None and self.rng.random() < 0.5:
                value = getattr(message, field.name)
                if hasattr(value, "append"):
                    value.append(self.scalar(field))
                else:
                    setattr(message, field.name, self.scalar(field))

    def scalar(self, field: FieldDescriptor) -> Any:
        kinds = {
            FieldDescriptor.TYPE_STRING: ["", "x", "h", "y", "w", "a", "loc", "é", "ai.onnx", "N", "k"],
            FieldDescriptor.TYPE_BYTES: [b"", b"a", b"\0" * 4, b"\0" * 12, b"\xff"],
            FieldDescriptor.TYPE_FLOAT: [0.0, 1.5, float("inf")],
            FieldDescriptor.TYPE_DOUBLE: [0.0, 1.5],
            FieldDescriptor.TYPE_UINT64: [0, 1, 3],
        }
        if field.enum_type is not None:
            return self.rng.choice([v.number for v in field.enum_type.values])
        return self.rng.choice(kinds.get(field.type, [0, 1, 2, 3, -1, 7, 10, 21]))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 30))
def test_random_changes_are_carried_or_refused(seed: int, build: Any, normal_form: NormalForm) -> None:
    rng = random.Random(seed)
    then = build.branch("then", build.three("v"))
    model = build.model(build.foo(a=1, t=build.three("t"), g=then, tp=build.nested_type))
    model.functions.append(build.function(value_info=[build.info("t", "N")]))
    model.graph.value_info.append(build.info("w", 3))
    model.graph.quantization_annotation.add(tensor_name="x")
    model.metadata_props.extend(build.entries(k="v"))
    mutation = Mutation(rng)
    for _ in range(rng.choice([1, 1, 2, 3])):
        mutation.apply(model)
    before = model.SerializeToString(deterministic=True)
    try:
        crossing = border.open_model(model)
    except OnnxqError:
        return
    result = crossing.give_back()
    assert isinstance(result, ModelProto)
    assert model.SerializeToString(deterministic=True) == before
    if not crossing.notes:
        assert normal_form(result) == normal_form(model)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    junk=st.binary(max_size=40),
    changes=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4),
    end=st.integers(0, 600),
)
def test_any_bytes_are_a_model_or_one_error(junk: bytes, changes: list[tuple[int, int]], end: int, build: Any) -> None:
    data = bytearray(build.model(build.branches(build.three("v"))).SerializeToString())
    for at, byte in changes:
        data[at % len(data)] = byte
    for candidate in (junk, bytes(data), bytes(data[:end]), bytes(data) + junk):
        try:
            border.open_model(candidate).give_back()
        except OnnxqError as error:
            assert str(error)
