"""Builds plans into model files and measures them against the float model, on onnxruntime's default session."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxq import api
from onnxq.calibration.sources import Source
from onnxq.calibration.spool import Spool
from onnxq.context import Progress
from onnxq.diagnosis.comparing import race
from onnxq.errors import InputError
from onnxq.facts import Encodings, Fact
from onnxq.inventory import external_files
from onnxq.numerics.similarity import Similarity, class_axis
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context, Pass, Pipeline, Step
from onnxq.passes.gptq import Gptq
from onnxq.recipe import load_recipe
from onnxq.session import Runtime, Session, open_session
from onnxq.targets import Target

if TYPE_CHECKING:
    from onnx import ModelProto

Array = np.ndarray[Any, Any]
Answer = Callable[[list[Array]], Any]
"""Reduces the outputs of one sample to its answer; an array of two axes holds one answer a row."""


def answer_of(outputs: list[Array]) -> Array:
    """The default answer: the arg max of each float output along its class axis, and all integers.

    Returns:
        int64 [rows, positions], a row for each entry of the first axis where all outputs have it alike, else one row.
    """
    found = []
    for array in outputs:
        axis = class_axis(array.shape) if array.dtype.kind == "f" else None
        answer = np.argmax(array, axis) if axis is not None else array
        if answer.dtype.kind in "iub" and answer.size:
            found.append(answer)
    lengths = {answer.shape[0] if answer.ndim else 1 for answer in found}
    rows = lengths.pop() if len(lengths) == 1 else 1
    return np.concatenate(
        [np.zeros((rows, 0), np.int64), *(a.reshape(rows, -1).astype(np.int64) for a in found)], axis=1
    )


def same(a: Any, b: Any) -> tuple[int, int]:
    """How many answers of a run of each model are equal, and how many there are: one a row of an array of two axes."""
    if isinstance(a, np.ndarray) and a.ndim == 2 and a.shape == np.shape(b):
        return int((a == b).all(axis=1).sum()), len(a)
    return int(np.array_equal(a, b)), 1


@dataclass(frozen=True)
class Judged:
    """How far a model is from the float one; of several outputs the worst.

    Attributes:
        sqnr_db: Signal to noise ratio in dB; None without any error.
        cosine: Cosine.
        agreement: Share of samples with the same answer.
    """

    sqnr_db: float | None
    cosine: float
    agreement: float


@dataclass
class Bench:
    """Everything that is needed to build and judge plans of one model.

    Attributes:
        model: The float model as given.
        target: The target.
        source: Samples, to calibrate and to judge.
        folder: Where files go; the caller takes it away.
        answer: Reduces the outputs of a sample to its answer.
        rounding: ``gptq`` or ``nearest``.
        progress: Told of passes over the samples.
        runtime: How to run.
        seed: Seed of everything random.
    """

    model: ModelProto | bytes | str | Path
    target: Target
    source: Source
    folder: Path
    answer: Answer
    rounding: str
    progress: Progress
    runtime: Runtime
    seed: int
    samples: int = 0
    _rounded: dict[object, Array | None] = field(default_factory=dict)
    _exact: Spool | None = None

    def build(self, plan: Mapping[str, Any], output: Path | None) -> api.Result:
        """Make the model of a plan: the recipe ``int8`` with that plan as its plan file."""
        file = self.folder / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        given = {"plan": str(file), "search": False, "method": "minmax", "rounding": self.rounding}
        recipe = load_recipe("int8", given)
        steps = tuple(self._step(step) for step in recipe.steps)
        return api.run(
            Pipeline(steps=steps, label="tune"), self.model, self.source, target=self.target, output=output,
            progress=self.progress, custom_op_library=self.runtime.custom_op_library, seed=self.seed,
        )  # fmt: skip

    def judge(self, file: Path) -> Judged:
        """Run a model on all samples."""
        if self._exact is None:
            with self._session(self.model) as base:
                self._exact = Spool(base.run(feeds) for feeds in self.source)
                self.samples = sum(1 for _ in self._exact)
        equal = answers = 0
        with self._session(file) as session:
            meters = [Similarity() for _ in session.outputs]
            for feeds, exact in zip(self.source, self._exact, strict=True):
                found = session.run(feeds)
                for meter, a, b in zip(meters, exact, found, strict=True):
                    meter.add(a, b)
                hits, rows = same(self.answer(exact), self.answer(found))
                equal, answers = equal + hits, answers + rows
        results = [meter.result() for meter in meters]
        broken = any(r.broken for r in results)
        ratios = [-np.inf if r.broken else r.sqnr_db for r in results if r.cosine is not None]
        noisy = [float(ratio) for ratio in ratios if ratio is not None]
        cosine = min((r.cosine for r in results if r.cosine is not None), default=1.0)
        return Judged(min(noisy, default=None), 0.0 if broken else cosine, equal / max(answers, 1))

    def race(self, file: Path, seconds: float) -> tuple[float, float]:
        """CPU milliseconds of the float model and of another one, on one thread, the first sample in turn.

        CPU time of one thread does not count what else the machine does, so that it can be measured beside other work.
        """
        feeds = next(iter(self.source))
        alone = replace(self.runtime, threads=1)
        with self._session(self.model, alone) as base, self._session(file, alone) as session:
            return race(base, session, feeds, seconds, time.thread_time)

    @contextmanager
    def _session(self, model: ModelProto | bytes | str | Path, runtime: Runtime | None = None) -> Iterator[Session]:
        from onnxq.border import open_model

        source = Path(model) if isinstance(model, str | Path) else open_model(model).model
        try:
            with open_session(source, runtime or self.runtime) as session:
                yield session
        except InputError as error:
            raise InputError(f"{model if isinstance(model, str | Path) else 'the model'}: {error}") from error

    def _step(self, step: Step) -> Step:
        return Remembered(inner=step, known=self._rounded) if isinstance(step, Gptq) else step


@dataclass(frozen=True, kw_only=True)
class Remembered(Pass):
    """`gptq` that rounds each weight once: further plans take the integers over where scale and type are the same.

    Attributes:
        inner: The pass that does the work.
        known: Integers by weight, spec and scale; None where it left the nearest ones.
    """

    name: ClassVar[str] = "gptq"
    reads: ClassVar[frozenset[type[Fact]]] = Gptq.reads
    maybe_reads: ClassVar[frozenset[type[Fact]]] = Gptq.maybe_reads
    writes: ClassVar[frozenset[type[Fact]]] = Gptq.writes

    inner: Gptq
    known: dict[object, Array | None] = field(compare=False)

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Round what was not rounded yet; the graph stays as it is."""
        old = ctx.get(Encodings)
        new = {edge: w for edge, w in old.weights.items() if _key(edge.value, w) not in self.known}
        if new:
            ctx.put(replace(old, weights=new))
            self.inner.run(model, ctx)
            for edge, encoding in ctx.get(Encodings).weights.items():
                self.known[_key(edge.value, new[edge])] = encoding.integers
        made: dict[int, Encoding] = {}
        for edge, encoding in old.weights.items():
            made.setdefault(id(encoding), replace(encoding, integers=self.known[_key(edge.value, encoding)]))
        ctx.put(replace(old, weights={edge: made[id(w)] for edge, w in old.weights.items()}))
        return False


def _key(value: ir.Value, encoding: Encoding) -> object:
    return value.name, encoding.spec, encoding.scale.tobytes(), encoding.zero_point.tobytes()


def file_bytes(file: Path) -> int:
    """Bytes of a model file with its external data."""
    from onnxq.border import open_model

    return file.stat().st_size + sum(external_files(open_model(file).model, file).values())
