"""Adjusted biases for people: one line a channel, the most adjusted first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import RenderableType

from onnxq.diagnostics import Diagnostic
from onnxq.report.tables import table

WHAT = {
    "raised-weight-scale": "weight scale raised",
    "empty-weight-scale": "zero weights: scale for the bias",
    "own-bias-scale": "bias scale of its own",
    "float-bias": "bias left float",
}
LIMIT = 10


def bias_table(notes: Sequence[Diagnostic]) -> list[RenderableType]:
    """The adjusted channels that `guard-bias` noted, `LIMIT` at most; nothing if there are none.

    The JSON report has all of them, in the numbers of its notes.
    """
    rows = [
        (str(note.place), row["channel"], WHAT[note.code], row.get("ratio"), row.get("scale"), row.get("error"))
        for note in notes
        if note.code in WHAT
        for row in note.numbers["channels"]
    ]
    if not rows:
        return []
    rows.sort(key=lambda row: -abs(math.log(row[3])) if row[3] and math.isfinite(row[3]) else -math.inf)
    more = f", the {LIMIT} most changed of {len(rows)}" if len(rows) > LIMIT else ""
    shown = [(*row[:3], *("" if x is None else f"{x:.3g}" for x in row[3:])) for row in rows[:LIMIT]]
    columns = ("node", "channel", "what", "times", "new scale", "error at most")
    return [table(f"Biases that int32 does not hold{more}", columns, shown, numbers=[1, 3, 4, 5])]
