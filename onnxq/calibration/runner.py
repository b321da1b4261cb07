"""Run a model on samples and show its values to whoever watches them; one sample is in memory at a time.

The watched values become outputs of a float session and are reduced in NumPy. Reduction nodes inside the session were
measured on small and on large tensors (5 000 values of 512 elements: 93 against 57 ms a sample and twice the time to
load; 10 values of 64 MB: 1.0 against 0.87 s a sample) and never were faster. Where the values of one sample take more
than the memory limit, they are watched in groups, one session and one pass over the samples for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.calibration import memory
from onnxq.calibration.feeds import Feeds
from onnxq.calibration.infinite import Infinities, huge
from onnxq.calibration.sources import Source
from onnxq.context import Context
from onnxq.errors import DataError
from onnxq.look import constant, onnx_op
from onnxq.session import Runtime, Session, open_session
from onnxq.wording import plural

Array = np.ndarray[Any, np.dtype[Any]]
Watch = Callable[[Array, float, float], None]
"""Takes one sample's values, never empty and all finite, with their minimum and maximum."""

REMEDY = "check the data and the float model on this sample"


@dataclass
class Run:
    """One run over all samples.

    Attributes:
        model: The float model.
        source: Samples.
        watches: What to show each value to; values of the main graph.
        ctx: Takes notes and progress.
        limit: Bytes that the values of one sample may take at a time.
        infinite: Filled in: values that are infinite by construction, and why; their watches see only samples before.
        samples: Filled in: the number of samples.
    """

    model: ir.Model
    source: Source
    watches: Mapping[ir.Value, Watch]
    ctx: Context
    limit: int
    infinite: dict[ir.Value, str] = field(default_factory=dict)
    samples: int = 0

    def go(self) -> None:
        """Show all samples.

        Raises:
            DataError: No samples, NaN, or an infinity that is not there by construction; names value and sample.
            InputError: onnxruntime cannot load or run the model.
        """
        stream = iter(self.source)
        first = next(stream)
        self._masks = _infinite_inputs(self.model, first, 0)
        self._origins = Infinities(self._masks)
        for value in self.watches:
            if (data := constant(value)) is not None:
                self._show(value, data, 0)
        outputs = (v for node in self.model.graph if not onnx_op(node, "Constant") for v in node.outputs)
        values = [v for v in outputs if v in self.watches]
        sizes = memory.estimate(self.model, values, first)
        parts = memory.groups(sizes, self.limit)
        self._announce(sizes, parts)
        self._total = (self.source.size or 0) * len(parts)
        self._done = 0
        samples: Iterable[Feeds] = chain([first], stream)
        inputs = [v for v in self.model.graph.inputs if v in self.watches]
        for part in parts:
            self._pass(samples, inputs, values[part])
            samples, inputs = self.source, []
        if self._masks and self.samples == 1:
            raise DataError(
                f"input {self._infinite} is infinite in sample 0, the only one; a mask is infinite in each of several"
            )

    @property
    def _infinite(self) -> str:
        """Names of the inputs that hold an infinity in every sample."""
        return ", ".join(sorted(f"'{v.name}'" for v in self._masks))

    def _announce(self, sizes: Sequence[int], parts: Sequence[slice]) -> None:
        total, most = sum(sizes), max(sum(sizes[p]) for p in parts)
        if len(parts) == 1:
            how = f"the {plural(len(sizes), 'observed value')} of a sample take about {total / 1e6:.3g} MB"
        else:
            how = (
                f"the {plural(len(sizes), 'observed value')} of a sample take about {total / 1e6:.3g} MB; they are "
                f"observed in {len(parts)} passes over the data of at most {most / 1e6:.3g} MB"
            )
        self.ctx.note("calibration-memory", None, how, values=len(sizes), bytes=total, passes=len(parts), peak=most)
        self.ctx.progress("calibrate", 0, (self.source.size or 0) * len(parts))

    def _pass(self, samples: Iterable[Feeds], inputs: Sequence[ir.Value], values: Sequence[ir.Value]) -> None:
        index = 0
        with self._session(values) as session:
            for index, feeds in enumerate(samples):
                if masks := _infinite_inputs(self.model, feeds, index) ^ self._masks:
                    name = next(iter(masks)).name
                    raise DataError(
                        f"input '{name}' is infinite in some samples only, first in or before {index}: {REMEDY}"
                    )
                for value in inputs:
                    default = value.const_value.numpy() if value.const_value is not None else None
                    if (x := feeds.get(value.name or "", default)) is not None:
                        self._show(value, x, index)
                arrays = session.run(feeds) if session else []
                arrays.reverse()
                for value in values:
                    self._show(value, arrays.pop(), index)
                self._done += 1
                self.ctx.progress("calibrate", self._done, self._total)
        self.samples = index + 1

    def _session(self, values: Sequence[ir.Value]) -> AbstractContextManager[Session | None]:
        if not values:
            return nullcontext()
        # Unoptimised runs are as fast (EfficientNet-Lite0, MiniLM, PP-LCNet), and the fusion of MatMul and Add is
        # quadratic: a transformer of 21 000 nodes loads in 1.6 s instead of 7.3.
        runtime = Runtime(optimization="none", lean=True, custom_op_library=self.ctx.custom_op_library)
        return open_session(self.model, runtime, outputs=values)

    def _show(self, value: ir.Value, x: Array, index: int) -> None:
        if x.size == 0 or value in self.infinite:
            return
        limit = huge(x.dtype)
        if x.dtype == np.float16:
            x = x.astype(np.float32)
        lo, hi = float(x.min()), float(x.max())
        if not (-limit < lo and hi < limit):
            if math.isnan(lo):
                cause = f", where input {self._infinite} is infinite" if self._masks else ""
                raise DataError(f"'{value.name}' is NaN in sample {index}{cause}: {REMEDY}")
            origin = self._origins.reason(value)
            if origin is not None:
                self.infinite[value] = origin
                return
            if math.isinf(lo) or math.isinf(hi):
                text = f"'{value.name}' is infinite in sample {index}, and nothing infinite flows into it"
                raise DataError(f"{text}: {REMEDY}")
        self.watches[value](x, lo, hi)


def each(watches: tuple[Watch, ...], x: Array, lo: float, hi: float) -> None:
    """Show one sample's values to several watches (a `Watch` itself, by `functools.partial`)."""
    for watch in watches:
        watch(x, lo, hi)


def _infinite_inputs(model: ir.Model, feeds: Feeds, index: int) -> frozenset[ir.Value]:
    """The inputs that hold an infinity in this sample."""
    out = []
    for value in model.graph.inputs:
        x = feeds.get(value.name or "")
        if x is None or x.size == 0 or x.dtype.kind != "f":
            continue
        lo, hi = float(np.min(x)), float(np.max(x))
        if math.isnan(lo):
            raise DataError(f"input '{value.name}' is NaN in sample {index}: {REMEDY}")
        if math.isinf(lo) or math.isinf(hi):
            out.append(value)
    return frozenset(out)
