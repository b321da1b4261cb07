"""GPTQ: round the weights of a layer one input at a time, and let the inputs still to come make up for the error.

For a layer ``y = W x`` the squared output error of rounded weights Q is ``(W - Q) H (W - Q)^T``, ``H = sum x x^T``.
Rounding column j leaves an error that the later columns can cancel best by ``-e_j R[j, j+1:] / R[j, j]``, where R is
the upper triangular factor with ``H^-1 = R^T R`` (Frantar et al., "GPTQ: Accurate Post-Training Quantization for
Generative Pre-trained Transformers", 2022, after Hassibi's optimal brain surgeon).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxq.numerics.spec import QType

Array = np.ndarray[Any, Any]

DAMPING = 0.01
BLOCK = 64


def gptq(
    weight: Array, hessian: Array, scale: Array, zero_point: Array, qtype: QType, *, damping: float = DAMPING
) -> Array:
    """Integers of a weight that keep the layer's output.

    Args:
        weight: [groups, rows, inputs]; the output channels of each group are its rows.
        hessian: [groups, inputs, inputs], the sum of ``x x^T`` over the samples.
        scale: [groups, rows, 1] or broadcastable to it.
        zero_point: The same.
        qtype: Type of the integers.
        damping: Share of the mean of the diagonal that is added to it.

    Returns:
        Integers in ``qtype.carrier``, of the shape of ``weight``.
    """
    w = weight.astype(np.float32)
    scale = np.broadcast_to(scale.astype(np.float32), (*w.shape[:2], 1))[..., 0]
    zero = np.broadcast_to(zero_point.astype(np.float32), (*w.shape[:2], 1))[..., 0]
    factor = _factor(hessian, damping)
    out = np.empty(w.shape, qtype.carrier)
    inputs = w.shape[2]
    for start in range(0, inputs, BLOCK):
        stop = min(start + BLOCK, inputs)
        errors = np.zeros((*w.shape[:2], stop - start), np.float32)
        for j in range(start, stop):
            q = np.clip(np.rint(w[..., j] / scale) + zero, qtype.qmin, qtype.qmax)
            out[..., j] = q
            error = (w[..., j] - (q - zero) * scale) / factor[:, j, j, None]
            w[..., j + 1 : stop] -= error[..., None] * factor[:, None, j, j + 1 : stop]
            errors[..., j - start] = error
        w[..., stop:] -= errors @ factor[:, start:stop, stop:]
    return out


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
    inverse = np.linalg.solve(lower, np.broadcast_to(np.eye(h.shape[-1], dtype=lower.dtype), h.shape))
    return np.ascontiguousarray(inverse[:, ::-1, ::-1], dtype=np.float32)


def relative_error(weight: Array, rounded: Array, hessian: Array) -> float:
    """Share of the layer's output energy that is lost: ``tr(D H D^T) / tr(W H W^T)`` with ``D = weight - rounded``."""
    w = weight.astype(np.float64)
    d = w - rounded
    lost, whole = float(np.vdot(d @ hessian, d)), float(np.vdot(w @ hessian, w))
    return lost / whole if whole > 0 else 0.0
