"""Input vectors as a weight sees them, thinned out evenly; for a convolution the patches under its kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.look import attr_ints, attr_str

Array = np.ndarray[Any, Any]

ROWS = 512
"""Input vectors taken from one sample: over a few dozen samples that is enough for a few thousand inputs."""


def thinned(rows: Array) -> Array:
    """At most `ROWS` of the rows, evenly spread."""
    return rows[:: -(-len(rows) // ROWS) or 1]


def patches(x: Array, node: ir.Node, kernel: tuple[int, ...], count: int = ROWS) -> Array:
    """Input vectors [rows, channels * kernel size] of a convolution, at evenly spread output places.

    Args:
        x: One sample's input, [batch, channels, ...].
        node: The Conv.
        kernel: Sizes of the kernel.
        count: About so many places, at most.
    """
    n = len(kernel)
    strides, dilations = attr_ints(node, "strides", [1] * n), attr_ints(node, "dilations", [1] * n)
    assert strides is not None and dilations is not None
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(x.shape[2:], node, span, strides)
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    windows = np.lib.stride_tricks.sliding_window_view(x, span, axis=tuple(range(2, 2 + n)))
    places = int(np.prod([(x.shape[2 + i] - span[i]) // strides[i] + 1 for i in range(n)])) * len(x)
    thin = max(round((places / count) ** (1 / n)), 1)
    steps = tuple(slice(None, None, s * thin) for s in strides)
    inner = tuple(slice(None, None, d) for d in dilations)
    chosen = windows[(slice(None), slice(None), *steps, *inner)]
    rows = np.moveaxis(chosen, 1, 1 + n)
    return np.ascontiguousarray(rows).reshape(-1, int(np.prod(rows.shape[1 + n :])))


def _pads(dims: tuple[int, ...], node: ir.Node, span: list[int], strides: list[int]) -> list[tuple[int, int]]:
    """Padding of each spatial axis, ``auto_pad`` resolved as the Conv operator text says."""
    n = len(dims)
    auto = attr_str(node, "auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID", ""):
        pads = attr_ints(node, "pads", [0] * 2 * n) if auto != "VALID" else [0] * 2 * n
        assert pads is not None
        return [(pads[i], pads[i + n]) for i in range(n)]
    out = []
    for dim, width, stride in zip(dims, span, strides, strict=True):
        total = max((-(-dim // stride) - 1) * stride + width - dim, 0)
        small, large = total // 2, total - total // 2
        out.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return out
