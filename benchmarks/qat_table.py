"""The table of docs/training.md, made from ``results/qat.json``; nothing in it is typed by hand.

python -m benchmarks.qat_table                            # print it
python -m benchmarks.qat_table --write docs/training.md   # put it between its markers, <!-- qat -->
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.qat import RESULTS
from benchmarks.table import write
from benchmarks.tasks import TASKS

HEAD = (
    "model", "weights, rounding", "share right: float", "quantized", "trained", "1 − cosine: quantized", "trained",
    "ratio", "steps", "minutes",
)  # fmt: skip


def qat_table(result: dict[str, Any]) -> str:
    """Markdown: a line for each training."""
    lines = [HEAD, ("---", "---", *("---:" for _ in HEAD[2:]))]
    for row in result["rows"]:
        task = TASKS[row["task"]]
        right = [f"{row[which][task.main]:.1%}" for which in ("float", "quantized", "trained")]
        far = [1 - row[which]["cosine"] for which in ("quantized", "trained")]
        ratio, minutes = f"{far[1] / far[0]:.2f}", f"{row['train_seconds'] / 60:.1f}"
        lines.append((task.title, row["row"], *right, *(f"{d:.2g}" for d in far), ratio, str(row["steps"]), minutes))
    machine = result["machine"]
    note = (
        "Learned by distillation, without labels. Cosine: of all outputs on the test samples, to the float model. "
        f"onnxruntime {machine['onnxruntime']} on {machine['cpus']} cores."
    )
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", note])


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    page = parser.parse_args().write
    table = qat_table(json.loads(RESULTS.read_text(encoding="utf-8")))
    if page is None:
        print(table)
    else:
        write(page, "qat", table)


if __name__ == "__main__":
    main()
