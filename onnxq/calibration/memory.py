"""How much memory the values of one sample take, told before they are computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.skeleton import Skeleton

Array = np.ndarray[Any, np.dtype[Any]]


def estimate(model: ir.Model, values: Sequence[ir.Value], feeds: Mapping[str, Array]) -> list[int]:
    """Bytes of each value for one sample, from shapes inferred for that sample's input shapes.

    Args:
        model: Any model; stays as it is.
        values: Node outputs of its main graph.
        feeds: The sample, by input name.

    Returns:
        One number a value; one of unknown size counts as much as the largest known one.
    """
    known = [_bytes(v.dtype, v.shape) for v in values]
    if None in known:
        inferred = _inferred(model, feeds)
        known = [
            _bytes(*inferred.get(v, (None, None))) if size is None else size
            for v, size in zip(values, known, strict=True)
        ]
    largest = max([size for size in known if size is not None] + [x.nbytes for x in feeds.values()], default=0)
    return [largest if size is None else size for size in known]


def inferred_dims(model: ir.Model, feeds: Mapping[str, Array]) -> dict[ir.Value, tuple[int | None, ...]]:
    """Known shapes of the main graph's node outputs when the inputs have the shapes of ``feeds``."""
    return {value: dims for value, (_, dims) in _inferred(model, feeds).items() if dims is not None}


def _inferred(
    model: ir.Model, feeds: Mapping[str, Array]
) -> dict[ir.Value, tuple[ir.DataType, tuple[int | None, ...] | None]]:
    """Type and shape of the node outputs of the main graph when the inputs have the shapes of ``feeds``."""
    copy = model.clone()
    for port in copy.graph.inputs:
        feed = feeds.get(port.name or "")
        if feed is not None:
            port.shape = ir.Shape(feed.shape)
    try:
        found = Skeleton(copy).infer()
    except Exception:  # errors of onnx and of C++; without inference the estimate is coarser, that is all
        return {}
    out: dict[ir.Value, tuple[ir.DataType, tuple[int | None, ...] | None]] = {}
    for node, twin in zip(model.graph, copy.graph, strict=True):
        for value, other in zip(node.outputs, twin.outputs, strict=True):
            if other in found and found[other].HasField("tensor_type"):
                tensor = found[other].tensor_type
                dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
                out[value] = ir.DataType(tensor.elem_type), dims if tensor.HasField("shape") else None
    return out


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


def _bytes(dtype: ir.DataType | None, shape: Iterable[Any] | None) -> int | None:
    dims = None if shape is None else list(shape)
    if dtype is None or dims is None or not all(isinstance(d, int) and d >= 0 for d in dims):
        return None
    return int(math.prod(dims) * dtype.itemsize)
