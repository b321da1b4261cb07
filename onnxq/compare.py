"""Is the quantized model still the model? Both run on the same samples; each output is compared, nothing is stored.

The quantized model runs twice: on onnxruntime's default session, which is what users get, and with true semantics,
where Q/DQ nodes are computed as ONNX writes them. A gap between the two is a finding of its own: the runtime then
computes something else than the file says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import onnx_ir as ir

from onnxq import border
from onnxq.calibration.sources import Data, open_source
from onnxq.errors import InputError, OptionError, near
from onnxq.inventory import external_files
from onnxq.look import dims_of
from onnxq.numerics.similarity import Agreement, Similarity
from onnxq.session import Runtime, Session, open_session
from onnxq.states import dtype_name

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.calibration.images import Preprocessing
    from onnxq.context import Progress

Array = np.ndarray[Any, Any]
SessionName = Literal["default", "true"]

SESSIONS: dict[str, str] = {
    "default": "onnxruntime as users run it",
    "true": "Q/DQ computed as ONNX writes them",
}
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
                    out.append(f"{where}: {a.broken} of {a.values} values are finite in only one of the models")
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


def compare(
    float_model: ModelProto | bytes | str | Path,
    quant_model: ModelProto | bytes | str | Path,
    data: Data,
    *,
    preprocessing: Preprocessing | str | Path | None = None,
    sessions: Sequence[SessionName] = ("default", "true"),
    samples: int | None = None,
    latency: bool = True,
    custom_op_library: str | None = None,
    progress: Progress = lambda label, done, total: None,
) -> Comparison:
    """Run both models on the same samples and measure how far their outputs are apart.

    Args:
        float_model: Path, bytes or message of the reference.
        quant_model: The model to judge; it must have the same inputs and outputs.
        data: What `onnxq.calibration.sources.open_source` takes: a path, ``module:function``, feeds, ….
        preprocessing: How images become inputs.
        sessions: Ways to run the quantized model: ``default``, ``true`` or both.
        samples: Take at most this many.
        latency: Measure latency on the first sample, too.
        custom_op_library: Shared library with kernels of custom ops.
        progress: Told after each sample.

    Raises:
        InputError: A model cannot be read or run, or the two do not have the same inputs and outputs.
        DataError: No samples, or samples that do not fit.
        OptionError: Unknown session name, or no such data.
    """
    for name in sessions:
        if name not in SESSIONS:
            raise OptionError(f"unknown session '{name}'{near(name, SESSIONS)}")
    reference, candidate = border.open_model(float_model), border.open_model(quant_model)
    check_same_ports(reference.model, candidate.model)
    source = open_source(data, reference.model, preprocessing=preprocessing, samples=samples)
    meters = [_Meters(v.name or "", sessions) for v in reference.model.graph.outputs]
    plain = Runtime(custom_op_library=custom_op_library)
    ways = {"default": plain, "true": replace(plain, true_semantics=True)}
    times: tuple[float | None, float | None] = (None, None)
    with ExitStack() as stack:
        base = stack.enter_context(open_session(reference.source_path or reference.model, plain))
        judged = candidate.source_path or candidate.model
        quantized = {name: stack.enter_context(open_session(judged, ways[name])) for name in sessions}
        count, first = 0, None
        for feeds in source:
            expected = base.run(feeds)
            results = {name: session.run(feeds) for name, session in quantized.items()}
            for i, meter in enumerate(meters):
                meter.add(expected[i], {name: result[i] for name, result in results.items()})
            count, first = count + 1, first or feeds
            progress("comparing", count, source.size or 0)
        if latency and first and "default" in quantized:
            times = race(base, quantized["default"], first)
    sizes = _size(float_model, reference), _size(quant_model, candidate)
    return Comparison(source.describe(), count, [meter.result() for meter in meters], *sizes, *times)


class _Meters:
    """The running sums of one output: each session against the float model, and the sessions against each other."""

    def __init__(self, name: str, sessions: Sequence[str]) -> None:
        self.name = name
        self.sessions = {session: Similarity() for session in sessions}
        self.gap = Similarity() if len(self.sessions) == 2 else None

    def add(self, expected: Array, results: Mapping[str, Array]) -> None:
        for session, result in results.items():
            self.sessions[session].add(expected, result)
        if self.gap is not None:
            self.gap.add(results["true"], results["default"])

    def result(self) -> Output:
        sessions = {session: meter.result() for session, meter in self.sessions.items()}
        return Output(self.name, sessions, None if self.gap is None else self.gap.result())


def check_same_ports(reference: ir.Model, candidate: ir.Model) -> None:
    """Both models must have the same inputs and outputs.

    Raises:
        InputError: They do not; lists every difference in name, type and known dimensions.
    """
    differences = []
    for kind, left, right in (
        ("input", reference.graph.inputs, candidate.graph.inputs),
        ("output", reference.graph.outputs, candidate.graph.outputs),
    ):
        ours, theirs = (
            {v.name or "": v for v in values if kind == "output" or not v.is_initializer()} for values in (left, right)
        )
        differences += [f"{kind} '{name}' is missing in the quantized model" for name in ours if name not in theirs]
        differences += [f"{kind} '{name}' is missing in the float model" for name in theirs if name not in ours]
        for name, value in ours.items():
            other = theirs.get(name)
            if other is not None and _differ(value, other):
                here, there = _describe(value), _describe(other)
                differences.append(f"{kind} '{name}' is {here} in the float model, {there} in the quantized one")
    if not differences and [v.name for v in reference.graph.outputs] != [v.name for v in candidate.graph.outputs]:
        differences.append("the outputs stand in another order")
    if differences:
        raise InputError("the models do not match: " + "; ".join(differences))


def race(left: Session, right: Session, feeds: Mapping[str, Array], seconds: float = 2.0) -> tuple[float, float]:
    """Median milliseconds of one run of each, in interleaved rounds so that a busy machine slows both.

    Rounds go on for about ``seconds``: at least 5, at most 100. Each timed run follows an untimed one, which brings the
    session's threads and caches back.
    """
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < 5 or (len(times[0]) < 100 and time.perf_counter() - start < seconds):
        for session, mine in zip((left, right), times, strict=True):
            session.run(feeds)
            before = time.perf_counter()
            session.run(feeds)
            mine.append(1e3 * (time.perf_counter() - before))
    return statistics.median(times[0]), statistics.median(times[1])


def _size(source: ModelProto | bytes | str | Path, crossing: border.Crossing) -> int:
    """Bytes of a model with its external data."""
    if crossing.source_path is None:
        return len(source) if isinstance(source, bytes) else cast("ModelProto", source).ByteSize()
    beside = external_files(crossing.model, crossing.source_path)
    return crossing.source_path.stat().st_size + sum(beside.values())


def _differ(value: ir.Value, other: ir.Value) -> bool:
    if value.dtype is not None and other.dtype is not None and value.dtype != other.dtype:
        return True
    dims, others = dims_of(value), dims_of(other)
    if dims is None or others is None:
        return False
    return len(dims) != len(others) or any(
        a != b for a, b in zip(dims, others, strict=True) if a is not None and b is not None
    )


def _describe(value: ir.Value) -> str:
    dims = dims_of(value)
    shape = "" if dims is None else f"[{', '.join('?' if d is None else str(d) for d in dims)}]"
    return f"{dtype_name(value.dtype)}{shape}"
