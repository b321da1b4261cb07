"""Fields of a message that the installed onnx does not know; they would be lost on the way through the IR."""

from __future__ import annotations

import onnx
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from onnxq.errors import UnsupportedError


def refuse_unknown_fields(message: Message, where: str = "the model", *, deep: bool = True) -> None:
    """Refuse a message with a field that the installed onnx does not know.

    Args:
        message: Any message; when ``deep`` a small one, for it is copied.
        where: Its name in the error.
        deep: Look into the messages inside, too.

    Raises:
        UnsupportedError: Names the message kind, and node or tensor where there is one.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise UnsupportedError(
            f"{where}: {message.DESCRIPTOR.name} has the unknown field {unknown[0].field_number}, which onnx"
            f" {onnx.__version__} would lose: upgrade onnx"
        )
    if not deep:
        return
    probe = type(message)()
    probe.CopyFrom(message)
    probe.DiscardUnknownFields()
    if probe.ByteSize() == message.ByteSize():
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                name = getattr(inner, "name", "")
                refuse_unknown_fields(inner, f"{where}: {field.name} '{name}'" if name else where)
