"""`onnxq train` for people: held-out loss and SQNR before and after, and what it took."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from onnxq.context import Report
from onnxq.report import run
from onnxq.report.tables import table
from onnxq.report.tables import to_text as render
from onnxq.wording import plural

_ROWS = (("loss", "loss", "{:.4g}"), ("SQNR, dB", "sqnr_db", "{:.1f}"), ("accuracy", "accuracy", "{:.1%}"))


def to_text(report: Report, width: int = 120) -> str:
    """The report for people, without colour."""
    return render(parts(report), width)


def parts(report: Report) -> list[RenderableType]:
    """The report as pieces for a `rich` console: what quantizing came to, if it was part of it, then the training."""
    found = report.tables["training"]
    before, after = found["before"], found["after"]
    rows = [
        (name, *("" if score[key] is None else form.format(score[key]) for score in (before, after)))
        for name, key, form in _ROWS
        if before[key] is not None or after[key] is not None
    ]
    samples = found["samples"]
    title = f"Training on {plural(samples['train'], 'sample')}, judged on {samples['held_out']} held-out ones"
    return [*run.parts(report), table(title, ("", "before", _kept(found)), rows, numbers=(1, 2)), Text(_effort(found))]


def _kept(found: dict[str, Any]) -> str:
    """What the column of the result is of."""
    if found["after"] == found["before"]:
        return "kept as it was"
    if "blocks" in found:
        better = sum(block["best_epoch"] > 0 for block in found["blocks"])
        return f"{better} of {plural(len(found['blocks']), 'block')} trained"
    return f"after epoch {found['best_epoch']} of {len(found['epochs'])}"


def _effort(found: dict[str, Any]) -> str:
    """Options, parameters, steps and time, in a sentence."""
    options, speed, batch = found["options"], found["steps_per_second"], found["samples"]["batch"]
    values = [f"{part['values']} in {plural(part['tensors'], kind)}" for kind, part in found["parameters"].items()]
    loss = "blocks" if "blocks" in found else options["loss"]
    how = f"{loss}, {options['optimizer']}, learning rate {options['lr']:g} ({options['schedule']})"
    took = f"{plural(found['steps'], 'step')} of {plural(batch, 'sample')} in {found['seconds']:.1f} s"
    took += f" ({speed:.3g} a second)" if speed else ""
    took += f", after {found['resumed_steps']} of a checkpoint" if found["resumed_steps"] else ""
    return "; ".join(part for part in (how, ", ".join(values), took) if part)
