"""Readers of trained weights: right numbers, and no code out of a file."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from models.weights import TORCH_MAGIC, cached_build, safetensors, torch_state


class Rebuilt(NamedTuple):
    """Arguments of torch's tensor constructor."""

    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def torch_pickle(value: Any) -> bytes:
    """A pickle with torch's globals and storage references, written by hand (protocol 2)."""
    if not isinstance(value, OrderedDict):
        return pickle.dumps(value, protocol=2)
    parts = [b"\x80\x02", b"ccollections\nOrderedDict\n", b")R", b"("]
    for name, tensor in value.items():
        key, offset, shape, strides = tensor
        parts += [_plain(name), b"ctorch._utils\n_rebuild_tensor_v2\n", b"("]
        parts += [b"(", _plain("storage"), b"ctorch\nFloatStorage\n", *map(_plain, (key, "cpu", 9)), b"N", b"tQ"]
        parts += [_plain(offset), _plain(shape), _plain(strides), b"\x89", b"ccollections\nOrderedDict\n)R", b"tR"]
    return b"".join([*parts, b"u", b"."])


def _plain(value: Any) -> bytes:
    """The opcodes that push a plain value."""
    return pickle.dumps(value, protocol=2)[2:-1].replace(b"q\x00", b"")


def stream(state: Any, magic: int = TORCH_MAGIC) -> bytes:
    numbers = np.arange(9, dtype="<f4")
    pickles = [torch_pickle(part) for part in (magic, 1001, {"little_endian": True}, state, ["7"])]
    return b"".join(pickles) + struct.pack("<q", 9) + numbers.tobytes()


def test_torch_tensors_are_strided_views_of_their_storage(tmp_path: Path) -> None:
    state = OrderedDict(turned=Rebuilt("7", 1, (2, 3), (1, 2)), row=Rebuilt("7", 6, (3,), (1,)))
    (tmp_path / "w.pth").write_bytes(stream(state))
    found = torch_state(tmp_path / "w.pth")
    np.testing.assert_array_equal(found["turned"], [[1, 3, 5], [2, 4, 6]])
    np.testing.assert_array_equal(found["row"], [6, 7, 8])
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}


def test_a_torch_file_cannot_run_code(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "attacked"),)

    (tmp_path / "w.pth").write_bytes(pickle.dumps(Attack(), protocol=2))
    with pytest.raises(pickle.UnpicklingError, match="has no business with"):
        torch_state(tmp_path / "w.pth")
    assert not (tmp_path / "attacked").exists()


def test_another_pickle_is_no_torch_file(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(stream(OrderedDict(), magic=1))
    with pytest.raises(ValueError, match="is not a torch state dict in stream format"):
        torch_state(tmp_path / "w.pth")


def test_safetensors(tmp_path: Path) -> None:
    whole, half = np.arange(6, dtype="<f4").reshape(2, 3), np.array([1.5], "<f2")
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "whole": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "half": {"dtype": "F16", "shape": [1], "data_offsets": [24, 26]},
        }
    ).encode()
    file = tmp_path / "w.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + whole.tobytes() + half.tobytes())
    found = safetensors(file)
    assert sorted(found) == ["half", "whole"]
    np.testing.assert_array_equal(found["whole"], whole)
    np.testing.assert_array_equal(found["half"], half)


def test_a_build_happens_once_and_whole(tmp_path: Path) -> None:
    target, calls = tmp_path / "built" / "m.onnx", []

    def build(path: Path) -> None:
        calls.append(path)
        path.write_text("half")
        if len(calls) == 1:
            raise KeyboardInterrupt
        path.write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        cached_build(target, build)
    assert not target.exists()
    assert cached_build(target, build) == cached_build(target, build) == target
    assert (target.read_text(), len(calls)) == ("whole", 2)
