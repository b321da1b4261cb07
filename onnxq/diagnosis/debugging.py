"""Which layer of a quantized model goes wrong? Each value is compared with the float model's, in two ways.

*Cumulative*: both models run on the same sample. *Local*: the layer's inputs come from the float model, so that only
its own rounding acts; weights and inputs are also rounded alone. Both follow what the file says (true semantics), for
values inside what onnxruntime fuses can only be seen unfused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxq import border
from onnxq.calibration import memory as sizes
from onnxq.calibration.sources import Data, open_source
from onnxq.context import Context
from onnxq.diagnosis.blame import Debugging, Error, Tensor, decibels
from onnxq.diagnosis.comparing import check_same_ports
from onnxq.diagnosis.matching import Match, match
from onnxq.diagnosis.segments import Extension, Twins
from onnxq.errors import OptionError, UnsupportedError
from onnxq.numerics.similarity import Similarity
from onnxq.passes.inline_functions import InlineFunctions
from onnxq.passes.upgrade_opset import UpgradeOpset
from onnxq.session import Runtime, open_session

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.calibration.images import Preprocessing
    from onnxq.context import Progress

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

_COPIES = 6  # a float value, its four twins, and the quantized model's


def debug(
    float_model: ModelProto | bytes | str | Path,
    quant_model: ModelProto | bytes | str | Path,
    data: Data,
    *,
    preprocessing: Preprocessing | str | Path | None = None,
    samples: int | None = None,
    memory: int = 1024,
    custom_op_library: str | None = None,
    progress: Progress = lambda label, done, total: None,
) -> Debugging:
    """Compare every value that both models have, on the same samples.

    Args:
        float_model: Path, bytes or message of the reference.
        quant_model: The model to judge; it must have the same inputs and outputs.
        data: What `onnxq.calibration.sources.open_source` takes: a path, ``module:function``, feeds, ….
        preprocessing: How images become inputs.
        samples: Take at most this many.
        memory: MB that the compared values of one sample may take at a time; what takes more is compared in several
            passes over the samples.
        custom_op_library: Shared library with kernels of custom ops.
        progress: Told after each sample.

    Raises:
        InputError: A model cannot be read or run, or the two do not have the same inputs and outputs.
        DataError: No samples, or samples that do not fit.
        OptionError: No such data, or no memory.
    """
    if memory < 1:
        raise OptionError(f"memory must be at least 1 MB, got {memory}")
    reference, candidate = border.open_model(float_model).model, border.open_model(quant_model).model
    declared = check_same_ports(reference, candidate)
    source = open_source(data, reference, preprocessing=preprocessing, samples=samples)
    parts = border.open_model(quant_model).model  # its tensors get other names in the extended float model
    notes = [f"{text}: the declarations differ" for text in declared.values()]
    for model in (candidate, parts):
        if model.functions:
            InlineFunctions().run(model, Context())
    apart = _level(reference, parts)
    if apart:
        notes.append(f"no local errors: {apart}")
    matching = match(reference, candidate)
    rows = [_Row(m) for m in matching.matches if m.measured]
    stream = iter(source)
    first = next(stream)
    estimated = sizes.estimate(reference, [row.match.reference for row in rows], first)
    if not apart:
        _extend(reference, parts, rows)
    groups = sizes.groups([_COPIES * size for size in estimated], memory * 10**6)
    runtime = Runtime(optimization="none", lean=True, custom_op_library=custom_op_library)
    feeds: Iterable[Feeds] = chain([first], stream)
    count = done = 0
    for group in groups:
        with ExitStack() as stack:
            chunk = _Chunk(stack, reference, candidate, rows[group], runtime)
            count = 0
            for sample in feeds:
                chunk.add(sample)
                count, done = count + 1, done + 1
                progress("debugging", done, (source.size or 0) * len(groups))
        feeds = source
    tensors = sorted(filter(None, (row.result() for row in rows)), key=lambda t: (t.own, decibels(t.cumulative)))
    kept = {t.name for t in tensors}
    other = [row.match.name for row in rows if row.match.name not in kept]  # of another shape
    alone = (*matching.alone, *other)
    return Debugging(source.describe(), count, matching.how, len(matching.matches) - len(other), alone, tensors, notes)


def _level(*models: ir.Model) -> str:
    """Bring models to the newest of their opsets; in words why one cannot be brought there, else empty."""
    newest = max(model.opset_imports.get("", 0) for model in models)
    try:
        for model in models:
            UpgradeOpset(to=newest, required=True).run(model, Context())
    except UnsupportedError as error:
        return str(error)
    return ""


def _extend(reference: ir.Model, parts: ir.Model, rows: Sequence[_Row]) -> None:
    """Put the twins of all rows into the float model."""
    matches = match(reference, parts).matches
    extension = Extension(reference, parts, matches)
    by_value = {m.reference: m for m in matches}
    for row in rows:
        row.twins = extension.add(by_value[row.match.reference])
        row.meters |= {kind: Similarity() for kind in row.twins.values}


@dataclass
class _Row:
    """One value, and the running sums of its errors."""

    match: Match
    twins: Twins = field(default_factory=Twins)
    meters: dict[str, Similarity] = field(default_factory=lambda: {"cumulative": Similarity()})

    def result(self) -> Tensor | None:
        """None where the two models' values have other shapes, or hold no floats."""
        errors = {kind: Error.of(meter.result()) for kind, meter in self.meters.items()}
        cumulative = errors.pop("cumulative")
        if cumulative is None:
            return None
        node = self.twins.node or self.match.computed.producer()
        return Tensor(
            self.match.name, node.name or "" if node else "", node.op_type if node else "", cumulative, **errors
        )


class _Chunk:
    """Sessions that return the values of some rows."""

    def __init__(
        self, stack: ExitStack, reference: ir.Model, candidate: ir.Model, rows: Sequence[_Row], runtime: Runtime
    ) -> None:
        self._rows = rows
        ours = dict.fromkeys(row.match.reference for row in rows if row.match.reference.producer() is not None)
        ours |= dict.fromkeys(value for row in rows for value in row.twins.values.values())
        theirs = dict.fromkeys(row.match.seen for row in rows)
        self._sides = [
            (list(values), stack.enter_context(open_session(model, runtime, outputs=list(values))))
            for model, values in ((reference, ours), (candidate, theirs))
            if values
        ]

    def add(self, feeds: Feeds) -> None:
        """Take one sample."""
        found: dict[ir.Value, Array] = {}
        for values, session in self._sides:
            found.update(zip(values, session.run(feeds), strict=True))
        for row in self._rows:
            value = row.match.reference
            exact = found[value] if value in found else _fed(value, feeds)
            for kind, meter in row.meters.items():
                meter.add(exact, found[row.match.seen if kind == "cumulative" else row.twins.values[kind]])


def _fed(value: ir.Value, feeds: Feeds) -> Array:
    """A graph input, or its default."""
    if value.name in feeds or value.const_value is None:
        return feeds[value.name or ""]
    return value.const_value.numpy()
