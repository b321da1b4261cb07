"""Read trained weights and vocabularies out of GGUF files (version 3): metadata, and tensors as float32.

Layout: magic, version, counts, metadata, tensor table, padding, data. Everything is little-endian. Quantized tensors
are rows of blocks; the arithmetic of each kind stands at its reader.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.weights import Array

MAGIC, VERSION = b"GGUF", 3
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
ALIGNMENT = "general.alignment"

Q4_1 = np.dtype([("scale", "<f2"), ("least", "<f2"), ("pairs", "u1", 16)])
Q8_0 = np.dtype([("scale", "<f2"), ("values", "i1", 32)])


def _q4_1(blocks: Array) -> Array:
    """32 values a block, scale * q + least; byte i holds values i (low four bits) and i + 16."""
    pairs = blocks["pairs"]
    q = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float32)
    return q * blocks["scale"].astype(np.float32)[:, None] + blocks["least"].astype(np.float32)[:, None]


def _q8_0(blocks: Array) -> Array:
    """32 values a block, scale * q."""
    return blocks["values"].astype(np.float32) * blocks["scale"].astype(np.float32)[:, None]


@dataclass(frozen=True)
class Kind:
    """How tensors of one kind are stored: ``per_block`` values in each item of ``dtype``."""

    dtype: np.dtype[Any]
    per_block: int
    values: Callable[[Array], Array]


def _plain(numbers: Array) -> Array:
    return numbers.astype(np.float32)


KINDS = {
    0: Kind(np.dtype("<f4"), 1, _plain),
    3: Kind(Q4_1, 32, _q4_1),
    8: Kind(Q8_0, 32, _q8_0),
}


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]
    kind: int
    offset: int


class Gguf:
    """An open file; tensors are read when asked for.

    Attributes:
        metadata: Key to number, text, truth value or list of such.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version, tensors, keys = self._take("4sIQQ")
        if magic != MAGIC or version != VERSION:
            raise ValueError(f"{path} is not a GGUF file of version {VERSION}")
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._text()
            self.metadata[key] = self._value(*self._take("I"))
        self._entries: dict[str, _Entry] = {}
        for _ in range(tensors):
            name = self._text()
            (rank,) = self._take("I")
            shape = self._take(f"{rank}Q")[::-1]  # stored innermost first
            self._entries[name] = _Entry(shape, *self._take("IQ"))
        alignment = self.metadata.get(ALIGNMENT, 32)
        self._start = -(-self._at // alignment) * alignment

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def tensor(self, name: str) -> Array:
        """A tensor as float32.

        Raises:
            KeyError: The file has no such tensor.
            ValueError: It is stored in a way this reader does not know.
        """
        entry = self._entries[name]
        if entry.kind not in KINDS:
            raise ValueError(f"{self.path}: '{name}' is of kind {entry.kind}; known: {', '.join(map(str, KINDS))}")
        kind = KINDS[entry.kind]
        count = math.prod(entry.shape) // kind.per_block
        blocks = np.frombuffer(self._data, kind.dtype, count, self._start + entry.offset)
        return np.asarray(kind.values(blocks).reshape(entry.shape))

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def _text(self) -> str:
        (size,) = self._take("Q")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            item, count = self._take("IQ")
            return [self._text() for _ in range(count)] if item == TEXT else list(self._take(f"{count}{SCALARS[item]}"))
        return self._take(SCALARS[kind])[0]
