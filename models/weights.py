"""Read trained weights without their framework: torch state dicts (stream format of torch < 1.6) and safetensors.

The torch reader is an unpickler that knows five names and refuses all others, so a file cannot run code.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

TORCH_MAGIC = 0x1950A86A20F9469CFC6C
TORCH_STORAGES = {
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "LongStorage": np.dtype("<i8"),
}
SAFETENSORS_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I64": np.dtype("<i8")}


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _Tensor:
    """A strided view of a storage whose bytes come later in the stream."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, data: Array) -> Array:
        steps = [s * data.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(data[self.offset :], self.shape, steps).copy()


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch" and name in TORCH_STORAGES:
            return TORCH_STORAGES[name]
        raise pickle.UnpicklingError(f"a state dict has no business with {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        _, dtype, key, *_ = pid
        return _Storage(key, dtype)


def _rebuild_tensor(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Any:
    return _Tensor(storage, offset, shape, strides)


def torch_state(path: Path) -> dict[str, Array]:
    """Tensors of a ``torch.save``d state dict by name.

    Stream layout: magic, protocol, system info, state dict, storage keys (five pickles), then for each key an int64
    count and that many little-endian numbers.
    """
    with path.open("rb") as file:
        magic, _protocol, _system, state, keys = (_StateUnpickler(file).load() for _ in range(5))
        if magic != TORCH_MAGIC:
            raise ValueError(f"{path} is not a torch state dict in stream format")
        dtypes = {t.storage.key: t.storage.dtype for t in state.values()}
        data = {key: _numbers(file, dtypes[key]) for key in keys}
    return {name: tensor.read(data[tensor.storage.key]) for name, tensor in state.items()}


def _numbers(file: BinaryIO, dtype: np.dtype[Any]) -> Array:
    (count,) = struct.unpack("<q", file.read(8))
    return np.frombuffer(file.read(count * dtype.itemsize), dtype)


def safetensors(path: Path) -> dict[str, Array]:
    """Tensors of a safetensors file by name: uint64 header size, JSON header, data."""
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    body = memoryview(raw)[8 + size :]

    def tensor(entry: dict[str, Any]) -> Array:
        start, stop = entry["data_offsets"]
        flat: Array = np.frombuffer(body[start:stop], SAFETENSORS_TYPES[entry["dtype"]])
        return flat.reshape(entry["shape"])

    return {name: tensor(entry) for name, entry in header.items()}


def cached_build(target: Path, build: Callable[[Path], None]) -> Path:
    """``target``, built on first use beside itself and renamed, so a stopped build leaves nothing."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".part{target.suffix}")
        build(part)
        part.replace(target)
    return target
