"""The README's accuracy table, made from ``results/accuracy.json``; `benchmarks.table` puts it into the file."""

from __future__ import annotations

from typing import Any

from benchmarks.tasks import TASKS

TOOLS = ("onnxruntime", "onnxq")
GROUPS = ("alike", "latency", "size")
HEAD = ("model", "measure", "float", *TOOLS, *(f"{group}, {tool}" for group in GROUPS for tool in TOOLS))
# Likeness to the float model, the most telling first.
LIKENESS = {"agree": "{:.1%} same", "iou": "IoU {:.3f}", "cosine": "cosine {:.3f}"}
MEASURES = {"line_recall": "lines found", "exact": "read without error", "recall@1": "found first", "top1": "top 1"}


def accuracy_table(result: dict[str, Any]) -> str:
    """Markdown: one line a model with its own measure, likeness to float, latency and size as shares of float's."""
    by: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        by.setdefault(row["task"], {})[row["variant"]] = row
    lines = [HEAD, ("---", "---", *("---:" for _ in HEAD[2:]))]
    lines += [_line(name, rows) for name, rows in by.items() if {"float", *TOOLS} <= set(rows)]
    machine = result["machine"]
    note = (
        "Alike: to the float model's answers. Latency and size: shares of the float model's; latency on one thread of "
        f"onnxruntime {machine['onnxruntime']} CPU ({machine['machine']}), smallest of interleaved rounds."
    )
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", note])


def _line(name: str, rows: dict[str, Any]) -> tuple[str, ...]:
    task, before = TASKS[name], rows["float"]
    likeness = next(m for m in LIKENESS if m in before["metrics"])
    tools = [rows[tool] for tool in TOOLS]
    return (
        task.title,
        MEASURES.get(task.main, task.main),
        *(f"{row['metrics'][task.main]:.1%}" for row in (before, *tools)),
        *(LIKENESS[likeness].format(row["metrics"][likeness]) for row in tools),
        *(f"{_ms(row) / _ms(before):.2f}" for row in tools),
        *(f"{row['size_ratio']:.2f}" for row in tools),
    )


def _ms(row: dict[str, Any]) -> float:
    return float(row["milliseconds"]["1"])
