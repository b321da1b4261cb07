"""External data: from the record of a tensor to the bytes in a file of the model's folder."""

from __future__ import annotations

import errno
import math
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx_ir as ir
from onnx import TensorProto

from onnxq.border.payload import ByteSpan, FileSpan, MappedFile, Payload
from onnxq.errors import InputError
from onnxq.wording import plural


class Folder:
    """The folder of a model, out of which external data may not lead.

    A model file that is itself a symbolic link (download caches are made of them) may have its data beside the link or
    beside the real file.

    Args:
        folder: Folder that locations are relative to.
        model: The model file, if there is one.

    Attributes:
        files: The files used so far.
    """

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        self.folder = folder
        self._roots = [_real(folder), *([_real(model).parent] if model else [])]
        self.files: dict[Path, MappedFile] = {}

    def payload(self, tensor: TensorProto) -> Payload:
        """Where the data of an external tensor are.

        Raises:
            InputError: A location outside the folder, a missing or short file, numbers that are none; the message names
                tensor, file and bytes.
        """
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        expected = _bytes_of(tensor)
        offset = _number(entries.get("offset") or "0", "offset", tensor)
        length = _number(entries.get("length") or str(expected), "length", tensor)
        if length != expected:
            raise InputError(
                f"tensor '{tensor.name}' has {plural(length, 'byte')} of external data, "
                f"and its type and shape need {expected}"
            )
        path = self._path(location, tensor)
        if length == 0:
            return ByteSpan(b"", 0, 0)
        file = self._open(path, tensor, length)
        if offset + length > file.size:
            raise InputError(
                f"external file '{path}' has {plural(file.size, 'byte')}, and tensor '{tensor.name}' needs "
                f"{plural(length, 'byte')} from byte {offset} on: it is truncated or belongs to another model"
            )
        return FileSpan(file, offset, length)

    def _path(self, location: str, tensor: TensorProto) -> Path:
        if not isinstance(location, str):  # protobuf hands out what is not UTF-8 as bytes
            raise InputError(f"tensor '{tensor.name}' has external data at {location!r}, which is not text")
        windows = PureWindowsPath(location)
        outside = windows.drive or windows.root or ".." in windows.parts or PurePosixPath(location).is_absolute()
        if not location or "\0" in location:
            raise InputError(f"tensor '{tensor.name}' has external data without a usable location: {location!r}")
        path = self.folder / location
        if outside or not any(_real(path).is_relative_to(root) for root in self._roots):
            raise InputError(
                f"tensor '{tensor.name}' has its external data in '{location}', outside the model's folder"
                f" '{self.folder}': move the file there"
            )
        return path

    def _open(self, path: Path, tensor: TensorProto, length: int) -> MappedFile:
        if path not in self.files:
            try:
                if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would wait
                    raise OSError(errno.EINVAL, "it is no regular file")
                self.files[path] = MappedFile(path)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "the file is empty"
                raise InputError(
                    f"external file '{path}' of tensor '{tensor.name}' ({plural(length, 'byte')}) cannot be read: {why}"
                ) from error
        return self.files[path]


def _real(path: Path) -> Path:
    """The path without symbolic links; of a loop of them, as given."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # RuntimeError: what Python before 3.13 makes of a loop
        return path.absolute()


def _bytes_of(tensor: TensorProto) -> int:
    bits: int = ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims)
    return -(-bits // 8)


def _number(text: str, what: str, tensor: TensorProto) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20):
        raise InputError(f"tensor '{tensor.name}': the {what} of its external data is {text!r}, which is no number")
    return int(text)
