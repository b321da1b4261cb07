"""First and second moments of a layer's input as its weights see it, streamed."""

from __future__ import annotations

import numpy as np

from onnxq.calibration.patches import Array
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.spec import Encoding
from onnxq.products import Product


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
