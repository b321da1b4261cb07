"""What onnxq says of a model: severity, place, diagnostic. Notes of passes and lint findings are the same thing."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Severity(enum.Enum):
    """How much harm: error = wrong numbers or does not load, warning = slow or fragile, info = a decision."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Place:
    """Where in a model: graph path (``""`` is the main graph), node, op type, value."""

    node: str = ""
    op_type: str = ""
    value: str = ""
    graph: str = ""

    def __str__(self) -> str:
        inside = f"{self.graph}/" if self.graph else ""
        if self.node or self.op_type:
            op = f" ({self.op_type})" if self.op_type else ""
            return f"{inside}{self.node or '<unnamed>'}{op}"
        return f"{inside}{self.value}"


@dataclass(frozen=True)
class Diagnostic:
    """One statement: code, severity, place, text, numbers.

    Attributes:
        code: Stable kebab-case code of a pass note, or an ``OQ`` lint code.
        message: One sentence that names the reason, and the remedy if there is one.
        numbers: The figures behind the decision, JSON-able.
        source: The pass or rule that says it.
        help: What to do about it; empty where the message says it.
        fix: Name of the pass that mends it; empty where none does.
        safe: Whether that pass keeps what the model computes.
    """

    code: str
    message: str
    severity: Severity = Severity.INFO
    place: Place = Place()
    numbers: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    help: str = ""
    fix: str = ""
    safe: bool = True

    def __str__(self) -> str:
        where = str(self.place)
        return f"{where + ': ' if where else ''}{self.message} [{self.code}]"

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "node": self.place.node,
            "op_type": self.place.op_type,
            "value": self.place.value,
            "graph": self.place.graph,
            "numbers": self.numbers,
            "source": self.source,
        }
