"""The border: `ModelProto`, bytes or a path on the outside, `onnx_ir.Model` inside; crossed once per pipeline.

Reading leaves large weights where they are: mapped in the file (in an external data file, or inside the .onnx file,
found by scanning the wire format), or in the caller's message or bytes, which are never written to. Writing holds one
weight at a time. So a path-to-path run needs little memory, whatever the size of the model.

What comes in goes out as it was. The exceptions, none of which changes the meaning of a model:

* written although it was absent: ``domain`` of an opset import (empty), the element type of a tensor type (0), and
  the value of an attribute that has a type but no value (0 or empty);
* not written although it was there, empty: names, domains, doc strings and header texts, a ``model_version`` of 0, a
  type without a kind, a value_info that says nothing;
* spelled otherwise: the domain ``ai.onnx`` becomes empty;
* ordered otherwise: metadata and annotation entries by key, value_info and annotations by definition (initializers,
  then nodes);
* dropped: trailing empty names in the outputs of a node; value_info of nothing, of a graph output, or repeated;
* corrected, with a note: a value_info of an initializer that contradicts the tensor.

A model that came from a path leaves as a message or bytes with its external data inside. The ``checksum`` of external
data is of the old file as a whole, so it stays only in a model that comes and goes as a message or bytes.

Refused as `UnsupportedError`, valid though they may be: fields that the installed onnx does not know; an IR version
or an opset newer than it; map and opaque types; sparse tensors in attributes; attributes without a type; lists of
strings that are not UTF-8; element types unknown to the IR; device configurations below IR version 11; value_info of
functions below IR version 10; graphs as defaults of function attributes. Refused as `InputError`: names defined
twice, repeated keys, opset imports or attributes, initializers without a name, tensors without an element type,
external data that are missing, short, or outside the model's folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir
from onnx import ModelProto

from onnxq.border import files, incoming, outgoing
from onnxq.border.model import Left, build, left_of
from onnxq.border.session import session_model
from onnxq.border.tensors import Elsewhere
from onnxq.diagnostics import Diagnostic
from onnxq.errors import InputError, OptionError

__all__ = ["Crossing", "open_model", "save", "session_model", "to_proto"]

Source = ModelProto | bytes | str | os.PathLike[str]


def open_model(source: Source, *, base_dir: str | os.PathLike[str] | None = None) -> Crossing:
    """Bring a model in.

    Args:
        source: A message, a serialized model, or the path of one. A message must not be changed while its model is in
            use.
        base_dir: Folder of the external data of a message or of bytes. Without it such a model can come and go, but its
            external weights cannot be read. A path is its own folder.

    Raises:
        InputError: Missing, a directory, empty, truncated, not ONNX, invalid, or external data missing or short.
        UnsupportedError: Something that would be lost; names construct and place.
        OptionError: Another kind of source.
    """
    folder = Path(base_dir) if base_dir is not None else None
    if isinstance(source, ModelProto):
        return Crossing(build(incoming.read_message(source, folder)), ModelProto)
    if isinstance(source, bytes):
        return Crossing(build(incoming.read_bytes(source, folder)), bytes)
    if not isinstance(source, (str, os.PathLike)):
        raise OptionError(f"a model is a ModelProto, bytes or a path, not {type(source).__name__}")
    path = Path(source)
    try:
        model = build(incoming.read_file(path))
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
    left_of(model).source = path.resolve()
    return Crossing(model, ModelProto, path)


class Crossing:
    """A model on this side of the border, and what is needed to bring it back.

    Attributes:
        model: The model; passes may change it at will.
        source_path: Where it came from, None for a message or bytes.
    """

    def __init__(self, model: ir.Model, kind: type[ModelProto] | type[bytes], source_path: Path | None = None) -> None:
        self.model, self.source_path = model, source_path
        self._kind, self._left = kind, left_of(model)

    @property
    def notes(self) -> list[Diagnostic]:
        """What was repaired on the way in, and what could not be taken out again. Complete after the last way out."""
        return self._kept().notes

    def _kept(self) -> Left:
        """What is kept for the model; a step that put another graph into it may have brought its own."""
        now = left_of(self.model, self._left)
        if now is not self._left:
            now.succeed(self._left)
            self._left = now
        return now

    def to_proto(self) -> ModelProto:
        """The model as a message of its own; see `to_proto`."""
        return _message(self.model, self._kept())

    def to_bytes(self) -> bytes:
        """The model serialized, with all weights inside.

        Raises:
            OptionError: More than the 2 GiB that protobuf can hold.
        """
        return files.inline_bytes(self.model, self._kept())

    def save(self, path: str | os.PathLike[str], *, external_data: bool | None = None) -> None:
        """Write the model to a file; see `save`."""
        files.write(self.model, self._kept(), Path(path), external_data)

    def give_back(self) -> ModelProto | bytes:
        """The same kind that came in: bytes for bytes, else a message."""
        return self.to_bytes() if self._kind is bytes else self.to_proto()


def to_proto(model: ir.Model) -> ModelProto:
    """A model as a message that shares nothing with it.

    All weights are inside, except external ones of a model that came as a message or bytes without a folder; their
    records stay as they were.
    """
    return _message(model, left_of(model))


def save(model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None) -> None:
    """Write a model file, and beside it ``<file name>.data`` when the weights are external.

    Both are written under temporary names and renamed, so files that are there are replaced as a whole or, after any
    failure, not at all; the model may be read from the very files that are replaced. Missing folders are made. Equal
    models give equal bytes.

    Args:
        model: The model; not changed.
        path: Where to.
        external_data: Whether tensors of 1 KiB and more go to the data file. None: when the model came with external
            data, or has more than 1.5 GiB.

    Raises:
        OptionError: A target that is no regular file, or holds weights of the model that was read, when that is
            another file; more than 2 GiB and ``external_data=False``.
        InputError: A weight whose data cannot be found, or do not fit its shape.
        OnnxqError: The files cannot be written; names the reason.
    """
    files.write(model, left_of(model), Path(path), external_data)


def _message(model: ir.Model, left: Left) -> ModelProto:
    proto, slots = outgoing.shell(model, left)
    for slot in slots:
        if type(slot.tensor) is not Elsewhere:
            slot.fill()
    return proto
