"""What `onnxq.tune` is asked for and what it found: bounds, the points of the front, the one that was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxq.context import Report
from onnxq.diagnosis.comparison import EXACT_DB
from onnxq.errors import OptionError

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Bounds:
    """What a plan has to meet, all of it; None for what does not matter.

    Attributes:
        min_sqnr: Signal to noise ratio of the worst output, in dB.
        min_cosine: Cosine of the worst output.
        min_agreement: Share of samples with the float model's answer.
        max_size: Bytes of the written model.
        max_latency_ratio: Measured latency as a share of the given model's.
    """

    min_sqnr: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    max_size: float | None = None
    max_latency_ratio: float | None = None

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if not given:
            names = ", ".join(f"--{f.name.replace('_', '-')}" for f in fields(self))
            raise OptionError(f"tune needs a bound: {names}")
        for name, value in given.items():
            upper = 1.0 if name in ("min_cosine", "min_agreement") else math.inf
            if not 0 < value <= upper or value == math.inf:
                what = "above 0 and at most 1" if upper == 1 else "positive and finite"
                raise OptionError(f"{name.replace('_', '-')} must be {what}, got {value:g}")

    @property
    def accuracy(self) -> bool:
        """Whether one of them is about accuracy: then the cheapest plan is wanted, else the most exact one."""
        return any(b is not None for b in (self.min_sqnr, self.min_cosine, self.min_agreement))

    def missed(self, point: Point) -> list[str]:
        """The bounds a point misses, in words."""
        return [text for text, _ in self._misses(point)]

    def shortfall(self, point: Point) -> float:
        """How far a point is from meeting all bounds, as shares of what is missing; 0 if it meets them."""
        return sum(share for _, share in self._misses(point))

    def _misses(self, point: Point) -> list[tuple[str, float]]:
        out: list[tuple[str, float]] = []
        if self.min_sqnr is not None and not point.db >= self.min_sqnr:
            out.append(
                (f"SQNR {point.db:.1f} dB is below {self.min_sqnr:g}", (self.min_sqnr - point.db) / self.min_sqnr)
            )
        if self.min_cosine is not None and not point.cosine >= self.min_cosine:
            short = (self.min_cosine - point.cosine) / self.min_cosine
            out.append((f"cosine {point.cosine:.6f} is below {self.min_cosine:g}", short))
        if self.min_agreement is not None and not point.agreement >= self.min_agreement:
            short = (self.min_agreement - point.agreement) / self.min_agreement
            out.append((f"agreement {point.agreement:.2%} is below {self.min_agreement:.2%}", short))
        if self.max_size is not None and not point.bytes <= self.max_size:
            out.append((f"{point.bytes} bytes are more than {self.max_size:.0f}", point.bytes / self.max_size - 1))
        limit = self.max_latency_ratio
        if limit is not None and point.ratio is not None and not point.ratio <= limit:
            out.append((f"latency ratio {point.ratio:.2f} is above {limit:g}", point.ratio / limit - 1))
        return out


@dataclass
class Point:
    """One plan that was built and measured.

    Attributes:
        bytes: Size of the written model, with external data.
        sqnr_db: Signal to noise ratio of the worst output in dB; None without any error.
        cosine: Cosine of the worst output.
        agreement: Share of samples with the float model's answer.
        expected_db: Signal to noise ratio that the search expected.
        estimated_ratio: Latency as a share of the prepared float model's, by the table of `onnxq.tuning.costs`.
        milliseconds: Least CPU time of one sample on one thread of onnxruntime's default session; None if not measured.
        ratio: The same as a share of the given model's, in the same rounds.
        layers: How many layers became what.
    """

    bytes: int
    sqnr_db: float | None
    cosine: float
    agreement: float
    expected_db: float
    estimated_ratio: float
    layers: dict[str, int] = field(default_factory=dict)
    milliseconds: float | None = None
    ratio: float | None = None

    @property
    def db(self) -> float:
        """Signal to noise ratio, as far as it tells anything."""
        return EXACT_DB if self.sqnr_db is None else min(self.sqnr_db, EXACT_DB)


@dataclass(frozen=True)
class Part:
    """What became of a layer, or of an op between layers.

    Attributes:
        node: Its name.
        op: Its op type.
        choice: What it became.
        quantized_db: Signal to noise ratio at the outputs with nothing but this part at its cheapest, as expected.
    """

    node: str
    op: str
    choice: str
    quantized_db: float | None


@dataclass
class Tuning:
    """What a search found.

    Attributes:
        data: Where the samples come from.
        samples: How many there are.
        bounds: What was asked for.
        target: Name of the target.
        float_bytes: Size of the given model.
        float_ms: Least CPU time of one sample of it, beside the last point.
        points: Measured plans, cheapest first; none is beaten by another in all of size, latency and accuracy.
        chosen: Index of the plan that was taken; None where none meets the bounds.
        nearest: Index of the chosen plan, else of the one that comes nearest to the bounds.
        parts: What became of each layer in that plan.
        plan: That plan, as ``--plan`` takes it.
        report: Notes of the run that made the model.
        seconds: Seconds by what they went into.
        tried: Plans whose costs and noise were estimated.
        path: The written model, where there is one.
    """

    data: str
    samples: int
    bounds: Bounds
    target: str
    float_bytes: int
    float_ms: float | None
    points: list[Point]
    chosen: int | None
    nearest: int
    parts: list[Part]
    plan: dict[str, Any]
    report: Report
    seconds: dict[str, float]
    tried: int = 0
    path: Path | None = None
    _model: ModelProto | None = None

    @property
    def model(self) -> ModelProto | None:
        """The resulting model as a message; None where no plan meets the bounds."""
        if self.path is not None:
            from onnxq.border import open_model

            return open_model(self.path).to_proto()
        return self._model

    def missed(self) -> list[str]:
        """The bounds that the nearest plan misses, in words; empty if one was chosen."""
        return [] if self.chosen is not None else self.bounds.missed(self.points[self.nearest])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys."""
        return {
            "format": "onnxq-tune-1",
            "data": self.data,
            "samples": self.samples,
            "bounds": asdict(self.bounds),
            "target": self.target,
            "float_bytes": self.float_bytes,
            "float_ms": self.float_ms,
            "points": [asdict(point) for point in self.points],
            "chosen": self.chosen,
            "nearest": self.nearest,
            "missed": self.missed(),
            "parts": [asdict(part) for part in self.parts],
            "plans_estimated": self.tried,
            "seconds": self.seconds,
        }


