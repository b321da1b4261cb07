"""The table of docs/four-bits.md, made from ``results/four_bits.json``; nothing in it is typed by hand.

python -m benchmarks.four_bits_table                             # print it
python -m benchmarks.four_bits_table --write docs/four-bits.md   # put it between its markers, <!-- four-bits -->
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.four_bits import FOUR_BIT_TASKS, RESULTS
from benchmarks.table import write

Row = dict[str, Any]
HEAD = ("model", "variant", "measure", "like float", "like float, true", "MB", "latency", "seconds")
MEASURES = {
    "efficientnet": ("top1", "top 1 {:.1%}"),
    "orientation": ("accuracy", "right {:.1%}"),
    "minilm": ("recall@1", "found first {:.1%}"),
    "smollm2": ("perplexity", "perplexity {:.2f}"),
}
LIKENESS = {"agree": "{:.1%} same", "cosine": "cosine {:.3f}"}


def four_bits_table(result: dict[str, Any]) -> str:
    """Markdown: a line a variant; what it answers, likeness to float on both sessions, size, latency, time to make."""
    lines = [HEAD, ("---", "---", *("---:" for _ in HEAD[2:]))]
    base: dict[str, float] = {}
    for row in result["rows"]:
        if row["variant"] == "float":
            base[row["task"]] = row["milliseconds"].get("1", 0.0)
        lines.append(_line(row, base.get(row["task"], 0.0)))
    machine = result["machine"]
    note = (
        "Like float: answers beside the float model's, on onnxruntime's default session and on one that computes each "
        "Q/DQ node as ONNX writes it (true). Latency: share of the float model's, one thread, smallest of interleaved "
        f"rounds. Seconds: to quantize. onnxruntime {machine['onnxruntime']} CPU ({machine['machine']}, "
        f"{machine['cpus']} cores)."
    )
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", note])


def _line(row: Row, base: float) -> tuple[str, ...]:
    title = FOUR_BIT_TASKS[row["task"]].title
    if row["error"]:
        return (title, row["variant"], "fails", *[""] * (len(HEAD) - 3))
    metric, form = MEASURES[row["task"]]
    made = "" if row["variant"] == "float" else f"{row['seconds']:.1f}"
    latency = f"{row['milliseconds']['1'] / base:.2f}" if base and "1" in row["milliseconds"] else ""
    likeness = (_likeness(row, before) for before in ("", "true "))
    return (
        title,
        row["variant"],
        form.format(row["metrics"][metric]),
        *likeness,
        f"{row['megabytes']:.1f}",
        latency,
        made,
    )


def _likeness(row: Row, before: str) -> str:
    found = {name: row["metrics"].get(before + name) for name in LIKENESS}
    return ", ".join(LIKENESS[name].format(value) for name, value in found.items() if value is not None)


def main() -> None:
    """Print the table or write it into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, default=None, help="file with one pair of markers")
    args = parser.parse_args()
    table = four_bits_table(json.loads(args.results.read_text(encoding="utf-8")))
    if args.write is None:
        print(table)
    else:
        write(args.write, "four-bits", table)


if __name__ == "__main__":
    main()
