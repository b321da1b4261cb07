"""What `onnxq.compare` found: agreement by output and session, sizes, latency; missed bounds, gaps between sessions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from onnxq.numerics.similarity import Agreement
from onnxq.wording import plural

GAP_DB = 3.0
"""Decibels by which the sessions' distances to the float model may differ before it is a finding."""


@dataclass(frozen=True)
class Output:
    """One output.

    Attributes:
        name: Output name.
        sessions: Agreement of the quantized with the float model, by session name.
        gap: Agreement of the two sessions of the quantized model with each other, when both ran.
    """

    name: str
    sessions: dict[str, Agreement]
    gap: Agreement | None = None


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
    """

    data: str
    samples: int
    outputs: list[Output] = field(default_factory=list)
    float_bytes: int = 0
    quant_bytes: int = 0
    float_ms: float | None = None
    quant_ms: float | None = None

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
        """Outputs on which the two sessions are not equally far from the float model."""
        out = []
        for output in self.outputs:
            default, true = output.sessions.get("default"), output.sessions.get("true")
            if default is None or true is None or default.sqnr_db is None or true.sqnr_db is None:
                continue
            difference = default.sqnr_db - true.sqnr_db
            if abs(difference) > GAP_DB:
                side = "worse" if difference < 0 else "better"
                gap = f"{abs(difference):.1f} dB {side}"
                out.append(f"{output.name}: onnxruntime's default session is {gap} than what the file says")
        return out

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys."""
        return {"format": "onnxq-compare-1", **asdict(self), "gaps": self.gaps()}
