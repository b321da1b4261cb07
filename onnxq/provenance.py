"""Where a value comes from: which value of the model that a run began with it stands for.

A run marks the values of the main graph with their names (`start`). A value that takes over from another one takes over
its mark (`inherit`, part of `onnxq.edit.replace_uses`); one that holds something else from now on loses it (`changed`).
What is written (`finish`) are only the marks that a name does not tell: a value without a mark stands for the value of
its own name. So a run that renames nothing writes nothing. Marks from an earlier run stay: they lead back to the first
model.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

SOURCE_KEY = "onnxq.source"
"""Metadata of a value: the name it stands for; empty for one that stands for nothing in the first model."""


def start(model: ir.Model) -> frozenset[str]:
    """Mark the values of the main graph, except those that carry a mark from an earlier run.

    Returns:
        Their names, for `finish`.
    """
    names = set()
    for value in _values(model):
        if value.name:
            value.metadata_props.setdefault(SOURCE_KEY, value.name)
            names.add(value.name)
    return frozenset(names)


def finish(model: ir.Model, names: frozenset[str]) -> None:
    """Drop the marks that repeat a name; say of a new value under a name from ``names`` that it stands for nothing."""
    for value in _values(model):
        mark = value.metadata_props.get(SOURCE_KEY)
        if mark is None:
            if value.name in names:
                value.metadata_props[SOURCE_KEY] = ""
        elif mark == value.name:
            del value.metadata_props[SOURCE_KEY]


def inherit(new: ir.Value, old: ir.Value) -> None:
    """``new`` holds what ``old`` held; a mark of its own stays, for then both stand for the same numbers."""
    mark = old.metadata_props.get(SOURCE_KEY)
    if mark is not None:
        new.metadata_props.setdefault(SOURCE_KEY, mark)


def changed(*values: ir.Value) -> None:
    """These values hold something else than they did; to be called before `inherit` gives them a new meaning."""
    for value in values:
        value.metadata_props.pop(SOURCE_KEY, None)


def source_of(value: ir.Value) -> str:
    """The name a value stands for; empty if none."""
    return value.metadata_props.get(SOURCE_KEY, value.name or "")


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs
