"""How alike two streams of arrays are: cosine, signal to noise, largest error, same answer; one sample in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 17  # values turned into float64 at a time: fits a core's cache


@dataclass(frozen=True)
class Agreement:
    """What `Similarity` has seen.

    Attributes:
        samples: Pairs of arrays.
        values: Values in all of them.
        equal: Share of values that are exactly equal.
        broken: Values that are finite, or there at all, in only one of the two (different shapes count whole).
        left_out: Values that are the same infinity or NaN in both; the numbers below are over all others.
        cosine: Cosine over all finite values together; None for integers, booleans and strings.
        worst_cosine: Smallest cosine of a single sample.
        worst_sample: Index of that sample.
        sqnr_db: 10 log10(sum ref^2 / sum (ref - other)^2), in dB; None when there is no error at all.
        max_abs_error: Largest absolute difference, in the values' units.
        top1: Share of positions with the same arg max along the class axis; None where there is no such axis.
    """

    samples: int
    values: int
    equal: float
    broken: int
    left_out: int = 0
    cosine: float | None = None
    worst_cosine: float | None = None
    worst_sample: int | None = None
    sqnr_db: float | None = None
    max_abs_error: float | None = None
    top1: float | None = None


class Similarity:
    """Sums in float64 over pairs (reference, other) of one output; memory does not grow with the number of samples."""

    def __init__(self) -> None:
        self.samples = self.values = self.equal = self.broken = self.left_out = 0
        self.continuous = False
        self.dot = self.ref2 = self.other2 = self.noise = self.worst_error = 0.0
        self.same_answer = self.answers = 0
        self.worst: tuple[float, int] | None = None

    def add(self, reference: Array, other: Array) -> None:
        """Take one more pair of arrays; any shape, also different from the pair before."""
        index, self.samples = self.samples, self.samples + 1
        self.values += reference.size
        if reference.shape != other.shape:
            self.broken += max(reference.size, other.size)
            return
        if reference.dtype.kind in "iubOSU":
            self.equal += int(np.count_nonzero(reference == other))
            return
        self.continuous = True
        axis = class_axis(reference.shape)
        if axis is not None:
            same = np.argmax(reference, axis) == np.argmax(other, axis)
            self.same_answer += int(np.count_nonzero(same))
            self.answers += same.size
        dot, ref2, other2 = self._sums(reference.reshape(-1), other.reshape(-1))
        self.dot, self.ref2, self.other2 = self.dot + dot, self.ref2 + ref2, self.other2 + other2
        one = cosine(dot, ref2, other2)
        if self.worst is None or one < self.worst[0]:
            self.worst = (one, index)

    def _sums(self, reference: Array, other: Array) -> tuple[float, float, float]:
        dot = ref2 = other2 = 0.0
        for start in range(0, reference.size, _CHUNK):
            a = reference[start : start + _CHUNK].astype(np.float64)
            b = other[start : start + _CHUNK].astype(np.float64)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            self.equal += int(np.count_nonzero(same))
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                self.broken += int(np.count_nonzero(~finite & ~same))
                self.left_out += int(np.count_nonzero(~finite & same))
                a, b = a[finite], b[finite]
            error = a - b
            self.noise += _dot(error, error)
            self.worst_error = max(self.worst_error, float(error.max(initial=0.0)), -float(error.min(initial=0.0)))
            dot, ref2, other2 = dot + _dot(a, b), ref2 + _dot(a, a), other2 + _dot(b, b)
        return dot, ref2, other2

    def result(self) -> Agreement:
        """The agreement over everything added so far."""
        equal = self.equal / self.values if self.values else 1.0
        if not self.continuous:
            return Agreement(self.samples, self.values, equal, self.broken)
        worst_cosine, worst_sample = self.worst if self.worst else (None, None)
        return Agreement(
            self.samples,
            self.values,
            equal,
            self.broken,
            self.left_out,
            cosine(self.dot, self.ref2, self.other2),
            worst_cosine,
            worst_sample,
            sqnr_db(self.ref2, self.noise),
            self.worst_error,
            self.same_answer / self.answers if self.answers else None,
        )


def _dot(a: Array, b: Array) -> float:
    """Sum of products in one thread: BLAS takes several for it, which wait for onnxruntime's (0.05 against 8 ms)."""
    return float(np.einsum("i,i->", a, b))


def cosine(dot: float, ref2: float, other2: float) -> float:
    """Cosine from a dot product and two squared norms; two zero vectors agree (1), one zero vector does not (0)."""
    if dot == ref2 == other2:  # identical, also both zero: no rounding
        return 1.0
    if ref2 == 0.0 or other2 == 0.0:
        return 0.0
    return max(-1.0, min(1.0, dot / (math.sqrt(ref2) * math.sqrt(other2))))


def sqnr_db(signal: float, noise: float) -> float | None:
    """Signal to quantization noise in dB from two energies; None without noise, very negative without signal."""
    if noise == 0.0:
        return None
    return 10.0 * (math.log10(max(signal, 1e-300)) - math.log10(noise))


def class_axis(shape: tuple[int, ...]) -> int | None:
    """Axis along which an arg max is an answer: the last up to rank 3, the channel axis of maps, or None."""
    axis = 1 if len(shape) >= 4 else len(shape) - 1
    return axis if axis >= 0 and shape[axis] >= 2 and math.prod(shape) > 0 else None
