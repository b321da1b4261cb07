"""Does a model load and compute the same however onnxruntime runs it? One step beyond reading: it is run.

Three sessions: *default*, what users get; *true*, Q/DQ as ONNX writes them; *basic*, without the fusions that bring
integer kernels. The first reference is *true*: it is what the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxq import border
from onnxq.calibration.feeds import ports_of
from onnxq.calibration.sources import Data, Source, open_source
from onnxq.diagnosis.gaps import Finding, explain
from onnxq.errors import DataError, InputError
from onnxq.numerics.similarity import Agreement, Similarity
from onnxq.session import Runtime, Session, open_session

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.calibration.images import Preprocessing
    from onnxq.context import Progress

Array = np.ndarray[Any, Any]

REFERENCE = "true"
SESSIONS = {
    "default": "onnxruntime as users run it",
    REFERENCE: "Q/DQ as the file says",
    "basic": "without integer kernels and extended fusions",
}
MIN_SQNR_DB = 30.0
"""Sessions whose outputs are nearer than this agree: integer kernels round a value now and then otherwise."""
GENERATED_SIZE = 2
"""Length of open dimensions of generated samples."""


@dataclass(frozen=True)
class Failure:
    """A session that did not load, or did not run.

    Attributes:
        session: Its name.
        stage: ``load`` or ``run``.
        reason: What onnxruntime says.
    """

    session: str
    stage: str
    reason: str


@dataclass(frozen=True)
class Disagreement:
    """An output that a session computes otherwise than the reference.

    Attributes:
        output: Its name.
        session: The session.
        agreement: With the reference.
        causes: Why, as far as known.
    """

    output: str
    session: str
    agreement: Agreement
    causes: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """What `verify` found.

    Attributes:
        data: Where the samples come from.
        samples: How many ran.
        sessions: Those that loaded and ran.
        agreement: By output, then by session: agreement with the reference session.
        failures: Sessions that did not.
        disagreements: Outputs that differ by more than the bound.
    """

    data: str
    samples: int
    sessions: list[str]
    agreement: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every session ran and all agree."""
        return not self.failures and not self.disagreements

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys."""
        return {"format": "onnxq-verify-1", "clean": self.clean, **asdict(self)}


def verify(
    model: ModelProto | bytes | str | PathLike[str],
    data: Data | None = None,
    *,
    preprocessing: Preprocessing | str | Path | None = None,
    samples: int | None = None,
    min_sqnr: float = MIN_SQNR_DB,
    custom_op_library: str | None = None,
    progress: Progress = lambda label, done, total: None,
) -> Verdict:
    """Load and run a model in three sessions, and compare what comes out.

    Args:
        model: Path, bytes or message.
        data: What `onnxq.calibration.sources.open_source` takes. None: random numbers, where open dimensions are
            `GENERATED_SIZE` long.
        preprocessing: How images become inputs.
        samples: Take at most this many.
        min_sqnr: Signal to noise ratio in dB above which two outputs agree.
        custom_op_library: Shared library with kernels of custom ops.
        progress: Told after each sample.

    Raises:
        InputError: The model cannot be read.
        DataError: Samples that do not fit, or generated ones that no session can run: real ones are needed.
        OptionError: No such data.
    """
    crossing = border.open_model(model)
    generated = data is None
    text = _generated(crossing) if data is None else data
    source = open_source(
        text, crossing.model, preprocessing=preprocessing, samples=samples or (4 if generated else None)
    )
    plain = Runtime(custom_op_library=custom_op_library)
    ways = {
        "default": plain,
        REFERENCE: replace(plain, true_semantics=True),
        "basic": replace(plain, optimization="basic"),
    }
    failures: list[Failure] = []
    with ExitStack() as stack:
        running: dict[str, Session] = {}
        for name, runtime in ways.items():
            try:
                running[name] = stack.enter_context(open_session(crossing.source_path or crossing.model, runtime))
            except InputError as error:
                failures.append(Failure(name, "load", str(error)))
        meters, count = _run(source, running, failures, progress)
    if generated and running == {} and any(f.stage == "run" for f in failures) and len(failures) == len(ways):
        raise DataError(f"no session can run generated samples ({failures[-1].reason}): give real ones with --data")
    agreement = {output: {name: meter.result() for name, meter in by.items()} for output, by in meters.items() if by}
    bad = [
        Disagreement(output, name, found)
        for output, by in agreement.items()
        for name, found in by.items()
        if found.broken or (found.sqnr_db is not None and found.sqnr_db < min_sqnr) or _unequal(found)
    ]
    if any(d.session == "default" for d in bad):
        causes = explain(crossing.model, crossing.source_path, plain)
        bad = [replace(d, causes=causes.get(d.output, [])) if d.session == "default" else d for d in bad]
    return Verdict(source.describe(), count, list(running), agreement, failures, bad)


def _run(
    source: Source, running: dict[str, Session], failures: list[Failure], progress: Progress
) -> tuple[dict[str, dict[str, Similarity]], int]:
    """Run all samples; a session that fails leaves ``running``."""
    count, meters = 0, dict[str, dict[str, Similarity]]()
    for feeds in source:
        results: dict[str, Mapping[str, Array]] = {}
        for name, session in list(running.items()):
            try:
                results[name] = dict(zip(session.outputs, session.run(feeds), strict=True))
            except InputError as error:
                failures.append(Failure(name, "run", str(error)))
                del running[name]
        if not results:
            break
        base = REFERENCE if REFERENCE in results else next(iter(results))
        for name, found in results.items():
            if name != base:
                for output, array in found.items():
                    if isinstance(array, np.ndarray) and isinstance(results[base][output], np.ndarray):
                        by = meters.setdefault(output, {})
                        by.setdefault(name, Similarity()).add(results[base][output], array)
        count += 1
        progress("verifying", count, source.size or 0)
    for by in meters.values():
        for name in [name for name in by if name not in running]:
            del by[name]
    return meters, count


def _unequal(found: Agreement) -> bool:
    """Integers, booleans and strings have no signal to noise ratio; some answers may flip, more are a finding."""
    return found.cosine is None and found.sqnr_db is None and found.equal < 0.99


def _generated(crossing: border.Crossing) -> str:
    """Random samples of a model, with a length for each open dimension."""
    sizes: dict[str, int] = {}
    for port in (p for p in ports_of(crossing.model) if p.required):
        for index, dim in enumerate(port.dims or ()):
            if not isinstance(dim, int):
                sizes[dim if isinstance(dim, str) else f"{port.name}.{index}"] = GENERATED_SIZE
    return f"random:{','.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else "random"
