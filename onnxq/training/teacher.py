"""The float model that shows a quantized one what it should compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.calibration.feeds import Feeds
from onnxq.context import Context
from onnxq.errors import OptionError, near
from onnxq.session import Runtime, Session, open_session
from onnxq.training.data import Examples
from onnxq.training.losses import compared
from onnxq.training.samples import Example
from onnxq.training.shares import Shares

Array = np.ndarray[Any, np.dtype[Any]]

MEMORY = 1 << 29
"""Bytes of targets that are kept; where all of them take more, each batch is computed when it is needed."""


@dataclass(frozen=True)
class Teacher:
    """A float model in a session.

    Attributes:
        session: Returns what losses compare, and the model's outputs.
        aims: Which of the session's values a loss compares an output with, by output name.
        shown: Which of them is the output.
    """

    session: Session
    aims: Mapping[str, int]
    shown: Mapping[str, int]

    def targets(self, feeds: Feeds) -> Feeds:
        """What a loss compares each output with, float32."""
        values = self.session.run(feeds)
        return {name: values[i].astype(np.float32, copy=False) for name, i in self.aims.items()}

    def outputs(self, feeds: Feeds) -> Feeds:
        """The model's outputs."""
        values = self.session.run(feeds)
        return {name: values[i] for name, i in self.shown.items()}


@contextmanager
def open_teacher(model: ir.Model, outputs: Sequence[str], inputs: Sequence[str], runtime: Runtime) -> Iterator[Teacher]:
    """A teacher for some outputs of a model with these inputs.

    Raises:
        OptionError: The teacher lacks one of the outputs, or wants other inputs.
    """
    by_name = {v.name or "": v for v in model.graph.outputs}
    for name in outputs:
        if name not in by_name:
            raise OptionError(f"the teacher has no output '{name}'{near(name, by_name)}")
    for name in (v.name or "" for v in model.graph.inputs if not v.is_initializer()):
        if name not in inputs:
            raise OptionError(f"the teacher wants an input '{name}', which the model does not have{near(name, inputs)}")
    aims = {name: compared(by_name[name], "distill") for name in outputs}
    values = list(dict.fromkeys([*aims.values(), *(by_name[name] for name in outputs)]))
    place = {value: i for i, value in enumerate(values)}
    with open_session(model, runtime, outputs=values) as session:
        shown = {name: place[by_name[name]] for name in outputs}
        yield Teacher(session, {name: place[value] for name, value in aims.items()}, shown)


Aims = Callable[[Sequence[int], Example], Feeds]
"""Gives the targets of the examples of some numbers, which together are one example."""


class Targets:
    """What a teacher wants, by numbers of examples: all computed beforehand if they fit into memory.

    They are computed in batches of neighbours or, where they are not kept, in the very batches that are trained on: the
    same numbers in the same batches whenever a training is run or taken up again.
    """

    def __init__(
        self, teacher: Teacher, examples: Examples, shares: Shares, ctx: Context, *, limit: int = MEMORY
    ) -> None:
        self._teacher = teacher
        self._kept: list[Feeds] | None = []
        for start in range(0, len(examples), shares.batch):
            numbers = range(start, min(start + shares.batch, len(examples)))
            targets = teacher.targets(examples.batch(numbers).feeds)
            if start == 0:
                total = sum(a.nbytes for a in targets.values()) * len(examples) / len(numbers)
                if total > limit or not all(_has_rows(a, len(numbers)) for a in targets.values()):
                    why = f"targets of all samples take {total / 1e6:.3g} MB: they are computed again in each epoch"
                    ctx.note("targets-not-kept", None, why, bytes=int(total))
                    self._kept = None
                    return
            if len(numbers) == 1:
                self._kept.append(targets)
            else:
                self._kept += [{k: v[i : i + 1] for k, v in targets.items()} for i in range(len(numbers))]
            ctx.progress("teacher", numbers.stop, len(examples))

    def __call__(self, numbers: Sequence[int], example: Example) -> Feeds:
        """Targets of the examples of these numbers, which together are ``example``."""
        if self._kept is None:
            return self._teacher.targets(example.feeds)
        if len(numbers) == 1:
            return self._kept[numbers[0]]
        return {k: np.concatenate([self._kept[i][k] for i in numbers]) for k in self._kept[numbers[0]]}


def given(numbers: Sequence[int], example: Example) -> Feeds:
    """Targets that came with the data."""
    return example.targets


def _has_rows(array: Array, rows: int) -> bool:
    return rows == 1 or (array.ndim > 0 and array.shape[0] == rows)
