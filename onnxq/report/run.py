"""The report of a quantization run: what became of the layers and why, weights before and after, notes, time.

The JSON form is versioned, sorted and free of times, so two runs of the same job give the same bytes and a change in a
model or tool shows up as a diff.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from onnxq.diagnostics import Diagnostic
from onnxq.report.bias import bias_table
from onnxq.report.tables import counts, human_bytes, share, table
from onnxq.report.tables import to_text as render
from onnxq.wording import plural

if TYPE_CHECKING:
    from onnxq.context import Report

FORMAT = "onnxq-report-1"
STATUSES = ("integer", "moves", "dynamic", "weight-only", "float")


def to_json(report: Report) -> dict[str, Any]:
    """The report as JSON-able data with stable keys.

    ``report.tables`` may hold ``plan`` (as `onnxq.planfile.plan_json` makes it) and ``weights`` (``before`` and
    ``after``, in bytes); they become ``layers``, ``summary`` and ``weights``. Any other table is copied.
    """
    nodes = _nodes(report)
    notes: dict[str, list[Diagnostic]] = {}
    for note in report.notes:
        notes.setdefault(note.code, []).append(note)
    return {
        "format": FORMAT,
        "summary": {status: sum(n["status"] == status for n in nodes.values()) for status in STATUSES},
        "quantized": dict(zip(("layers", "of"), quantized_layers(nodes), strict=True)),
        "reasons": [
            {"status": status, "code": code, "nodes": sum(ops.values()), "ops": dict(sorted(ops.items()))}
            for (status, code), ops in _reasons(nodes)
        ],
        "weights": report.tables.get("weights", {}),
        "notes": [
            {"code": code, "count": len(group), "notes": [_plain(n.to_json()) for n in sorted(group, key=_place)]}
            for code, group in sorted(notes.items())
        ],
        "layers": {name: _plain(node) for name, node in sorted(nodes.items())},
        "tables": {k: _plain(t) for k, t in sorted(report.tables.items()) if k not in ("plan", "weights")},
    }


def to_text(report: Report, width: int = 120) -> str:
    """The report for people, without colour."""
    return render(parts(report), width)


def parts(report: Report) -> list[RenderableType]:
    """The report for people, as pieces for a `rich` console: layers, why, weights, notes, time."""
    nodes = _nodes(report)
    out: list[RenderableType] = []
    if nodes:
        out.append(plan_table(nodes))
        out.append(Text(quantized_text(nodes)))
        out += reason_tables(nodes)
    weights = report.tables.get("weights")
    if weights:
        before, after = weights["before"], weights["after"]
        out.append(Text(f"Weights  {human_bytes(before)} -> {human_bytes(after)} ({share(after, before)})"))
    if report.notes:
        out += bias_table(report.notes)
        out.append(note_table(report.notes))
    if report.seconds:
        steps: dict[str, float] = {}
        for step, seconds in report.seconds:
            steps[step] = steps.get(step, 0.0) + seconds
        ordered = sorted(steps.items(), key=lambda item: -item[1])
        slowest = ", ".join(f"{step} {seconds:.2f} s" for step, seconds in ordered[:5])
        out.append(Text(f"Time  {sum(steps.values()):.2f} s: {slowest}"))
    return out


def quantized_layers(nodes: dict[str, dict[str, Any]]) -> tuple[int, int]:
    """How many nodes with constant weights a plan stores as integers, and how many there are."""
    layers = [node for node in nodes.values() if node.get("layer")]
    return sum(node["status"] != "float" for node in layers), len(layers)


def quantized_text(nodes: dict[str, dict[str, Any]]) -> str:
    """`quantized_layers` in words."""
    done, total = quantized_layers(nodes)
    if not total:
        return "no layers with float weights"
    return f"{done} of {plural(total, 'layer')} quantized"


def plan_table(nodes: dict[str, dict[str, Any]]) -> RenderableType:
    """How many nodes of which op become what."""
    rows = []
    for status in STATUSES:
        ops = Counter(n["op"] for n in nodes.values() if n["status"] == status)
        if ops:
            rows.append((status, sum(ops.values()), _ops(ops)))
    return table("Layers", ("becomes", "nodes", "ops"), rows, numbers=[1])


def reason_tables(nodes: dict[str, dict[str, Any]]) -> list[RenderableType]:
    """Why nodes are left float; empty when none is."""
    rows = []
    for (status, code), ops in _reasons(nodes):
        if status == "float":
            members = [n for n in nodes.values() if (n["status"], n["code"]) == (status, code)]
            reasons = Counter(n["reason"] for n in members)
            more = f" (+{len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
            rows.append((code, sum(ops.values()), _ops(ops), reasons.most_common(1)[0][0] + more))
    return [table("Left float", ("why", "nodes", "ops", "reason"), rows, numbers=[1])] if rows else []


def layer_table(nodes: dict[str, dict[str, Any]]) -> RenderableType:
    """The decision for every node with its reason, in model order."""
    rows = ((name, n["op"], n["status"], n["code"], n["reason"]) for name, n in nodes.items())
    return table("Plan", ("node", "op", "becomes", "why", "reason"), rows)


def note_table(notes: list[Diagnostic]) -> RenderableType:
    """Notes by code with their number and one example; errors first."""
    groups: dict[tuple[int, str], list[Diagnostic]] = {}
    rank = {"error": 0, "warning": 1, "info": 2}
    for note in notes:
        groups.setdefault((rank[note.severity.value], note.code), []).append(note)
    rows = []
    for (_, code), group in sorted(groups.items()):
        first = min(group, key=_place)
        where = str(first.place)
        rows.append((code, first.severity.value, len(group), f"{where}: {first.message}" if where else first.message))
    return table("Notes", ("code", "", "count", "first"), rows, numbers=[2])


def _nodes(report: Report) -> dict[str, dict[str, Any]]:
    nodes: dict[str, dict[str, Any]] = report.tables.get("plan", {}).get("nodes", {})
    return nodes


def _reasons(nodes: dict[str, dict[str, Any]]) -> list[tuple[tuple[str, str], Counter[str]]]:
    """Ops by status and reason code, in the order of `STATUSES`, most nodes first."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for node in nodes.values():
        groups.setdefault((node["status"], node["code"]), Counter())[node["op"]] += 1
    return sorted(groups.items(), key=lambda g: (STATUSES.index(g[0][0]), -sum(g[1].values()), g[0][1]))


def _ops(ops: Counter[str]) -> str:
    return counts(sorted(ops.items(), key=lambda item: (-item[1], item[0])), limit=6)


def _place(note: Diagnostic) -> tuple[str, str, str, str]:
    return (note.place.graph, note.place.node, note.place.value, note.message)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity, and NumPy scalars are not numbers to it."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
