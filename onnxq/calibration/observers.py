"""What is kept of one value while samples stream by: extremes, their averages, or a histogram. Never the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from onnxq.errors import OptionError
from onnxq.facts import Range
from onnxq.numerics import thresholds
from onnxq.numerics.histograms import BINS, Histogram
from onnxq.numerics.noise import sqnr_db
from onnxq.numerics.spec import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

Method = Literal["minmax", "average", "percentile", "entropy", "mse", "auto"]


@dataclass(frozen=True)
class Observation:
    """How ranges are found.

    Attributes:
        method: ``minmax``: all values seen. ``average``: the mean of each sample's minimum and maximum.
            ``percentile``: the middle ``percent`` of the values. ``entropy``, ``mse``: the range of least divergence,
            of least squared error at the planned type. ``auto``: as ``mse``, with the ranges of ``minmax``,
            ``average`` and ``percentile`` as candidates for `spare-sensitive` to choose from.
        percent: For ``percentile``; 100 is the same as ``minmax``.
        bins: At least this many bins in a histogram.

    Raises:
        OptionError: ``percent`` or ``bins`` out of range.
    """

    method: Method = "minmax"
    percent: float = 99.99
    bins: int = BINS

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise OptionError(f"a percentile lies above 0 and at most at 100, got {self.percent}")
        Histogram(self.bins)

    def __str__(self) -> str:
        return f"percentile {self.percent:g}" if self.method == "percentile" else self.method

    def observer(self) -> Observer:
        """A new observer for one value."""
        if self.method == "minmax":
            return Extremes()
        return Averages() if self.method == "average" else Counts(self)


class Observer(Protocol):
    """Sees samples of one value; ``lo > hi`` before any."""

    @property
    def lo(self) -> float:
        """Smallest value seen."""

    @property
    def hi(self) -> float:
        """Largest value seen."""

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample's finite values, their minimum and their maximum."""

    def range(self, spec: TensorSpec) -> Range:
        """The range to cover, for a planned type."""


class Extremes:
    """Smallest and largest value."""

    __slots__ = ("_samples", "_values", "hi", "lo")

    def __init__(self) -> None:
        self.lo, self.hi = math.inf, -math.inf
        self._samples = self._values = 0

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample's values, their minimum and their maximum."""
        self.lo, self.hi = min(self.lo, lo), max(self.hi, hi)
        self._samples, self._values = self._samples + 1, self._values + x.size

    @property
    def size(self) -> float:
        """Values in a sample, on average."""
        return self._values / self._samples

    def range(self, spec: TensorSpec) -> Range:
        """The range to cover."""
        return Range(self.lo, self.hi, self.lo, self.hi, size=self.size)


class Averages(Extremes):
    """The mean over samples of the minimum and of the maximum: one odd sample moves the range only a little."""

    __slots__ = ("_sum_hi", "_sum_lo")

    def __init__(self) -> None:
        super().__init__()
        self._sum_lo = self._sum_hi = 0.0

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample's values, their minimum and their maximum."""
        super().add(x, lo, hi)
        self._sum_lo, self._sum_hi = self._sum_lo + lo, self._sum_hi + hi

    def range(self, spec: TensorSpec) -> Range:
        """The range to cover."""
        lo, hi = self._sum_lo / self._samples, self._sum_hi / self._samples
        return Range(lo, hi, self.lo, self.hi, size=self.size)


class Counts(Histogram):
    """A histogram, from which a range for the planned type is chosen at the end."""

    __slots__ = ("_ends", "_how")

    def __init__(self, how: Observation) -> None:
        super().__init__(how.bins)
        self._how, self._ends = how, Averages()

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample's values, their minimum and their maximum."""
        super().add(x, lo, hi)
        self._ends.add(x, lo, hi)

    def range(self, spec: TensorSpec) -> Range:
        """The range to cover, with the noise to expect; the ranges of the other methods too for ``auto``.

        A float type covers all values seen: clipping would make none of its steps finer.
        """
        if spec.qtype.is_float:
            return Range(self.lo, self.hi, self.lo, self.hi, size=self._ends.size)
        if self._how.method == "percentile":
            lo, hi = thresholds.percentile(self, self._how.percent)
        else:
            lo, hi = (thresholds.entropy if self._how.method == "entropy" else thresholds.mse)(self, spec)
        found = Range(lo, hi, self.lo, self.hi, sqnr_db(self, lo, hi, spec), self._ends.size)
        if self._how.method != "auto":
            return found
        average = self._ends.range(spec)
        candidates = {
            "mse": (lo, hi),
            "minmax": (self.lo, self.hi),
            "average": (average.lo, average.hi),
            "percentile": thresholds.percentile(self, self._how.percent),
        }
        return replace(found, candidates=candidates)


class Means:
    """The mean per channel along some axes."""

    __slots__ = ("_axes", "_sums")

    def __init__(self) -> None:
        self._axes: list[Callable[[int], int | None]] = []
        self._sums: dict[int, tuple[Array, int] | None] = {}

    def along(self, axis: Callable[[int], int | None]) -> None:
        """Also keep the means along an axis, which may depend on the rank."""
        self._axes.append(axis)

    def add(self, x: Array, lo: float, hi: float) -> None:
        """Take one sample's values, their minimum and their maximum."""
        for axis in {axis for of in self._axes if (axis := of(x.ndim)) is not None}:
            # Float32 is precise enough inside one sample: NumPy adds pairwise.
            sums = np.sum(x, axis=tuple(i for i in range(x.ndim) if i != axis)).astype(np.float64)
            count = x.size // x.shape[axis]
            before = self._sums.get(axis, (np.zeros_like(sums), 0))
            fits = before is not None and before[0].shape == sums.shape
            self._sums[axis] = (before[0] + sums, before[1] + count) if before is not None and fits else None

    def result(self) -> dict[int, Array]:
        """Means, float64 of shape [channels], by axis; an axis whose length differs between samples is left out."""
        return {axis: found[0] / found[1] for axis, found in sorted(self._sums.items()) if found is not None}
