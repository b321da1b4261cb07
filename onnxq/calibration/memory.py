"""How much memory the values of one sample take, told before they are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, np.dtype[Any]]


def estimate(model: ir.Model, values: Sequence[ir.Value], feeds: Mapping[str, Array]) -> list[int]:
    """Bytes of each value for one sample, from known shapes with their symbols bound by that sample.

    A value of unknown size counts as much as the largest known one.
    """
    symbols: dict[str, int] = {}
    for port in model.graph.inputs:
        feed = feeds.get(port.name or "")
        if port.shape is None or feed is None:
            continue
        for dim, size in zip(port.shape, feed.shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                symbols[dim.value] = size
    known = [_bytes(v, symbols) for v in values]
    largest = max([size for size in known if size is not None] + [x.nbytes for x in feeds.values()], default=0)
    return [largest if size is None else size for size in known]


def groups(sizes: Sequence[int], limit: int) -> list[slice]:
    """Cut a sequence into runs whose sizes stay within a limit, or hold one item."""
    out: list[slice] = []
    start, total = 0, 0
    for i, size in enumerate(sizes):
        if i > start and total + size > limit:
            out.append(slice(start, i))
            start, total = i, 0
        total += size
    return [*out, slice(start, len(sizes))]


def _bytes(value: ir.Value, symbols: Mapping[str, int]) -> int | None:
    if value.shape is None or value.dtype is None:
        return None
    dims = [d if isinstance(d, int) else symbols.get(d.value or "", -1) for d in value.shape]
    if any(d < 0 for d in dims):
        return None
    return math.ceil(math.prod(dims) * value.dtype.itemsize)
