"""Gradients of Conv and ConvTranspose: any group, stride, dilation, pad and rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import onnx

from onnxq.training.rules import Tape, attributes, rule
from onnxq.training.rules_blocked import depthwise, fits


@dataclass(frozen=True)
class Geometry:
    """Spatial attributes with every default and ``auto_pad`` resolved; one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    group: int

    @property
    def pads(self) -> list[int]:
        """All begins, then all ends."""
        return [*self.begin, *self.end]

    @property
    def pointwise(self) -> bool:
        """Whether every output position reads exactly one input position, and none reads a pad."""
        return set(self.kernel) == {1} and not any(self.pads)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a Conv of this geometry."""
        return {"strides": self.strides, "dilations": self.dilations, "pads": self.pads, "group": self.group}


def _geometry(tape: Tape, node: onnx.NodeProto, small: tuple[int, ...], large: tuple[int, ...]) -> Geometry:
    """Geometry of the convolution that maps the ``large`` spatial shape to the ``small`` one.

    That is a Conv's own direction; for a ConvTranspose the input is the small side and the output the large one.
    """
    found = attributes(node)
    kernel = tape.shape(node.input[1])[2:]
    n = len(kernel)
    strides = tuple(found.get("strides", [1] * n))
    dilations = tuple(found.get("dilations", [1] * n))
    pads = list(found.get("pads", [0] * 2 * n))
    auto = found.get("auto_pad", "NOTSET")
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose" and ("output_shape" in found or auto.startswith("SAME")):
        extra = found.get("output_padding", [0] * n)
        totals = [
            max(0, s * (i - 1) + p + e - o) for s, i, p, e, o in zip(strides, small, extra, extents, large, strict=True)
        ]
        pads = split_pads(totals, auto == "SAME_UPPER")
    elif auto.startswith("SAME"):
        totals = [max(0, (ceil(o / s) - 1) * s + e - o) for s, e, o in zip(strides, extents, large, strict=True)]
        pads = split_pads(totals, auto == "SAME_UPPER")
    elif auto == "VALID":
        pads = [0] * 2 * n
    return Geometry(kernel, strides, dilations, tuple(pads[:n]), tuple(pads[n:]), found.get("group", 1))


def split_pads(totals: Sequence[int], more_at_end: bool) -> list[int]:
    """``pads`` of which the two ends of each axis differ by one at most."""
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return [*less, *more] if more_at_end else [*more, *less]


@rule("Conv")
def conv(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Input: the transposed convolution. Weight: `_correlate`. Bias: the sum over batch and space."""
    x, w, y = node.input[0], node.input[1], node.output[0]
    shape, out = tape.shape(x), tape.shape(y)
    geometry = _geometry(tape, node, out[2:], shape[2:])
    return [
        transposed(tape, gradient, out[2:], w, geometry, shape[2:]) if wanted[0] else None,
        _correlate(tape, x, shape, gradient, out, geometry) if wanted[1] else None,
        *_bias(tape, node, gradient, wanted),
    ]