def choose(points: Sequence[Point], bounds: Bounds) -> int | None:
    """The point to take: with a bound on accuracy the cheapest by estimate, else the most exact; None if none fits."""
    fits = [i for i, point in enumerate(points) if not bounds.missed(point)]
    if not fits:
        return None
    if bounds.accuracy:
        return min(fits, key=lambda i: (points[i].estimated_ratio, points[i].bytes))
    return max(fits, key=lambda i: (points[i].db, points[i].cosine, -points[i].estimated_ratio))


def beaten(points: Sequence[Point], bounds: Bounds) -> set[int]:
    """Points for which there is another one, no worse in anything: size, latency, accuracy.

    Latency is the measured one where that is bounded, else the estimate.
    """
    by_clock = bounds.max_latency_ratio is not None

    def costs(point: Point) -> tuple[float, ...]:
        latency = point.ratio if by_clock and point.ratio is not None else point.estimated_ratio
        return point.bytes, latency, -point.db, -point.cosine, -point.agreement

    rows = [costs(point) for point in points]
    return {
        i
        for i, row in enumerate(rows)
        if any(other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in rows)
    }


def nearest(points: Sequence[Point], bounds: Bounds) -> int:
    """The point with the least shortfall."""
    return min(range(len(points)), key=lambda i: (bounds.shortfall(points[i]), i))
