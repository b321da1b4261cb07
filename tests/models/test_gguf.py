"""GGUF files: metadata of every type, and the arithmetic of stored blocks."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.gguf import Gguf


def one_tensor(path: Path, kind: int, shape: tuple[int, ...], data: bytes) -> Gguf:
    name = struct.pack("<Q", 1) + b"w"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + name
    head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return Gguf(path)


def test_metadata_and_tensors(tiny: Any) -> None:
    file = Gguf(tiny.path)
    assert file.metadata == tiny.sizes
    for name, values in tiny.weights.items():
        np.testing.assert_array_equal(file.tensor(f"{name}.weight"), values)


def test_q4_1_holds_two_halves_of_a_block_in_its_nibbles(tmp_path: Path) -> None:
    q = np.random.default_rng(0).integers(0, 16, (4, 32))
    scale, least = np.array([0.5, 2, -1, 0.25], "<f2"), np.array([-4, 0, 8, 1], "<f2")
    data = b""
    for block, s, m in zip(q, scale, least, strict=True):
        data += s.tobytes() + m.tobytes() + bytes(int(block[i] | block[i + 16] << 4) for i in range(16))
    expected = q * scale.astype(np.float32)[:, None] + least.astype(np.float32)[:, None]
    found = one_tensor(tmp_path / "w.gguf", 3, (2, 64), data).tensor("w")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.reshape(2, 64))


def test_other_files_and_kinds_are_refused(tmp_path: Path) -> None:
    file = one_tensor(tmp_path / "w.gguf", 2, (32,), bytes(18))
    with pytest.raises(ValueError, match="'w' is of kind 2; known: 0, 3, 8"):
        file.tensor("w")
    with pytest.raises(KeyError):
        file.tensor("v")
    (tmp_path / "old.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 2, 0, 0))
    with pytest.raises(ValueError, match="is not a GGUF file of version 3"):
        Gguf(tmp_path / "old.gguf")