@rule("ConvTranspose")
def conv_transpose(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Input: the convolution with the same weight. Weight: `_correlate` with input and gradient exchanged."""
    x, w, y = node.input[0], node.input[1], node.output[0]
    shape, out = tape.shape(x), tape.shape(y)
    geometry = _geometry(tape, node, shape[2:], out[2:])
    return [
        _convolved(tape, gradient, out, w, shape, geometry) if wanted[0] else None,
        _correlate(tape, gradient, out, x, shape, geometry) if wanted[1] else None,
        *_bias(tape, node, gradient, wanted),
    ]


def _bias(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    if len(node.input) < 3:
        return []
    rank = len(tape.shape(node.output[0]))
    return [tape.sum(gradient, [0, *range(2, rank)]) if wanted[2] else None]


def _read(
    tape: Tape, value: str, large: tuple[int, ...], small: tuple[int, ...], g: Geometry
) -> tuple[str, tuple[int, ...], Geometry]:
    """The ``large`` side without the end that no window reads, its shape, and end pads for just the ``small`` one."""
    ends = [
        (o - 1) * s + (k - 1) * d + 1 - i - b
        for o, s, k, d, i, b in zip(small[2:], g.strides, g.kernel, g.dilations, large[2:], g.begin, strict=True)
    ]
    if min(ends) < 0:  # Conv has no negative pads
        axes = range(2, len(large))
        large = (*large[:2], *(i + min(e, 0) for i, e in zip(large[2:], ends, strict=True)))
        value = tape.op("Slice", value, tape.ints([0] * len(axes)), tape.ints(large[2:]), tape.ints(axes))
    return value, large, replace(g, end=tuple(max(e, 0) for e in ends))


def _convolved(tape: Tape, value: str, large: tuple[int, ...], w: str, small: tuple[int, ...], g: Geometry) -> str:
    """The convolution of the ``large`` side whose result has the ``small`` shape."""
    value, _, fitted = _read(tape, value, large, small, g)
    return tape.op("Conv", value, w, **fitted.attributes)


def transposed(tape: Tape, gradient: str, small: tuple[int, ...], w: str, g: Geometry, large: tuple[int, ...]) -> str:
    """The gradient brought back to the ``large`` side: ConvTranspose with the same weight and attributes.

    Measured two to four times as fast where they apply: a Conv with the weight's channels exchanged (1x1) or its taps
    in reverse (depthwise, stride 1).
    """
    axes = range(2, 2 + len(g.kernel))
    weight = tape.shape(w)
    if g.pointwise and g.group == 1 and set(g.strides) == {1}:
        return tape.op("Conv", gradient, tape.transpose(w, [1, 0, *axes]))
    around = [[(k - 1) * d - p for k, d, p in zip(g.kernel, g.dilations, end, strict=True)] for end in (g.begin, g.end)]
    if weight[0] == g.group and weight[1] == 1 and set(g.strides) == {1} and min(map(min, around)) >= 0:
        back = tape.ints([-1] * len(g.kernel))
        flipped = tape.op("Slice", w, back, tape.ints([-(2**31)] * len(g.kernel)), tape.ints(axes), back)
        attributes: dict[str, Any] = {"pads": around[0] + around[1], "dilations": g.dilations}
        if fits(g.group, g.kernel):
            flipped = tape.reshape(flipped, [1, g.group, *g.kernel])
            return depthwise(tape, gradient, flipped, g.kernel, g.group, strides=g.strides, **attributes)
        return tape.op("Conv", gradient, flipped, group=g.group, **attributes)
    reached = [
        (o - 1) * s + (k - 1) * d + 1 - b - e
        for o, s, k, d, b, e in zip(small, g.strides, g.kernel, g.dilations, g.begin, g.end, strict=True)
    ]
    # Rows at the end that no window reads have gradient zero: that is what output_padding appends.
    missing = [i - r for i, r in zip(large, reached, strict=True)]
    return tape.op("ConvTranspose", gradient, w, output_padding=missing, **g.attributes)


def _correlate(tape: Tape, x: str, large: tuple[int, ...], gradient: str, small: tuple[int, ...], g: Geometry) -> str:
    """Weight gradient ``dW[o, i, k] = Σ_n Σ_p gradient[n, o, p] · x[n, i, p·stride + k·dilation - pad]``.

    1x1: one product a sample. Depthwise: each channel of each sample is a group of its own. Else one Conv whose batch
    is the channels within a group and whose channels are groups times batch. In the two Convs strides and dilations
    change places, and end pads are such that nothing behind the kernel is computed.
    """
    if g.pointwise and g.group == 1:
        return _products(tape, x, large, gradient, small, g)
    n, groups, inner, outer = large[0], g.group, large[1] // g.group, small[1]
    axes = range(2, 2 + len(g.kernel))
    x, large, fitted = _read(tape, x, large, small, g)
    swapped: dict[str, Any] = {"strides": g.dilations, "dilations": g.strides, "pads": fitted.pads}
    if inner == 1:
        data = tape.reshape(x, [1, n * groups, *large[2:]])
        if outer == groups and fits(n * groups, g.kernel):
            filters = tape.reshape(gradient, [1, n * outer, *small[2:]])
            product = depthwise(tape, data, filters, small[2:], n * groups, **swapped)
        else:
            filters = tape.reshape(gradient, [n * outer, 1, *small[2:]])
            product = tape.op("Conv", data, filters, group=n * groups, **swapped)
        return tape.sum(tape.reshape(product, [n, outer, 1, *g.kernel]), [0])
    data = tape.reshape(x, [n, groups, inner, *large[2:]])
    data = tape.transpose(data, [2, 1, 0, *(a + 1 for a in axes)])
    data = tape.reshape(data, [inner, groups * n, *large[2:]])
    filters = tape.transpose(gradient, [1, 0, *axes])
    product = tape.op("Conv", data, filters, group=groups, **swapped)  # [inner, outer, kernel...]
    return tape.transpose(product, [1, 0, *axes])


def _products(tape: Tape, x: str, large: tuple[int, ...], gradient: str, small: tuple[int, ...], g: Geometry) -> str:
    """Weight gradient of a 1x1 convolution: ``Σ_n gradient[n] · x[n]ᵀ`` over the positions that are read."""
    if any(s > 1 for s in g.strides):
        axes = range(2, 2 + len(g.kernel))
        x = tape.op("Slice", x, tape.ints([0] * len(axes)), tape.ints(large[2:]), tape.ints(axes), tape.ints(g.strides))
    positions = prod(small[2:])
    data = tape.transpose(tape.reshape(x, [large[0], large[1], positions]), [0, 2, 1])
    product = tape.op("MatMul", tape.reshape(gradient, [small[0], small[1], positions]), data)
    return tape.reshape(tape.sum(product, [0]), [small[1], large[1], *g.kernel])
