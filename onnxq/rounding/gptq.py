"""Rounding one weight by GPTQ: from the moments of its inputs to integers in its layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as product_of
from typing import Literal, get_args

import numpy as np

from onnxq.facts import Edge
from onnxq.numerics.affine import quantize
from onnxq.numerics.encodings import from_values
from onnxq.numerics.gptq import Array, Curvature, Order, gptq, row_errors
from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import spread
from onnxq.rounding.products import Product
from onnxq.weights import weight_tensor

Scales = Literal["keep", "search", "mse", "hqq"]

FACTORS = np.linspace(1.0, 0.46, 10)
"""Factors on the scale of the whole range that a search tries, each with integers of its own."""

SMALL, FINE = 64, np.linspace(1.0, 0.42, 30)
"""Up to so many inputs these are tried, in both orders: rounding is cheap there, and luck plays a part: 0.5 dB, 2 dB in
the first depthwise layer of EfficientNet-Lite0."""


@dataclass(frozen=True, eq=False)
class SharedWeight:
    """One weight encoding and the uses that share it.

    Attributes:
        products: What each use in the main graph multiplies with.
        encoding: Their encoding.
    """

    products: tuple[Product, ...]
    encoding: Encoding

    @property
    def edge(self) -> Edge:
        """The first use."""
        return self.products[0].edge

    @property
    def matrix(self) -> Array:
        """The float weight as [groups, rows, inputs]."""
        return self.products[0].matrix(_weight(self.edge))

    def searches(self, scales: Scales) -> bool:
        """Whether the scale of each row is found by trying: there is one for each row, and ``scales`` says so."""
        rows = int(np.prod(self.products[0].dims)) // max(self.products[0].inputs, 1)
        return scales == "search" and self.encoding.scale.size == rows

    def work(self, scales: Scales) -> float:
        """Operations of factorization, rounding, and measuring the error before and after."""
        first = self.products[0]
        groups = first.groups if first.apart else 1
        times = 2.0 + 4.0 * ((2 * len(FINE) if first.inputs <= SMALL else len(FACTORS)) if self.searches(scales) else 1)
        return groups * first.inputs**3 * 1.5 + float(np.prod(first.dims)) * first.inputs * times

    def round(
        self, hessian: Array, curvature: Curvature, scales: Scales, goal: Array | None = None
    ) -> tuple[Encoding, float]:
        """The encoding with integers, and its output error as a share of that of rounding to nearest.

        Each row keeps the better of the two, so that the share is never above 1.

        Args:
            hessian: ``sum x x^T`` of the inputs.
            curvature: The same, factorized.
            scales: Keep them, search one for each row, or choose them by a method of `from_values` with errors weighted
                by the energy of the inputs; the last is what ``search`` does where several values of a row have scales.
            goal: What to round, [groups, rows, inputs]; the weight itself by default.
        """
        product, encoding = self.products[0], self.encoding
        w = self.matrix if goal is None else goal
        nearest = quantize(product.layout(w), encoding)
        start = self._errors(w, nearest, encoding, hessian)
        if self.searches(scales):
            chosen, integers = self._search(w, hessian, curvature)
        else:
            chosen = (
                encoding if scales == "keep" else self._rescaled(w, hessian, "mse" if scales == "search" else scales)
            )
            integers = self._integers(w, chosen, curvature)
        least = self._errors(w, integers, chosen, hessian)
        before, after = float(start.sum()), float(least.sum())
        if np.array_equal(chosen.scale, encoding.scale) and np.array_equal(chosen.zero_point, encoding.zero_point):
            better = np.broadcast_to((least < start)[..., None], w.shape)
            chosen = replace(chosen, integers=np.where(product.layout(better), integers, nearest))
            after = float(np.minimum(start, least).sum())
        elif after > before:
            chosen, after = replace(encoding, integers=nearest), before
        else:
            chosen = replace(chosen, integers=integers)
        return replace(chosen, dead=encoding.dead), after / before if before > 0 else 1.0

    def _search(self, w: Array, hessian: Array, curvature: Curvature) -> tuple[Encoding, Array]:
        """For each row the scale with the least output error once rounded, and its integers."""
        product = self.products[0]
        dtype = self.encoding.scale.dtype
        whole = from_values(product.layout(w), self.encoding.spec, dtype=dtype)
        best, integers, least = whole, np.zeros(product.dims, whole.zero_point.dtype), np.full(w.shape[:2], np.inf)
        small = product.inputs <= SMALL
        curvatures = [Curvature.of(hessian, order=order) for order in get_args(Order)] if small else [curvature]
        for factor, tried_curvature in product_of(FINE if small else FACTORS, curvatures):
            scale = np.maximum((whole.scale * factor).astype(dtype), np.finfo(dtype).smallest_normal)
            tried = replace(whole, scale=np.asarray(scale))
            q = self._integers(w, tried, tried_curvature)
            error = self._errors(w, q, tried, hessian)
            better = error < least
            integers = np.where(product.layout(np.broadcast_to(better[..., None], w.shape)), q, integers)
            chosen = np.where(better.reshape(scale.shape), scale, best.scale)
            best, least = replace(best, scale=np.asarray(chosen)), np.minimum(error, least)
        fitted = replace(best, scale=self._fitted(w, integers, best, hessian))
        better = self._errors(w, integers, fitted, hessian) < least
        scale = np.where(better.reshape(best.scale.shape), fitted.scale, best.scale)
        return replace(best, scale=np.asarray(scale)), integers

    def _fitted(self, w: Array, integers: Array, encoding: Encoding, hessian: Array) -> Array:
        """For each row the scale ``w H q / q H q``: the least squares fit of the output to its integers."""
        product = self.products[0]
        q = product.matrix(integers).astype(np.float32) - product.parameter(encoding.zero_point, encoding)
        moved = q @ hessian.astype(np.float32)
        above, below = np.einsum("grk,grk->gr", moved, w), np.einsum("grk,grk->gr", moved, q)
        scale = encoding.scale.astype(np.float64).reshape(above.shape)
        found = np.where(below > 0, above / np.where(below > 0, below, 1), scale)
        sane = (found > scale / 2) & (found < scale * 2) & (found >= np.finfo(encoding.scale.dtype).smallest_normal)
        return np.where(sane, found, scale).reshape(encoding.scale.shape).astype(encoding.scale.dtype)

    def _rescaled(self, w: Array, hessian: Array, method: Literal["mse", "hqq"]) -> Encoding:
        """With scales that weigh each value's error by the energy of its input."""
        product = self.products[0]
        energy = np.einsum("gii->gi", hessian)[:, None, :]
        importance = product.layout(np.broadcast_to((energy / max(energy.max(), 1e-300)).astype(np.float32), w.shape))
        spec, dtype = self.encoding.spec, self.encoding.scale.dtype
        return from_values(product.layout(w), spec, method=method, dtype=dtype, importance=importance)

    def _integers(self, w: Array, encoding: Encoding, curvature: Curvature) -> Array:
        product = self.products[0]
        scale, zero = (product.parameter(p, encoding) for p in (encoding.scale, encoding.zero_point))
        return product.layout(gptq(w, curvature, scale, zero, encoding.spec.qtype))

    def _errors(self, w: Array, integers: Array, encoding: Encoding, hessian: Array) -> Array:
        product = self.products[0]
        scale, zero = (product.parameter(p, encoding) for p in (encoding.scale, encoding.zero_point))
        return row_errors(w, (product.matrix(integers).astype(np.float32) - zero) * scale, hessian)


def requantized(edge: Edge, before: Encoding, after: Encoding) -> Encoding:
    """``after`` with the integers that were chosen for ``before``; to nearest where the scale has changed since."""
    if before.integers is None or after is before:
        return after
    weight = _weight(edge)
    same = spread(np.equal(before.scale, after.scale), after.spec.granularity, weight.shape)
    return replace(after, integers=np.where(same, before.integers, quantize(weight, after)))


def _weight(edge: Edge) -> Array:
    tensor = weight_tensor(edge.value)
    assert tensor is not None
    return tensor.numpy()
