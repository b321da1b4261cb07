"""First and second moments of a layer's input as its weights see it, streamed."""

from __future__ import annotations

import numpy as np

from onnxq.calibration.patches import Array
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.spec import Encoding
from onnxq.rounding.products import Product


class Moments:
    """Sums over the input vectors of one product.

    Attributes:
        hessian: ``sum x x^T``, [groups or 1, inputs, inputs], float64.
        total: ``sum x``, [groups or 1, inputs], float64.
        rows: Vectors seen.
    """

    def __init__(self, product: Product, encoding: Encoding | None = None) -> None:
        """Start with no samples.

        Args:
            product: Whose inputs.
            encoding: Encoding of the inputs; given one, the moments are those of the quantized inputs.
        """
        groups = product.groups if product.apart else 1
        self._product, self._encoding = product, encoding
        self.hessian = np.zeros((groups, product.inputs, product.inputs))
        self.total = np.zeros((groups, product.inputs))
        self.rows = 0

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample of the product's source; a large one is thinned out evenly."""
        vectors = self._product.vectors(x).astype(np.float32, copy=False)
        if self._encoding is not None:
            vectors = fake_quantize(vectors, self._encoding)
        for g in range(len(self.hessian)):
            part = vectors[:, g]
            self.hessian[g] += part.T @ part
        self.total += vectors.sum(axis=0, dtype=np.float64)
        self.rows += len(vectors)

    def plus(self, other: Moments) -> Moments:
        """Those of both inputs together: a weight that two products share."""
        out = Moments(self._product)
        out.hessian, out.total = self.hessian + other.hessian, self.total + other.total
        out.rows = self.rows + other.rows
        return out


class InputMeans:
    """Means of the input vectors of one product, as the float layer sees them and as the quantized one does.

    Attributes:
        total: ``sum x``, [groups or 1, inputs], float64.
        quantized: The same of the quantized inputs.
        rows: Vectors seen.
    """

    def __init__(self, product: Product, encoding: Encoding | None = None) -> None:
        """Start with no samples; ``encoding`` is that of the inputs, None where they stay float."""
        self._product, self._encoding = product, encoding
        self.total = np.zeros((product.groups if product.apart else 1, product.inputs))
        self.quantized = self.total.copy()
        self.rows = 0

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample of the product's source; a large one is thinned out evenly."""
        vectors = self._product.vectors(x).astype(np.float32, copy=False)
        seen = vectors if self._encoding is None else fake_quantize(vectors, self._encoding)
        self.total += vectors.sum(axis=0, dtype=np.float64)
        self.quantized += seen.sum(axis=0, dtype=np.float64)
        self.rows += len(vectors)


class TwinMoments:
    """Sums over the inputs of one product in two models at once: the float one and one that is rounded so far.

    Attributes:
        hessian: ``sum z z^T`` of the inputs z in the rounded model, as quantized; [groups or 1, inputs, inputs].
        drift: ``sum (x - z) z^T``, x the inputs in the float model; what the rounded model has lost, as far as z shows.
        total: ``sum x``, [groups or 1, inputs].
        rounded: ``sum z``.
        rows: Vectors seen.
    """

    def __init__(self, product: Product, encoding: Encoding | None = None) -> None:
        """Start with no samples; ``encoding`` is that of the inputs, None where they stay float."""
        groups = product.groups if product.apart else 1
        self._product, self._encoding = product, encoding
        self.hessian, self.drift = np.zeros((2, groups, product.inputs, product.inputs))
        self.total, self.rounded = np.zeros((2, groups, product.inputs))
        self.rows = 0

    def add(self, x: Array, z: Array) -> None:
        """Take one sample's inputs in the float and in the rounded model; large ones are thinned out evenly."""
        xs, zs = (self._product.vectors(v).astype(np.float32, copy=False) for v in (x, z))
        if self._encoding is not None:
            zs = fake_quantize(zs, self._encoding)
        self.total += xs.sum(axis=0, dtype=np.float64)
        self.rounded += zs.sum(axis=0, dtype=np.float64)
        self.rows += len(zs)
        lost, right = (xs - zs).transpose(1, 2, 0), np.ascontiguousarray(zs.transpose(1, 0, 2))
        self.drift += lost @ right
        self.hessian += right.transpose(0, 2, 1) @ right
