"""Python's collector of cyclic garbage, told to look less often while models are built and edited."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Allocations between two collections of each generation. Models are many small objects that live long, and the usual
# 700 goes through them again and again: 5.6 s against 4.2 s for 5 000 nodes. Not collecting at all is no faster than
# this, and would let garbage of a sample source or of a pass add up.
THRESHOLDS = (50_000, 10, 10)

_lock = threading.Lock()
_depth = 0
_before = THRESHOLDS


@contextmanager
def relaxed() -> Iterator[None]:
    """Collect rarely inside the block; the first one in sets the thresholds, the last one out puts them back.

    The collector belongs to the whole process: other threads get the same rarer collections meanwhile, and a change
    of the thresholds by somebody else inside the block is undone. A collector that is switched off stays off.
    """
    global _depth, _before
    with _lock:
        if _depth == 0:
            _before = gc.get_threshold()
            if _before[0]:
                gc.set_threshold(*map(max, _before, THRESHOLDS))
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                gc.set_threshold(*_before)
