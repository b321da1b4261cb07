"""What `onnxq.compare` found: agreement by output and session, sizes, latency; missed bounds, gaps between sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxq.diagnosis.gaps import Finding
from onnxq.numerics.similarity import Agreement
from onnxq.wording import plural

GAP_DB = 3.0
"""Decibels by which the sessions' distances to the float model may differ before it is a finding."""
NEAR_DB = 10.0
"""A gap with a known cause is a finding when it is at most this many dB smaller than the quantization error."""
EXACT_DB = 100.0
"""Signal to noise ratio above which there is nothing but float32 rounding."""
_NAMED = 4
"""How many nodes of a cause are named."""


@dataclass(frozen=True)
class Output:
    """One output.

    Attributes:
        name: Output name.
        sessions: Agreement of the quantized with the float model, by session name.
        gap: Agreement of the two sessions of the quantized model with each other, when both ran.
        causes: Why they differ, as far as known; looked for where `suspicious`.
    """

    name: str
    sessions: dict[str, Agreement]
    gap: Agreement | None = None
    causes: list[Finding] = field(default_factory=list)

    @property
    def difference(self) -> float:
        """By how many dB the default session is nearer to the float model than true semantics (negative: farther)."""
        return _decibels(self.sessions["default"]) - _decibels(self.sessions["true"])

    @property
    def suspicious(self) -> bool:
        """Whether the sessions differ by more than integer kernels do, which round a value now and then otherwise."""
        if self.gap is None or (self.gap.sqnr_db is None and not self.gap.broken):
            return False
        near = _decibels(self.gap) < min(_decibels(self.sessions["true"]) + NEAR_DB, EXACT_DB)
        return near or abs(self.difference) > GAP_DB

    def gap_in_words(self) -> str:
        """The finding; empty if there is none."""
        if not self.suspicious:
            return ""
        size = abs(self.difference)
        if size > GAP_DB:
            text = f"is {size:.1f} dB {'worse' if self.difference < 0 else 'better'} than what the file says"
        elif self.causes:
            text = "computes something else than the file says"
        else:
            return ""
        reasons = [f"{_listed(c.nodes)} {c.why}; {c.remedy}" for c in self.causes] or ["no cause is known"]
        return f"{self.name}: onnxruntime's default session {text}: {'. '.join(reasons)}"


def _decibels(found: Agreement) -> float:
    """Signal to noise ratio, as far as it tells anything."""
    return EXACT_DB if found.sqnr_db is None else min(found.sqnr_db, EXACT_DB)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        data: Where the samples come from.
        samples: How many ran.
        outputs: One entry an output, in model order.
        float_bytes: Size of the float model with its external data.
        quant_bytes: Size of the quantized one.
        float_ms: Median latency of one sample on the default session in milliseconds; None if not measured.
        quant_ms: The same for the quantized model.
        notes: What else is worth knowing, in words.
    """

    data: str
    samples: int
    outputs: list[Output] = field(default_factory=list)
    float_bytes: int = 0
    quant_bytes: int = 0
    float_ms: float | None = None
    quant_ms: float | None = None
    notes: list[str] = field(default_factory=list)

    def beyond(self, min_cosine: float | None = None, min_sqnr: float | None = None) -> list[str]:
        """What misses the bounds, in words; empty if nothing does. Values missing on one side always do."""
        out = []
        for output in self.outputs:
            for session, a in output.sessions.items():
                where = f"{output.name} ({session})"
                if a.broken:
                    out.append(f"{where}: {a.broken} of {plural(a.values, 'value')} finite in only one of the models")
                if a.cosine is None and a.equal < 1.0 and (min_cosine is not None or min_sqnr is not None):
                    out.append(f"{where}: {100 * (1 - a.equal):.3g} % of the values differ")
                if min_cosine is not None and a.cosine is not None and not a.cosine >= min_cosine:
                    out.append(f"{where}: cosine {a.cosine:.6f} is below {min_cosine:g}")
                if min_sqnr is not None and a.sqnr_db is not None and not a.sqnr_db >= min_sqnr:
                    out.append(f"{where}: SQNR {a.sqnr_db:.1f} dB is below {min_sqnr:g} dB")
        return out

    def gaps(self) -> list[str]:
        """Outputs on which onnxruntime's default session computes something else than the file says, and why."""
        return [text for text in (output.gap_in_words() for output in self.outputs) if text]

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys."""
        return {"format": "onnxq-compare-1", **asdict(self), "gaps": self.gaps()}
