"""Walk a tensor and its parameters in tiles that fit a core's cache and in which the parameters broadcast.

Per-tensor, per-axis and blocked granularity (also with a short last block) become one code path, and temporaries stay
at half a megabyte whatever the size of the tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onnxq.errors import OptionError
from onnxq.numerics.spec import Blocked, Granularity, PerAxis, PerTensor

Array = np.ndarray[Any, np.dtype[Any]]

TILE = 1 << 17
"""Elements of a tile: 512 kB of float32; of 16 k ... 1 M the fastest with 1 MB of L2 (400 MB quantized in 0.13 s)."""


_STRIP = 256


def resolved_axis(granularity: Granularity, rank: int) -> int | None:
    """The axis as a non-negative number, None per tensor.

    Raises:
        OptionError: The axis is not resolved yet, or outside the rank, or the block size is not positive.
    """
    if isinstance(granularity, PerTensor):
        return None
    axis = granularity.axis
    if axis is None:
        raise OptionError(f"the axis of {granularity} is not resolved: run 'resolve-axes' first")
    if not -rank <= axis < rank:
        raise OptionError(f"axis {axis} of {granularity} is outside a tensor of rank {rank}")
    if isinstance(granularity, Blocked) and granularity.size < 1:
        raise OptionError(f"a block holds at least one value, got {granularity}")
    return axis % rank


def scale_shape(shape: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """Shape of scale and zero point for data of ``shape``: [] per tensor, [C] per axis, data rank when blocked.

    Raises:
        OptionError: The granularity does not fit the shape.
    """
    axis = resolved_axis(granularity, len(shape))
    if axis is None:
        return ()
    if isinstance(granularity, Blocked):
        return (*shape[:axis], -(-shape[axis] // granularity.size), *shape[axis + 1 :])
    return (shape[axis],)


def spread(p: Array, granularity: Granularity, shape: tuple[int, ...]) -> Array:
    """A parameter repeated for each value of data of ``shape``; a view of the parameter unless blocked."""
    axis = resolved_axis(granularity, len(shape))
    if axis is None:
        return np.broadcast_to(p.reshape(()), shape)
    if isinstance(granularity, Blocked):
        return np.repeat(p, granularity.size, axis)[(slice(None),) * axis + (slice(shape[axis]),)]
    return np.broadcast_to(p.reshape(-1, *(1,) * (len(shape) - axis - 1)), shape)


def in_c_order(x: Array) -> Array:
    """An array as it is if it is C-contiguous, else copied in strips of the last axis.

    A transposed matrix takes a third of the time of one go, since its columns stay in the cache (576 x 49152 float32:
    0.07 s).
    """
    if x.flags.c_contiguous:
        return x
    out = np.empty(x.shape, x.dtype)
    for start in range(0, x.shape[-1], _STRIP):
        out[..., start : start + _STRIP] = x[..., start : start + _STRIP]
    return out


def walk(
    granularity: Granularity, data: Sequence[Array], params: Sequence[Array] = (), *, limit: int = TILE
) -> Iterator[tuple[Array, ...]]:
    """Matching views of each array, tile by tile: first the data, then the parameters.

    Args:
        granularity: How the parameters relate to the data; its axis is resolved.
        data: Arrays of one shape. C-contiguous ones give views, so that results can be written through them.
        params: Arrays of the shape `scale_shape` tells (a per-tensor one may also have shape [1]).
        limit: Elements of a tile, at most (a tile holds at least one row of the last axis).

    Raises:
        OptionError: Granularity, data and parameters do not fit.
    """
    shape = data[0].shape
    expected = scale_shape(shape, granularity)
    for p in params:
        if p.shape != expected and not (expected == () and p.shape == (1,)):
            raise OptionError(f"{granularity} data of shape {shape} needs scales of shape {expected}, got {p.shape}")
    if data[0].size == 0:
        return
    for data_views, param_views in _parts(granularity, data, params):
        if data_views[0].size <= limit:
            yield (*data_views, *param_views)
            continue
        for tile in _tiles(data_views[0].shape, limit):
            yield (*(d[tile] for d in data_views), *(p[_broadcast(tile, p.shape)] for p in param_views))


def reduce_to(ufunc: np.ufunc, x: Array, shape: tuple[int, ...]) -> Array:
    """Reduce a tile to ``shape`` (1 where it reduces, else the tile's own size), short runs as fast as long ones.

    NumPy pays about 100 ns for each run it reduces: 9 values of a depthwise kernel or 32 of a block cost 3 to 7 ns a
    value. Folding neighbours together (even runs) and taking strided columns (short odd ones) cost 0.4 ns; a product
    with ones, for sums, less.
    """
    kept = x.ndim
    while kept and shape[kept - 1] == 1:
        kept -= 1
    lead, run = x.shape[:kept], math.prod(x.shape[kept:])
    out: Array = x.reshape(*lead, run)
    if ufunc is np.add and x.dtype.kind == "f":
        out = out @ np.ones(run, x.dtype)
    else:
        out = _reduce_runs(ufunc, out)
    rest = tuple(i for i in range(kept) if shape[i] == 1 and x.shape[i] > 1)
    if rest:
        out = ufunc.reduce(out, axis=rest, keepdims=True)
    return np.asarray(out).reshape(*out.shape, *(1,) * (x.ndim - kept))


def _reduce_runs(ufunc: np.ufunc, x: Array) -> Array:
    """Reduce the last axis."""
    run = x.shape[-1]
    if run == 1:
        return np.asarray(x[..., 0])
    if run > 512:
        return np.asarray(ufunc.reduce(x, axis=-1))
    flat: Array = x.reshape(-1)
    while run % 2 == 0:
        flat = ufunc(flat[0::2], flat[1::2])
        run //= 2
    rows = flat.reshape(-1, run)
    if run > 64:
        return np.asarray(ufunc.reduce(rows, axis=1)).reshape(x.shape[:-1])
    out: Array = rows[:, 0].copy()
    for i in range(1, run):
        ufunc(out, rows[:, i], out=out)
    return out.reshape(x.shape[:-1])


def _parts(
    granularity: Granularity, data: Sequence[Array], params: Sequence[Array]
) -> Iterator[tuple[list[Array], list[Array]]]:
    """Reshape so that parameters broadcast (1 where one serves many values); a short last block is its own part."""
    shape = data[0].shape
    axis = resolved_axis(granularity, len(shape))
    if axis is None:
        yield [d.reshape(-1) for d in data], [p.reshape(1) for p in params]
        return
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    data = [d.reshape(outer, length, inner) for d in data]
    if isinstance(granularity, PerAxis):
        yield list(data), [p.reshape(1, length, 1) for p in params]
        return
    assert isinstance(granularity, Blocked)
    size, (full, rest) = granularity.size, divmod(length, granularity.size)
    params = [p.reshape(outer, -1, 1, inner) for p in params]
    if full:
        yield (
            [d[:, : full * size].reshape(outer, full, size, inner) for d in data],
            [p[:, :full] for p in params],
        )
    if rest:
        yield [d[:, full * size :].reshape(outer, 1, rest, inner) for d in data], [p[:, full:] for p in params]


def _tiles(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut along the outermost axis below which the rest fits into the limit."""
    cut = 0
    while cut + 1 < len(shape) and math.prod(shape[cut + 1 :]) > limit:
        cut += 1
    step = max(1, limit // math.prod(shape[cut + 1 :]))
    for head in itertools.product(*(range(n) for n in shape[:cut])):
        for start in range(0, shape[cut], step):
            yield (*(slice(i, i + 1) for i in head), slice(start, start + step))


def _broadcast(tile: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None) if n == 1 else s for s, n in zip(tile, shape, strict=False))
