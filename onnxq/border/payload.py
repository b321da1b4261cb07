"""Where the bytes of a tensor lie: in a mapped file, in the caller's bytes, or in the caller's message."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

from onnx import TensorProto

# Bytes of a mapped file that may be handed out before its pages are given back to the kernel. They come back from the
# page cache when touched again, so views stay valid; without this the whole file counts as resident after one sweep.
_RESIDENT_BYTES = 64 << 20


class Payload(Protocol):
    """The ``raw_data`` of a tensor that was not parsed."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def view(self) -> bytes | memoryview:
        """The bytes, read-only; not kept by the payload."""


class MappedFile:
    """A file mapped for reading. The mapping outlives a replacement or removal of the file.

    Attributes:
        path: Absolute path with symbolic links resolved.
        size: Size in bytes.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is empty.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.path = path.resolve()
            self._stat = _identity(file)
            self.size = os.fstat(file.fileno()).st_size
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._handed = 0

    def view(self, offset: int, length: int) -> memoryview:
        """A view of ``length`` bytes at ``offset``."""
        self._handed += length
        if self._handed > _RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)
            self._handed = length
        return memoryview(self.data)[offset : offset + length]

    def in_place(self) -> bool:
        """Whether the path still leads to the mapped content."""
        try:
            with self.path.open("rb") as file:
                return _identity(file) == self._stat
        except OSError:
            return False


def _identity(file: BinaryIO) -> tuple[int, int, int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True)
class FileSpan:
    """Part of a mapped file."""

    file: MappedFile
    offset: int
    size: int

    def view(self) -> memoryview:
        """A view of the mapped pages."""
        return self.file.view(self.offset, self.size)


@dataclass(frozen=True)
class ByteSpan:
    """Part of a bytes object."""

    data: bytes
    offset: int
    size: int

    def view(self) -> memoryview:
        """A view of the caller's bytes."""
        return memoryview(self.data)[self.offset : self.offset + self.size]


@dataclass(frozen=True)
class MessageBytes:
    """The ``raw_data`` of a tensor in the caller's message, which is read but never written."""

    record: TensorProto

    @cached_property
    def size(self) -> int:
        """Size in bytes; protobuf copies them to find out, so this is put off."""
        return len(self.record.raw_data)

    def view(self) -> bytes:
        """A fresh copy: protobuf hands out no views."""
        return self.record.raw_data
