"""Typed facts that passes hand to each other, keyed by IR objects (names change, objects do not).

A fact written by one pass is read by later ones; `Pipeline` checks the order before it runs. A fact whose class says
``stays = True`` is not about the graph (data, target) and never goes stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.errors import OptionError, near
from onnxq.numerics.spec import Encoding, Granularity, TensorSpec
from onnxq.wishes import Decision, Edge, Ends, Wish, Wishes

if TYPE_CHECKING:
    from onnxq.calibration.sources import Source
    from onnxq.targets import Target

__all__ = [
    "Axes",
    "Decision",
    "Edge",
    "Encodings",
    "Ends",
    "Fact",
    "Feeds",
    "Goal",
    "Plan",
    "Range",
    "Ranges",
    "Skips",
    "Wish",
    "Wishes",
    "all_values",
    "values_by_name",
]


class Fact:
    """Base of everything in a `Context`'s fact store.

    Class attributes:
        stays: Not about the graph, so never stale.
        ask: How a caller gives this fact, for messages; empty for facts that passes make.
    """

    stays: ClassVar[bool] = False
    ask: ClassVar[str] = ""


@dataclass
class Goal(Fact):
    """What the caller asked for: target and options of the whole run; ``target`` decides what is legal."""

    stays: ClassVar[bool] = True
    ask: ClassVar[str] = "a target (--target)"
    target: Target


@dataclass
class Feeds(Fact):
    """Calibration samples. ``source`` can be iterated more than once; each item is ``{input name: array}``."""

    stays: ClassVar[bool] = True
    ask: ClassVar[str] = "samples (--data) or calibrated ranges (--ranges); dynamic, w8 and w4-blocked need none"
    source: Source


@dataclass
class Plan(Fact):
    """Which edges get which spec, which values share one encoding, and why each layer is as it is.

    Attributes:
        activations: Values that get a QuantizeLinear, with its spec.
        readers: Uses that read the dequantized form of such a value. Other uses keep the float value.
        bridges: Those of them that read it at another spec, quantized once more: value -> Q -> DQ -> Q -> DQ -> use.
        outputs: Graph outputs that deliver the dequantized form of a planned value.
        weights: Uses of constants that are stored as integers.
        biases: Uses of constants stored as int32, with scale = input scale x weight scale.
        shared: Groups of values that must carry one identical encoding (data movement).
        fixed: Values whose range is known without data, as (low, high): Softmax, Sigmoid, or given by the caller.
        methods: Values with a calibration method of their own.
        decisions: One entry a node.
        wishes: What the plan was made from.
    """

    wishes: Wishes
    activations: dict[ir.Value, TensorSpec] = field(default_factory=dict)
    readers: dict[Edge, ir.Value] = field(default_factory=dict)
    bridges: dict[Edge, TensorSpec] = field(default_factory=dict)
    outputs: set[ir.Value] = field(default_factory=set)
    weights: dict[Edge, TensorSpec] = field(default_factory=dict)
    biases: dict[Edge, TensorSpec] = field(default_factory=dict)
    shared: list[list[ir.Value]] = field(default_factory=list)
    fixed: dict[ir.Value, Ends] = field(default_factory=dict)
    methods: dict[ir.Value, str] = field(default_factory=dict)
    decisions: dict[ir.Node, Decision] = field(default_factory=dict)

    def read_by(self, edge: Edge) -> TensorSpec | None:
        """The spec at which a use reads its value; None where it reads floats."""
        return self.bridges.get(edge) or (self.activations.get(self.readers[edge]) if edge in self.readers else None)


@dataclass
class Axes(Fact):
    """Concrete granularity for each planned weight use; a use missing here is per tensor."""

    of: dict[Edge, Granularity] = field(default_factory=dict)


@dataclass
class Skips(Fact):
    """Layers a later pass must leave float although the plan had them, with the reason."""

    nodes: dict[ir.Node, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Range:
    """What calibration knows of one value.

    Attributes:
        lo: Lower end that the encoding should cover, in the value's units.
        hi: Upper end.
        seen_lo: Smallest finite value seen in any sample.
        seen_hi: Largest finite value seen.
        sqnr_db: Expected signal to quantization noise at the planned type and [lo, hi], in dB, where the observer
            keeps a histogram; None otherwise.
        size: Values in a sample, on average; 0 where nobody counted.
        candidates: Other (lo, hi) that may be better, by method, where calibration was asked for several.
    """

    lo: float
    hi: float
    seen_lo: float
    seen_hi: float
    sqnr_db: float | None = None
    size: float = 0.0
    candidates: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, float]:
        """A JSON-able form; the candidates are for the run that found them and are left out."""
        out = {"lo": self.lo, "hi": self.hi, "seen_lo": self.seen_lo, "seen_hi": self.seen_hi, "size": self.size}
        return out if self.sqnr_db is None else {**out, "sqnr_db": self.sqnr_db}


@dataclass
class Ranges(Fact):
    """What calibration found.

    Attributes:
        of: Ranges.
        infinite: Values that are infinite by construction, with the reason.
        samples: Number of samples behind it.
        method: Method and parameter, in words.
        means: Mean over all samples of each channel, float64, by value and (non-negative) axis; only where asked for.
    """

    of: dict[ir.Value, Range] = field(default_factory=dict)
    infinite: dict[ir.Value, str] = field(default_factory=dict)
    samples: int = 0
    method: str = "minmax"
    means: dict[ir.Value, dict[int, np.ndarray[Any, Any]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The calibration cache: everything by value name, sorted."""
        means = {v.name or "": {str(k): m.tolist() for k, m in sorted(by.items())} for v, by in self.means.items()}
        return {
            "format": "onnxq-ranges-1",
            "method": self.method,
            "samples": self.samples,
            "ranges": {k: r.to_json() for k, r in sorted((v.name or "", r) for v, r in self.of.items())},
            "infinite": dict(sorted((v.name or "", why) for v, why in self.infinite.items())),
            **({"means": dict(sorted(means.items()))} if means else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], model: ir.Model) -> Ranges:
        """Inverse of `to_json` for a model that has values of these names.

        Raises:
            OptionError: Wrong format, or a name the model does not have.
        """
        if not isinstance(data, dict) or data.get("format") != "onnxq-ranges-1":
            raise OptionError("not a calibration cache: expected 'format': 'onnxq-ranges-1'")
        names = values_by_name(model)

        def find(name: str) -> ir.Value:
            if name not in names:
                raise OptionError(
                    f"the calibration cache names '{name}', which this model does not have{near(name, names)}"
                )
            return names[name]

        try:
            return cls(
                {find(k): Range(**r) for k, r in data["ranges"].items()},
                {find(k): why for k, why in data.get("infinite", {}).items()},
                int(data.get("samples", 0)),
                str(data.get("method", "")),
                {find(k): {int(a): np.array(m) for a, m in by.items()} for k, by in data.get("means", {}).items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise OptionError(f"the calibration cache is damaged: {error}") from error


@dataclass
class Encodings(Fact):
    """Scale and zero point for every planned edge.

    Attributes:
        activations: Of planned values.
        bridges: Of uses that read their value at another spec; one object for each value and spec.
        weights: Of uses of weights; also of integers behind a DequantizeLinear that are stored anew.
        biases: Of uses of biases; one that is planned, but has none, stays float.
        corrected: Biases, float64 of shape [channels], that take the place of the constants' values.
    """

    activations: dict[ir.Value, Encoding] = field(default_factory=dict)
    weights: dict[Edge, Encoding] = field(default_factory=dict)
    biases: dict[Edge, Encoding] = field(default_factory=dict)
    bridges: dict[Edge, Encoding] = field(default_factory=dict)
    corrected: dict[Edge, np.ndarray[Any, Any]] = field(default_factory=dict)

    def read_by(self, edge: Edge) -> Encoding | None:
        """The encoding at which a use reads its value; None where that is not planned."""
        return self.bridges.get(edge) or self.activations.get(edge.value)


def values_by_name(model: ir.Model) -> dict[str, ir.Value]:
    """All named values of the main graph and its subgraphs (outer scope wins)."""
    out: dict[str, ir.Value] = {}
    for value in all_values(model):
        if value.name:
            out.setdefault(value.name, value)
    return out


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Inputs, initializers and node outputs, main graph first."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs
