"""Bias correction: what coarser weight scales add to a layer's mean output, taken out of its bias.

``E[y' - y] = E[sum(dw x)] = sum(dw E[x])`` for each output channel, with the mean of each input channel over samples.
At the border of a padded Conv fewer inputs count; the mean over the inside is taken everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.biases.layers import Biased
from onnxq.calibration.observers import Means
from onnxq.calibration.runner import Run
from onnxq.calibration.sources import Source
from onnxq.facts import Edge, Ranges
from onnxq.look import attr_float, attr_int, attr_ints, graph_of, onnx_op
from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context

Array = np.ndarray[Any, Any]
MeansByAxis = Mapping[int, Array]

MEMORY = 256 * 10**6
"""Bytes that the inputs of one sample may take at a time."""
SAMPLES = 64
"""Samples that means are taken over, at most."""


def input_means(
    uses: Iterable[Edge], model: ir.Model, ranges: Ranges | None, source: Source | None, ctx: Context
) -> dict[ir.Value, MeansByAxis]:
    """The means of the input channels that these uses read: what calibration kept, the rest from samples if any.

    Values in bodies, and those that are infinite by construction, have none.
    """
    found: dict[ir.Value, MeansByAxis] = dict(ranges.means) if ranges else {}
    missing: dict[ir.Value, Means] = {}
    for edge in uses:
        if edge.value not in found and graph_of(edge.value) is model.graph:
            along = partial(ops.input_channel_axis, edge.node, edge.index)
            missing.setdefault(edge.value, Means()).along(along)
    if missing and source is not None:
        source = replace(source, limit=min(SAMPLES, source.limit or SAMPLES))
        run = Run(model, source, {value: mean.add for value, mean in missing.items()}, ctx, MEMORY)
        run.go()
        found |= {value: mean.result() for value, mean in missing.items() if value not in run.infinite}
    return found


def mean_shift(biased: Biased, before: Encoding, after: Encoding, means: MeansByAxis) -> Array | None:
    """How much another encoding of the weight adds to each channel's mean output, float64, in units of the bias.

    Args:
        biased: The layer.
        before: The encoding that its weight had.
        after: The one that it has.
        means: Means of the layer's input by axis.

    Returns:
        [channels], or None where there is no mean for each input channel.
    """
    w = biased.weights()
    error = _decoded(w, after) - _decoded(w, before)
    node = biased.node
    if onnx_op(node, "Conv", "ConvTranspose"):
        kernel = error.reshape(*error.shape[:2], -1).sum(axis=2)
        x, groups = means.get(1), attr_int(node, "group", 1)
        inputs = error.shape[0] if onnx_op(node, "ConvTranspose") else error.shape[1] * groups
        if x is None or len(x) != inputs:
            return None
        x = x.reshape(groups, -1)
        if onnx_op(node, "Conv"):
            return np.asarray(np.einsum("gmc,gc->gm", kernel.reshape(groups, -1, kernel.shape[1]), x)).reshape(-1)
        # Each output value meets one tap in stride x stride of the kernel.
        taps = float(np.prod(attr_ints(node, "strides") or [1]))
        by_group = kernel.reshape(groups, -1, kernel.shape[1])
        return np.asarray(np.einsum("gcm,gc->gm", by_group, x)).reshape(-1) / taps
    axis = ops.contraction_axis(node, biased.weight.index, biased.dims)
    if axis is None:
        return None
    x = next((m for m in means.values() if len(m) == biased.dims[axis]), None)
    if x is None:
        return None
    shift = np.tensordot(error, x, axes=([axis], [0]))
    shift = shift.reshape(-1, shift.shape[-1]).mean(axis=0)
    if onnx_op(node, "Gemm"):
        shift = shift * attr_float(node, "alpha", 1.0) / (attr_float(node, "beta", 1.0) or 1.0)
    return np.asarray(shift)


def _decoded(weight: Array, encoding: Encoding) -> Array:
    integers = quantize(weight, encoding) if encoding.integers is None else encoding.integers
    return dequantize(integers, encoding, np.float64)
