"""A histogram that takes data as it comes: one pass, fixed memory, and a result that does not depend on the order.

Bins are ``[i * w, (i + 1) * w)`` with ``w`` a power of two and ``i`` any integer, so an edge lies on zero, the bin of a
value is exact in floating point, and growing the range merges whole pairs of bins. ``w`` is the smallest power of two
at which the range seen so far needs at most twice the asked number of bins: a function of the extremes alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxq.errors import OptionError

Array = np.ndarray[Any, np.dtype[Any]]

BINS = 2048
_FINEST = -120  # 2**120 is still a float32, and so is any float32 below 1 times it
_MANTISSA = 24  # bits; bins finer than the spacing of the values at the ends say nothing
_TILE = 1 << 15  # measured: with the integers of one tile in L2, binning costs 2 to 4 ns a value, np.histogram 19


class Histogram:
    """Counts of finite values in bins of equal width.

    Attributes:
        lo: Smallest value seen; ``inf`` before any.
        hi: Largest value seen; ``-inf`` before any.
        total: Number of values.
        counts: Values per bin, int64, from the bin of ``lo`` to the bin of ``hi``.
    """

    __slots__ = ("_exponent", "_first", "_limit", "counts", "hi", "lo", "total")

    def __init__(self, bins: int = BINS) -> None:
        """Start empty.

        Args:
            bins: The range takes more than this many bins and at most twice as many, once it is wider than the
                spacing of float32 allows to tell apart.

        Raises:
            OptionError: Fewer than 2 bins.
        """
        if bins < 2:
            raise OptionError(f"a histogram needs at least 2 bins, got {bins}")
        self._limit = 2 * bins
        self._exponent = _FINEST
        self._first = 0
        self.counts: Array = np.zeros(0, np.int64)
        self.lo, self.hi, self.total = math.inf, -math.inf, 0

    @property
    def width(self) -> float:
        """Width of a bin, a power of two."""
        return math.ldexp(1.0, self._exponent)

    @property
    def edges(self) -> Array:
        """The ``len(counts) + 1`` edges of the bins, float64."""
        return np.arange(self._first, self._first + len(self.counts) + 1, dtype=np.float64) * self.width

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Count values.

        Args:
            x: Finite values, any float type; counted as float32.
            lo: Their minimum.
            hi: Their maximum.
        """
        if x.size == 0:
            return
        self._cover(min(self.lo, lo), max(self.hi, hi))
        # In float32 a product with less than one could underflow to zero and so lose its sign.
        work: Any = np.float64 if self._exponent > 0 else np.float32
        factor, first = work(math.ldexp(1.0, -self._exponent)), work(self._first)
        flat = x.reshape(-1)
        for start in range(0, flat.size, _TILE):
            v = flat[start : start + _TILE].astype(np.float32, copy=False).astype(work, copy=False) * factor
            np.floor(v, out=v)
            v -= first
            self.counts += np.bincount(v.astype(np.intp), minlength=len(self.counts))
        self.total += x.size

    def _cover(self, lo: float, hi: float) -> None:
        """Widen to [lo, hi]: merge bins until they fit, then make room at the ends."""
        if lo == self.lo and hi == self.hi:
            return
        exponent = max(self._exponent, math.frexp(max(-lo, hi))[1] - _MANTISSA)
        if hi > lo:
            exponent = max(exponent, math.frexp((hi - lo) / self._limit)[1] - 1)
        while _bin(hi, exponent) - _bin(lo, exponent) >= self._limit:
            exponent += 1
        first, last = _bin(lo, exponent), _bin(hi, exponent)
        counts = np.zeros(last - first + 1, np.int64)
        if self.total:
            shift = min(exponent - self._exponent, 62)
            moved = ((self._first + np.arange(len(self.counts))) >> shift) - first
            np.add.at(counts, moved, self.counts)
        self.counts, self._first, self._exponent = counts, first, exponent
        self.lo, self.hi = lo, hi


def _bin(x: float, exponent: int) -> int:
    return math.floor(math.ldexp(x, -exponent))
