"""Defects: what breaks a healthy layer, and what a linter should say of it where."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto

from onnxq.diagnostics import Place
from tests.defects.draft import Draft
from tests.defects.layers import Layer

Make = Callable[[Draft, random.Random], Place]
DEFECTS: dict[str, Defect] = {}


@dataclass(frozen=True)
class Defect:
    """One kind of defect.

    Attributes:
        name: Kebab-case name.
        code: The rule that should find it.
        title: What is wrong, in words; the first line of the docstring of ``make``.
        make: Breaks a draft, and tells where.
        layers: What it is tried on.
        target: The target that it is a defect for; None for any.
        also: Codes of other errors and warnings that are true, too, with the reason.
        alters: Whether the model computes something else for other reasons, such as operators that came with it.
    """

    name: str
    code: str
    title: str
    make: Make
    layers: tuple[Layer, ...]
    target: str | None = None
    also: Mapping[str, str] = field(default_factory=dict)
    alters: bool = False


@dataclass(frozen=True)
class Case:
    """A defect in one layer.

    Attributes:
        defect: Which.
        layer: What it is put into.
        seed: Of channels and sizes that are taken at random.
    """

    defect: Defect
    layer: Layer
    seed: int

    def __str__(self) -> str:
        return f"{self.defect.code}-{self.defect.name}-{self.layer}"

    def healthy(self) -> ModelProto:
        """The layer without the defect."""
        return self.layer.draft().model()

    def broken(self, folder: Callable[[], Path]) -> tuple[ModelProto | bytes | Path, Place]:
        """The broken model, and where it is broken.

        Args:
            folder: Gives a folder where files may be written; asked only where there are any.
        """
        draft = self.layer.draft()
        place = self.defect.make(draft, random.Random(self.seed))
        if draft.spoil is None and draft.files is None:
            return draft.model(), place
        data = draft.model().SerializeToString()
        if draft.spoil is not None:
            data = draft.spoil(data)
        if draft.files is None:
            return data, place
        here = folder()
        for name, content in {**draft.files, "model.onnx": data}.items():
            (here / name).write_bytes(content)
        return here / "model.onnx", place


def defect(
    code: str,
    name: str,
    layers: Iterable[Layer],
    *,
    target: str | None = None,
    also: Mapping[str, str] | None = None,
    alters: bool = False,
) -> Callable[[Make], Make]:
    """Register a function that breaks a draft as a defect."""

    def register(make: Make) -> Make:
        if name in DEFECTS:
            raise ValueError(f"two defects are called '{name}'")
        title = (make.__doc__ or "").strip().splitlines()[0].rstrip(".")
        DEFECTS[name] = Defect(name, code, title, make, tuple(layers), target, also or {}, alters)
        return make

    return register
