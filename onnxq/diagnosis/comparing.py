"""Is the quantized model still the model? Both run on the same samples; each output is compared, nothing is stored.

The quantized model runs twice: on onnxruntime's default session, which is what users get, and with true semantics,
where Q/DQ nodes are computed as ONNX writes them. A gap between the two is a finding of its own: the runtime then
computes something else than the file says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np
import onnx_ir as ir

from onnxq import border
from onnxq.calibration.sources import Data, open_source
from onnxq.diagnosis.comparison import Comparison, Output
from onnxq.diagnosis.gaps import explain
from onnxq.errors import InputError, OptionError, near
from onnxq.inventory import external_files
from onnxq.look import dims_of
from onnxq.numerics.similarity import Similarity
from onnxq.session import Runtime, open_session
from onnxq.states import dtype_name

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.calibration.images import Preprocessing
    from onnxq.context import Progress

Array = np.ndarray[Any, Any]
SessionName = Literal["default", "true"]

SESSIONS: dict[str, str] = {
    "default": "onnxruntime's default session",
    "true": "session with true Q/DQ semantics",
}


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
    declared = check_same_ports(reference.model, candidate.model)
    source = open_source(data, reference.model, preprocessing=preprocessing, samples=samples)
    meters = [_Meters(v.name or "", sessions) for v in reference.model.graph.outputs]
    plain = Runtime(custom_op_library=custom_op_library)
    ways = {"default": plain, "true": replace(plain, true_semantics=True)}
    times: tuple[float | None, float | None] = (None, None)
    with ExitStack() as stack:
        base = _Runner(stack, reference, "float model", plain)
        quantized = {
            name: _Runner(stack, candidate, f"quantized model, {SESSIONS[name]}", ways[name]) for name in sessions
        }
        count, first = 0, None
        for feeds in source:
            expected = base.run(feeds)
            results = {name: session.run(feeds) for name, session in quantized.items()}
            for i, meter in enumerate(meters):
                found: dict[str, Array] = {name: result[i] for name, result in results.items()}
                if meter.name in declared and any(array.shape != expected[i].shape for array in found.values()):
                    raise InputError(f"the models do not match: {declared[meter.name]}")
                meter.add(expected[i], found)
            count, first = count + 1, first or feeds
            progress("comparing", count, source.size or 0)
        if latency and first and "default" in quantized:
            times = race(base, quantized["default"], first)
    outputs = [meter.result() for meter in meters]
    if any(output.suspicious for output in outputs):
        causes = explain(candidate.model, candidate.source_path, plain)
        outputs = [replace(o, causes=causes.get(o.name, [])) if o.suspicious else o for o in outputs]
    sizes = size_of(float_model, reference), size_of(quant_model, candidate)
    notes = [f"{text}: the declarations differ, the computed shapes are the same" for text in declared.values()]
    return Comparison(source.describe(), count, outputs, *sizes, *times, notes)


class _Runner:
    """A session that says which model it runs when something fails."""

    def __init__(self, stack: ExitStack, crossing: border.Crossing, what: str, runtime: Runtime) -> None:
        self._what = f"{crossing.source_path} ({what})" if crossing.source_path else what
        try:
            self._session = stack.enter_context(open_session(crossing.source_path or crossing.model, runtime))
        except InputError as error:
            raise InputError(f"{self._what}: {error}") from error

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        try:
            return self._session.run(feeds)
        except InputError as error:
            raise InputError(f"{self._what}: {error}") from error


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


def check_same_ports(reference: ir.Model, candidate: ir.Model) -> dict[str, str]:
    """Both models must have the same inputs and outputs.

    Returns:
        Outputs that are declared with different shapes, and how. Runtimes compute with such a model, too: an exporter
        may have declared what the nodes do not make. What counts is the shape of the arrays.

    Raises:
        InputError: They do not, or one is no tensor; lists every difference in name and type, and in known dimensions
            of inputs.
    """
    differences = [
        f"output '{v.name}' is a {v.type}, and only tensors can be compared"
        for v in reference.graph.outputs
        if not isinstance(v.type, (ir.TensorType, type(None)))
    ]
    declared: dict[str, str] = {}
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
            if other is None:
                continue
            here, there = _describe(value), _describe(other)
            text = f"{kind} '{name}' is {here} in the float model, {there} in the quantized one"
            if _other_type(value, other) or (kind == "input" and _other_shape(value, other)):
                differences.append(text)
            elif _other_shape(value, other):
                declared[name] = text
    if not differences and [v.name for v in reference.graph.outputs] != [v.name for v in candidate.graph.outputs]:
        differences.append("the outputs stand in another order")
    if differences:
        raise InputError("the models do not match: " + "; ".join(differences))
    return declared


class Runs(Protocol):
    """Something like a `Session`."""

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs for some feeds."""


def race(
    left: Runs,
    right: Runs,
    feeds: Mapping[str, Array],
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Least milliseconds of one run of each, in interleaved rounds: what other work on the machine adds does not count.

    Rounds go on for about ``seconds``: at least 5, at most 100. Each timed run follows an untimed one, which brings the
    session's threads and caches back. With sessions of one thread ``clock`` may be `time.thread_time`, which does not
    count what other work takes.
    """
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < 5 or (len(times[0]) < 100 and time.perf_counter() - start < seconds):
        for session, mine in zip((left, right), times, strict=True):
            session.run(feeds)
            before = clock()
            session.run(feeds)
            mine.append(1e3 * (clock() - before))
    return min(times[0]), min(times[1])


def size_of(source: ModelProto | bytes | str | Path, crossing: border.Crossing) -> int:
    """Bytes of a model with its external data."""
    if crossing.source_path is None:
        return len(source) if isinstance(source, bytes) else cast("ModelProto", source).ByteSize()
    beside = external_files(crossing.model, crossing.source_path)
    return crossing.source_path.stat().st_size + sum(beside.values())


def _other_type(value: ir.Value, other: ir.Value) -> bool:
    return value.dtype is not None and other.dtype is not None and value.dtype != other.dtype


def _other_shape(value: ir.Value, other: ir.Value) -> bool:
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
