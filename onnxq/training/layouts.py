"""How scales lie over their data in a twin: broadcast where possible, without a copy the size of the data.

Data in blocks of B along an axis are cut, [.., D, ..] -> [.., D/B, B, ..], so that their scales broadcast; only where
the last block is shorter are the scales repeated.
"""

from __future__ import annotations

import numpy as np

from onnxq.numerics.spec import Blocked, Encoding, PerTensor
from onnxq.numerics.tiles import Array, spread

Dims = tuple[int, ...]


def grid(encoding: Encoding, dims: Dims) -> Dims | None:
    """The shape to cut data of shape ``dims`` into blocks; None where it stays as it is."""
    granularity = encoding.spec.granularity
    if not isinstance(granularity, Blocked) or granularity.axis is None:
        return None
    axis, size = granularity.axis, granularity.size
    if dims[axis] % size:
        return None
    return (*dims[:axis], dims[axis] // size, size, *dims[axis + 1 :])


def lying(parameter: Array, encoding: Encoding, dims: Dims) -> Array:
    """A scale or zero point in a shape that broadcasts over data of shape ``dims``, cut by `grid` if it can be."""
    granularity = encoding.spec.granularity
    if isinstance(granularity, PerTensor):
        return parameter.reshape(())
    axis = encoding.axis
    assert axis is not None
    if not isinstance(granularity, Blocked):
        return parameter.reshape(-1, *(1,) * (len(dims) - axis - 1))
    if grid(encoding, dims) is not None:
        return np.expand_dims(parameter, axis + 1)
    return np.ascontiguousarray(spread(parameter, granularity, dims))
