"""`onnxq inspect` for people: a few compact tables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from onnxq.inspection import Inspection, Port
from onnxq.report.tables import counts, human_bytes, share, table
from onnxq.report.tables import to_text as render
from onnxq.wording import plural

SHOWN = 10
"""Rows of a table that are worth a look; the JSON form holds all."""


def to_text(found: Inspection, width: int = 120) -> str:
    """The inspection for people, without colour."""
    return render(parts(found), width)


def parts(found: Inspection) -> list[RenderableType]:
    """The inspection as pieces for a `rich` console."""
    out: list[RenderableType] = [_head(found), _ports(found), _ops(found)]
    if found.weights:
        out.append(_weights(found))
    if found.pairs:
        rows = [(p.role, p.spec, p.count) for p in found.pairs]
        out.append(table("Q/DQ pairs", ("on", "stored as", "pairs"), rows, numbers=[2]))
    if found.layers:
        out.append(_layers(found))
    return out


def _head(found: Inspection) -> Text:
    size = human_bytes(found.file_bytes) if found.file_bytes else "in memory"
    if found.external_bytes:
        size += f" + {human_bytes(found.external_bytes)} in {', '.join(found.external_files[:3])}"
        size += f" and {plural(len(found.external_files) - 3, 'more file')}" if len(found.external_files) > 3 else ""
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    lines = [
        f"{found.file or 'model'}  {size}",
        f"IR {found.ir_version}, opset {opsets}" + (f", by {found.producer}" if found.producer else ""),
    ]
    if found.functions:
        lines.append(f"functions: {', '.join(found.functions)}")
    lines += [f"{key}: {_short(value)}" for key, value in found.metadata.items()]
    return Text("\n".join(lines))


def _short(text: str, limit: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _ports(found: Inspection) -> RenderableType:
    def row(kind: str, port: Port) -> tuple[str, str, str, str]:
        shape = "?" if port.shape is None else f"[{', '.join(map(str, port.shape))}]"
        return kind, port.name, port.type, shape

    rows = [row("in", p) for p in found.inputs] + [row("out", p) for p in found.outputs]
    return table("Inputs and outputs", ("", "name", "type", "shape"), rows)


def _ops(found: Inspection) -> RenderableType:
    nested = sum(op.nested for op in found.ops)
    inside = f", {nested} of them in {found.subgraphs} subgraphs and functions" if nested else ""
    listed = counts((op.op, op.count) for op in found.ops)
    text = Text()
    text.append(f"Nodes  {found.nodes}{inside}", style="bold")
    text.append(f"\n{listed}" if listed else "")
    return text


def _weights(found: Inspection) -> RenderableType:
    total = found.weight_bytes
    rows = [(w.op, w.type, w.tensors, human_bytes(w.bytes), share(w.bytes, total)) for w in found.weights[:SHOWN]]
    rest = found.weights[SHOWN:]
    if rest:
        size = sum(w.bytes for w in rest)
        rows.append((f"… {len(rest)} more", "", sum(w.tensors for w in rest), human_bytes(size), share(size, total)))
    title = f"Weights  {human_bytes(total)}"
    return table(title, ("used by", "stored as", "tensors", "bytes", "share"), rows, numbers=[2, 3, 4])


def _layers(found: Inspection) -> RenderableType:
    total = found.weight_bytes
    rows = []
    for r in found.layers:
        why, *others = r.reasons or [""]
        more = f" (+{len(others)} other reasons)" if others else ""
        statuses = [n or "" for n in (r.integer, r.dynamic, r.weight_only, r.float)]
        rows.append((r.op, *statuses, share(r.float_bytes, total) if r.float else "", why + more))
    columns = ("op", "integer", "dynamic", "weight-only", "float", "of weights", "why float")
    return table(f"Layers on {found.target}", columns, rows, numbers=[1, 2, 3, 4, 5])
