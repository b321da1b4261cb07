"""Training samples by number: single ones that are put together to batches of one shape."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.calibration.feeds import Port
from onnxq.calibration.sources import Source
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.errors import DataError
from onnxq.training.losses import TARGET
from onnxq.training.samples import Example, Taker
from onnxq.wording import plural

MEMORY = 1 << 30
"""Bytes of samples that are held in memory; more are kept on disk."""


class _Folder:
    """A temporary folder that goes when the object does, at the latest when Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="onnxq-training-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass
class Examples:
    """Examples of one shape, any number of which make a batch. Beyond the memory limit they lie in a temporary folder.

    Attributes:
        joins: Whether examples are put together along axis 0; if not, each is a batch as it is.
        limit: Bytes to hold in memory.
        digest: SHA-256 of all samples in order, once they are read.
    """

    joins: bool
    limit: int = MEMORY
    digest: str = ""
    _held: list[Example | None] = field(default_factory=list)
    _bytes: int = 0
    _folder: _Folder | None = None

    def __len__(self) -> int:
        return len(self._held)

    def append(self, example: Example) -> None:
        """Keep one more."""
        self._bytes += example.nbytes
        if self._bytes <= self.limit:
            self._held.append(example)
            return
        if self._folder is None:
            self._folder = _Folder()
        self._path(len(self._held)).write_bytes(pickle.dumps(example, protocol=5))
        self._held.append(None)

    def __getitem__(self, index: int) -> Example:
        held = self._held[index]
        if held is not None:
            return held
        loaded: Example = pickle.loads(self._path(index).read_bytes())
        return loaded

    def batch(self, indices: Sequence[int]) -> Example:
        """The examples of these numbers as one."""
        return join([self[int(i)] for i in indices])

    def keep(self, indices: Sequence[int]) -> None:
        """Forget all others; the ones that stay are numbered anew."""
        kept = Examples(self.joins, self.limit, self.digest)
        for i in indices:
            kept.append(self[i])
        self._held, self._bytes, self._folder = kept._held, kept._bytes, kept._folder

    def _path(self, index: int) -> Path:
        assert self._folder is not None
        return self._folder.path / f"{index}.pickle"


def join(examples: Sequence[Example]) -> Example:
    """Several examples as one, along axis 0."""
    if len(examples) == 1:
        return examples[0]
    first = examples[0]
    return Example(
        {k: np.concatenate([e.feeds[k] for e in examples]) for k in first.feeds},
        {k: np.concatenate([e.targets[k] for e in examples]) for k in first.targets},
    )


def rows(example: Example, index: int) -> list[Example]:
    """The single samples that an example holds along axis 0.

    Raises:
        DataError: Its arrays have different lengths there.
    """
    arrays = {**example.feeds, **{TARGET + k: v for k, v in example.targets.items()}}
    lengths = {k: v.shape[0] if v.ndim else 0 for k, v in arrays.items()}
    (count, *others) = dict.fromkeys(lengths.values())
    if others or count == 0:
        text = ", ".join(f"'{k}' {n}" for k, n in lengths.items())
        raise DataError(f"sample {index}: inputs and targets need as many entries along axis 0, at least 1; got {text}")
    if count == 1:
        return [example]
    return [
        Example(
            {k: v[i : i + 1] for k, v in example.feeds.items()}, {k: v[i : i + 1] for k, v in example.targets.items()}
        )
        for i in range(count)
    ]


def joinable(ports: Sequence[Port]) -> bool:
    """Whether samples of a model can be put together along axis 0: that dimension of all its ports is open."""
    return all(p.dims is None or (len(p.dims) > 0 and not isinstance(p.dims[0], int)) for p in ports if p.required)


def read(source: Source, taker: Taker, ctx: Context) -> Examples:
    """All samples of the most frequent shape.

    Raises:
        DataError: A sample does not fit the model or the loss.
    """
    joins = joinable((*taker.inputs, *taker.outputs))
    out, digest = Examples(joins), hashlib.sha256()
    shapes: list[Any] = []
    for index, example in enumerate(source.each(taker)):
        for row in rows(example, index) if joins else [example]:
            shapes.append(row.shape())
            digest.update(repr(shapes[-1]).encode())
            for array in (*row.feeds.values(), *row.targets.values()):
                digest.update(np.ascontiguousarray(array).data if array.dtype.kind != "O" else repr(array).encode())
            out.append(row)
        ctx.progress("read", index + 1, source.size or 0)
    out.digest = digest.hexdigest()
    (shape, count), *others = Counter(shapes).most_common()
    if others:
        left, wanted = len(shapes) - count, ", ".join(f"{k} {list(dims)}" for k, dims, _ in shape)
        text = f"{left} of {plural(len(shapes), 'sample')} are left out, of other shapes than most ({wanted})"
        ctx.note("samples-left-out", None, f"all batches have one shape: {text}", Severity.WARNING, left_out=left)
        out.keep([i for i, s in enumerate(shapes) if s == shape])
    return out
