"""An iterator that can be used only once, made to be used again: its items are kept on disk."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Spool:
    """Iterable over the items of an iterator, any number of times, one item in memory at a time.

    The first pass takes items from the iterator and writes them down; what a broken-off pass left is taken by the next.
    The files go when the object does, at the latest when Python ends.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._folder = Path(tempfile.mkdtemp(prefix="onnxq-samples-"))
        self._count = 0
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __iter__(self) -> Iterator[Any]:
        """A new pass from the first item."""
        index = 0
        while True:
            path = self._folder / f"{index}.pickle"
            if index < self._count:
                with path.open("rb") as file:
                    yield pickle.load(file)
            else:
                try:
                    item = next(self._items)
                except StopIteration:
                    return
                with path.open("wb") as file:
                    pickle.dump(item, file, protocol=5)
                self._count += 1
                yield item
            index += 1
