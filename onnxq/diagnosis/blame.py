"""What `onnxq.debug` found: how far each value is off, by itself and with all before it, and who is to blame."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxq.numerics.similarity import Agreement
from onnxq.states import CARRIERS

GOOD_DB = 40.0
"""Local signal to noise ratio, in dB, above which nobody need look at a layer: 1 % of error."""
WORST = 3
"""How many layers the advice names."""
MOVES = CARRIERS | {"Concat", "DepthToSpace", "Expand", "Flatten", "MaxPool", "Pad", "SpaceToDepth", "Tile"}
"""Ops that only hand on what was rounded before them: leaving them float helps nobody."""


@dataclass(frozen=True)
class Error:
    """How far a value is off.

    Attributes:
        sqnr_db: Signal to noise ratio over all samples in dB; None when there is no error at all.
        cosine: Cosine over all samples.
        max_abs_error: Largest difference, in the value's units.
        broken: Values that are finite on one side only.
    """

    sqnr_db: float | None
    cosine: float
    max_abs_error: float
    broken: int = 0

    @classmethod
    def of(cls, found: Agreement) -> Error | None:
        """From an agreement; None for one of other shapes, or of no floats."""
        if found.cosine is None or found.max_abs_error is None:
            return None
        return cls(found.sqnr_db, found.cosine, found.max_abs_error, found.broken)


@dataclass(frozen=True)
class Tensor:
    """One value of the float model.

    Attributes:
        name: Its name.
        node: Name of the node that does the work for it, as ``--exclude`` takes it; empty for an input.
        op: Op of that node.
        cumulative: The quantized model's value against the float model's.
        local: The same with the layer's inputs taken from the float model; None where nothing of its own is rounded.
        weights: Local error with only the constants rounded; None without, or where it cannot be told apart.
        inputs: Local error with only the inputs rounded; None likewise.
        rounding: Error of the pair behind the value alone; None without.
    """

    name: str
    node: str
    op: str
    cumulative: Error
    local: Error | None = None
    weights: Error | None = None
    inputs: Error | None = None
    rounding: Error | None = None

    @property
    def own(self) -> float:
        """Signal to noise ratio of what it adds itself, in dB; infinite without error."""
        return decibels(self.local if self.local is not None else self.rounding)

    @property
    def blame(self) -> str:
        """Which part of the local error is the largest: ``weights``, ``inputs`` or ``rounding``; empty if unknown."""
        parts = {kind: decibels(getattr(self, kind)) for kind in ("weights", "inputs", "rounding")}
        kind = min(parts, key=parts.__getitem__)
        return kind if math.isfinite(parts[kind]) else ""


def decibels(error: Error | None) -> float:
    """Signal to noise ratio in dB; infinite without error, lowest where values broke."""
    if error is None:
        return math.inf
    if error.broken:
        return -math.inf
    return math.inf if error.sqnr_db is None else error.sqnr_db


_REMEDIES = {
    "weights": "weights: --rounding gptq, or a wider type (--weights)",
    "inputs": "inputs: a wider type (--activations uint16), or other ranges (--method)",
    "rounding": "output range: another --method, or a wider type (--activations uint16)",
}


@dataclass(frozen=True)
class Debugging:
    """What `onnxq.debug` found.

    Attributes:
        data: Where the samples come from.
        samples: How many ran.
        matched_by: ``provenance`` or ``names``.
        matched: Values of the float model that the quantized model has, too.
        alone: Names of those that it has not.
        tensors: One entry a value, worst first: least `Tensor.own`, then in model order.
        notes: What could not be done, and why.
    """

    data: str
    samples: int
    matched_by: str
    matched: int
    alone: tuple[str, ...]
    tensors: list[Tensor]
    notes: list[str] = field(default_factory=list)

    def below(self, min_sqnr: float | None) -> list[str]:
        """The values whose own error misses a bound in dB, in words; empty without a bound."""
        if min_sqnr is None:
            return []
        missed = [t for t in self.tensors if not t.own >= min_sqnr]
        return [f"{t.name}: local SQNR {t.own:.1f} dB is below {min_sqnr:g} dB" for t in missed]

    def advice(self) -> Iterator[str]:
        """What a person can do about it, in sentences."""
        worst = [t for t in self.tensors if t.own < GOOD_DB and t.op not in MOVES][:WORST]
        if not worst:
            least = self.tensors[0] if self.tensors else None
            if least is not None and math.isfinite(least.own):
                yield f"No layer stands out: the worst by itself is '{least.name}' with {least.own:.1f} dB."
            else:
                yield "Nothing that could be compared is rounded."
            return
        yield "Worst by themselves: " + "; ".join(map(_words, worst)) + "."
        nodes = dict.fromkeys(t.node for t in worst if t.node)
        remedies = [_REMEDIES[kind] for kind in dict.fromkeys(t.blame for t in worst) if kind]
        if nodes:
            remedies.insert(0, "leave them float: " + " ".join(f"--exclude {shlex.quote(node)}" for node in nodes))
        yield "To do when quantizing again: " + "; ".join(remedies) + "."

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys."""
        return {"format": "onnxq-debug-1", **asdict(self), "advice": list(self.advice())}


def _words(tensor: Tensor) -> str:
    who = f"{tensor.node} ({tensor.op})" if tensor.node else f"input '{tensor.name}'"
    part = {"weights": "weights", "inputs": "inputs", "rounding": "output range"}.get(tensor.blame)
    return f"{who} {tensor.own:.1f} dB" + (f", mostly by its {part}" if part else "")
