"""GPTQ: round the weights of a layer one input at a time, and let the inputs still to come make up for the error.

For a layer ``y = W x`` the squared output error of rounded weights Q is ``(W - Q) H (W - Q)^T``, ``H = sum x x^T``.
Rounding column j leaves an error that the later columns can cancel best by ``-e_j R[j, j+1:] / R[j, j]``, where R is
the upper triangular factor with ``H^-1 = R^T R`` (Frantar et al., "GPTQ: Accurate Post-Training Quantization for
Generative Pre-trained Transformers", 2022, after Hassibi's optimal brain surgeon). Scales are given, so the order of
the columns is free: those with much energy come first, while most columns are left to make up for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onnxq.numerics.spec import QType

Array = np.ndarray[Any, Any]
Order = Literal["activation", "natural"]

DAMPING = 0.01
BLOCK = 64


@dataclass(frozen=True)
class Curvature:
    """What rounding needs of a Hessian; weights that see the same inputs share it.

    Attributes:
        order: [groups, inputs], the inputs in the order in which they are rounded.
        factor: [groups, inputs, inputs], float32: R with ``H^-1 = R^T R``, in that order.
    """

    order: Array
    factor: Array

    @classmethod
    def of(cls, hessian: Array, *, damping: float = DAMPING, order: Order = "activation") -> Curvature:
        """Factorize a Hessian.

        Args:
            hessian: [groups, inputs, inputs], the sum of ``x x^T`` over the samples.
            damping: Share of the mean of the diagonal that is added to it.
            order: ``activation`` takes the inputs by falling diagonal, ``natural`` as they lie.
        """
        diagonal = np.einsum("gii->gi", hessian)
        if order == "natural":
            chosen = np.broadcast_to(np.arange(hessian.shape[-1]), diagonal.shape)
            return cls(chosen, _factor(hessian, damping))
        chosen = np.argsort(-diagonal, axis=-1, kind="stable")
        groups = np.arange(len(hessian))[:, None, None]
        return cls(chosen, _factor(hessian[groups, chosen[:, :, None], chosen[:, None, :]], damping))


def gptq(weight: Array, curvature: Curvature, scale: Array, zero_point: Array, qtype: QType) -> Array:
    """Integers of a weight that keep the layer's output.

    Args:
        weight: [groups, rows, inputs]; the output channels of each group are its rows.
        curvature: Of the inputs, with as many groups or one for all.
        scale: Broadcastable to ``weight``: one for each row, each block of inputs, or any other pattern.
        zero_point: The same.
        qtype: Type of the integers.

    Returns:
        Integers in ``qtype.carrier``, of the shape of ``weight``.
    """
    order, factor = curvature.order[..., None], curvature.factor
    w = _columns(weight, weight.shape, order)
    scales, zeros = (_columns(p, weight.shape, order) for p in (scale, zero_point))
    out = np.empty(w.shape, qtype.carrier)
    inputs = w.shape[1]
    for start in range(0, inputs, BLOCK):
        stop = min(start + BLOCK, inputs)
        errors = np.empty((len(w), stop - start, w.shape[2]), np.float32)
        for j in range(start, stop):
            s, z = (p[:, min(j, p.shape[1] - 1)] for p in (scales, zeros))
            q = np.rint(w[:, j] / s) + z
            np.clip(q, qtype.qmin, qtype.qmax, out=q)
            out[:, j] = q
            error = (w[:, j] - (q - z) * s) / factor[:, j, j, None]
            w[:, j + 1 : stop] -= factor[:, j, j + 1 : stop, None] * error[:, None]
            errors[:, j - start] = error
        w[:, stop:] -= factor[:, start:stop, stop:].swapaxes(1, 2) @ errors
    back = np.empty_like(out)
    np.put_along_axis(back, np.broadcast_to(order, (len(w), inputs, 1)), out, axis=1)
    return np.ascontiguousarray(back.swapaxes(1, 2))


def _columns(p: Array, shape: tuple[int, ...], order: Array) -> Array:
    """[groups, inputs, rows] float32 in rounding order; [groups, 1, rows] where all inputs have the same."""
    full = np.broadcast_to(p, shape).swapaxes(1, 2)
    if full.strides[1] == 0:
        return full[:, :1].astype(np.float32)
    return np.take_along_axis(full.astype(np.float32), order, axis=1)


def _factor(hessian: Array, damping: float) -> Array:
    """R with ``H^-1 = R^T R``, float32, from one Cholesky factorization of H read from behind."""
    diagonal = np.einsum("gii->gi", hessian)
    mean = diagonal.mean(axis=-1, keepdims=True)
    # An input that is always zero does not matter: any positive number keeps the matrix regular.
    mean = np.where(mean > 0, mean, 1.0)
    h = (hessian / mean[..., None])[:, ::-1, ::-1]
    np.einsum("gii->gi", h)[...] += damping
    try:
        # The damping bounds the condition number, so half the digits do in nearly all cases.
        lower = np.linalg.cholesky(h.astype(np.float32))
    except np.linalg.LinAlgError:
        lower = np.linalg.cholesky(h.astype(np.float64))
    return np.ascontiguousarray(_inverse(lower)[:, ::-1, ::-1], dtype=np.float32)


def _inverse(lower: Array) -> Array:
    """Inverse of lower triangular matrices, by halves: six times less work than for any matrix."""
    n = lower.shape[-1]
    if n <= BLOCK:
        return np.linalg.inv(lower)
    half = n // 2
    out = np.zeros_like(lower)
    first, second = _inverse(lower[:, :half, :half]), _inverse(lower[:, half:, half:])
    out[:, :half, :half], out[:, half:, half:] = first, second
    out[:, half:, :half] = -second @ (lower[:, half:, :half] @ first)
    return out


def row_errors(weight: Array, rounded: Array, hessian: Array) -> Array:
    """Squared output error of each row, [groups, rows] float32, up to one factor for all.

    Args:
        weight: [groups, rows, inputs].
        rounded: The same, after rounding.
        hessian: [groups or 1, inputs, inputs].
    """
    d = (weight - rounded).astype(np.float32)
    h = (hessian / max(float(np.abs(np.einsum("gii->gi", hessian)).max()), 1e-300)).astype(np.float32)
    return np.asarray(np.maximum(np.einsum("grk,grk->gr", d @ h, d), 0))
