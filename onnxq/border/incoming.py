"""From a message, bytes or a file to a message of our own without large payloads."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from onnxq.border.external import Folder
from onnxq.border.message import shell_of
from onnxq.border.payload import ByteSpan, FileSpan, MappedFile, MessageBytes, Payload
from onnxq.border.tensors import RecordTensor
from onnxq.border.wire import MARK_BYTES, WireError, lift, mark
from onnxq.errors import InputError

# Payloads from this size on stay where they are; smaller ones are cheaper to parse.
LIFT_BYTES = 4096
_TAG_BYTES = MARK_BYTES - 4

Maker = Callable[[TensorProto], ir.TensorProtocol]


@dataclass
class Incoming:
    """A model message of our own in which marks stand for what is not there.

    Attributes:
        shell: The message.
        tag: The tag of the marks.
        makers: From the record that holds mark i to its tensor.
        folder: Where external data are, if anywhere.
        payloads: What mark i stands for; None where the data are in typed fields of the caller's message.
    """

    shell: ModelProto
    tag: bytes
    makers: list[Maker] = field(default_factory=list)
    folder: Folder | None = None
    payloads: list[Payload | None] = field(default_factory=list)

    def mark(self, record: TensorProto, maker: Maker) -> None:
        """Let a mark stand for the data of a record."""
        record.raw_data = mark(self.tag, len(self.makers))
        self.makers.append(maker)


def read_message(message: ModelProto, base_dir: Path | None) -> Incoming:
    """Take a caller's message in; it keeps its large weights, and they are only read."""
    tag = secrets.token_bytes(_TAG_BYTES)
    shell, kept = shell_of(message, tag, LIFT_BYTES)
    payloads = [MessageBytes(t) if t.HasField("raw_data") else None for t in kept]
    makers = [placed(p) if p is not None else _typed(t) for p, t in zip(payloads, kept, strict=True)]
    return Incoming(shell, tag, makers, Folder(base_dir) if base_dir else None, [*payloads])


def read_bytes(data: bytes, base_dir: Path | None) -> Incoming:
    """Take a serialized model in; large weights stay views of it.

    Raises:
        InputError: Empty, not a model, or truncated.
    """
    return _read(data, None, Folder(base_dir) if base_dir else None)


def read_file(path: Path) -> Incoming:
    """Map a model file.

    Raises:
        InputError: No such file, a directory, empty, not a model, or truncated.
    """
    if path.is_dir():
        raise InputError("this is a directory, not an ONNX file")
    folder = Folder(path.parent, path)
    try:
        if path.exists() and not path.is_file():  # a pipe
            return _read(path.read_bytes(), None, folder)
        file = MappedFile(path)
    except ValueError:
        raise InputError("empty, not an ONNX model") from None
    except OSError as error:
        raise InputError(error.strerror or str(error)) from error
    return _read(file.data, file, folder)


def placed(payload: Payload) -> Maker:
    """A maker for a record whose data lie in a payload."""

    def make(record: TensorProto) -> ir.TensorProtocol:
        record.ClearField("raw_data")
        return RecordTensor(record, payload)

    return make


def _typed(tensor: TensorProto) -> Maker:
    return lambda _: RecordTensor(tensor)


def _read(data: bytes | mmap, file: MappedFile | None, folder: Folder | None) -> Incoming:
    if not len(data):
        raise InputError("empty, not an ONNX model")
    tag = secrets.token_bytes(_TAG_BYTES)
    odd: Exception | None = None
    try:
        text, spans = lift(data, tag, LIFT_BYTES)
    except (WireError, RecursionError) as error:
        text, spans, odd = bytes(data), [], error
    shell = ModelProto()
    try:
        shell.ParseFromString(text)
    except DecodeError as error:
        raise InputError(f"not an ONNX model, or truncated: {odd or error}") from error
    payloads: list[Payload | None] = [
        FileSpan(file, a, z - a) if file else ByteSpan(bytes(data), a, z - a) for a, z in spans
    ]
    return Incoming(shell, tag, [placed(p) for p in payloads if p is not None], folder, payloads)
