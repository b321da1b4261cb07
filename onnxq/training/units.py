"""How large a parameter is, for learning rates that are shares of it.

Adam moves every parameter by about its rate in each step. Layers, and channels within one, differ by decades
(depthwise kernels, folded normalizations): at one absolute rate some diverge while others stand still.
"""

from __future__ import annotations

import numpy as np

from onnxq.look import Array
from onnxq.numerics.spec import Blocked, Granularity, PerTensor
from onnxq.numerics.tiles import resolved_axis, spread


def unit(values: Array, granularity: Granularity | None = None) -> Array:
    """Root mean square of the values that share a scale.

    Args:
        values: A parameter, float32.
        granularity: Which values share one; all by default.

    Returns:
        float32, broadcasts over ``values``. Where values that share a scale are all zero: that of all values, or 1.
    """
    whole = np.float32(_rms(values, None) or 1.0)
    if granularity is None or isinstance(granularity, PerTensor):
        return np.asarray(whole)
    axis = resolved_axis(granularity, values.ndim)
    assert axis is not None
    if isinstance(granularity, Blocked):
        starts = np.arange(0, values.shape[axis], granularity.size)
        sums = np.add.reduceat(np.square(values, dtype=np.float64), starts, axis)
        counts = np.diff([*starts, values.shape[axis]]).reshape(-1, *(1,) * (values.ndim - axis - 1))
        found = spread(np.sqrt(sums / counts), granularity, values.shape)
    else:
        others = tuple(i for i in range(values.ndim) if i != axis)
        found = _rms(values, others)
    return np.where(found > 0, found, whole).astype(np.float32)


def _rms(values: Array, axes: tuple[int, ...] | None) -> Array:
    return np.asarray(np.sqrt(np.square(values, dtype=np.float64).mean(axes, keepdims=axes is not None)))
