"""Rounding one weight by GPTQ: from the moments of its inputs to integers in its layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onnxq.calibration.moments import Moments
from onnxq.facts import Edge
from onnxq.numerics.affine import quantize
from onnxq.numerics.encodings import WeightMethod, from_values
from onnxq.numerics.gptq import Array, Curvature, gptq, row_errors
from onnxq.numerics.spec import Encoding
from onnxq.numerics.tiles import spread
from onnxq.products import Product
from onnxq.weights import weight_tensor


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
    def work(self) -> float:
        """Operations of factorization, rounding, and measuring the error before and after."""
        first = self.products[0]
        groups = first.groups if first.apart else 1
        return groups * first.inputs**3 * 1.5 + float(np.prod(first.dims)) * first.inputs * 6.0

    def rescaled(self, moments: Moments, method: WeightMethod) -> SharedWeight:
        """With scales that weigh each value's error by the energy of its input."""
        product, spec = self.products[0], self.encoding.spec
        energy = np.einsum("gii->gi", moments.hessian)[:, None, :].astype(np.float32)
        weight = _weight(self.edge)
        shape = product.matrix(weight).shape
        importance = product.layout(np.broadcast_to(energy / max(energy.max(), 1e-30), shape))
        found = from_values(weight, spec, method=method, dtype=self.encoding.scale.dtype, importance=importance)
        return replace(self, encoding=replace(found, dead=self.encoding.dead))

    def round(self, moments: Moments, curvature: Curvature) -> tuple[Encoding, float]:
        """The encoding with integers, and its output error as a share of that of rounding to nearest.

        Each row keeps the better of the two, so that the share is never above 1.
        """
        product, weight = self.products[0], _weight(self.edge)
        w = product.matrix(weight)
        scale, zero = (product.parameter(p, self.encoding) for p in (self.encoding.scale, self.encoding.zero_point))
        chosen = gptq(w, curvature, scale, zero, self.encoding.spec.qtype)
        nearest = product.matrix(quantize(weight, self.encoding))
        errors = [row_errors(w, (q.astype(np.float32) - zero) * scale, moments.hessian) for q in (nearest, chosen)]
        integers = np.where((errors[1] < errors[0])[..., None], chosen, nearest)
        before, after = float(errors[0].sum()), float(np.minimum(*errors).sum())
        return replace(self.encoding, integers=product.layout(integers)), after / before if before > 0 else 1.0


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
