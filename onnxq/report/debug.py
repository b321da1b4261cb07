"""`onnxq debug` for people: one row a value, worst first, then what to do."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from onnxq.diagnosis.blame import Debugging, Error, Tensor
from onnxq.report.tables import table
from onnxq.report.tables import to_text as render
from onnxq.wording import plural

_HOW = {
    "provenance": "by provenance",
    "names": "by name, since the quantized model does not say where its values come from",
}


def to_text(found: Debugging, top: int | None = None, width: int = 120) -> str:
    """The findings for people, without colour."""
    return render(parts(found, top), width)


def parts(found: Debugging, top: int | None = None) -> list[RenderableType]:
    """The findings as pieces for a `rich` console; at most ``top`` rows."""
    shown = found.tensors[:top]
    columns = ("value", "node", "op", "local", "weights", "inputs", "rounding", "cumulative", "cosine")
    title = f"SQNR in dB of {plural(found.samples, 'sample')} of {found.data}, worst by itself first"
    out: list[RenderableType] = [table(title, columns, map(_row, shown), numbers=range(3, 9))]
    more = f", {len(found.tensors) - len(shown)} not shown" if len(shown) < len(found.tensors) else ""
    total = found.matched + len(found.alone)
    lines = [f"{found.matched} of {total} values matched {_HOW[found.matched_by]}; {len(found.tensors)} compared{more}"]
    out.append(Text("\n".join([*lines, *found.notes])))
    advice = list(found.advice())
    if advice:
        out.append(Text("\n".join(advice), style="yellow"))
    return out


def _row(tensor: Tensor) -> tuple[str, ...]:
    errors = (tensor.local, tensor.weights, tensor.inputs, tensor.rounding, tensor.cumulative)
    return (tensor.name, tensor.node, tensor.op, *map(_cell, errors), f"{tensor.cumulative.cosine:.6f}")


def _cell(error: Error | None) -> str:
    if error is None:
        return ""
    if error.broken:
        return "broken"
    return "exact" if error.sqnr_db is None else f"{error.sqnr_db:.1f}"
