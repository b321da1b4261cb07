"""The table of docs/bias.md, made from ``results/bias.json``; nothing in it is typed by hand.

python -m benchmarks.bias_table                        # print it
python -m benchmarks.bias_table --write docs/bias.md   # put it between its markers, <!-- bias -->
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.bias import RESULTS, tools
from benchmarks.table import write


def bias_table(result: dict[str, Any]) -> str:
    """Markdown: a line for each net and types, each tool with the worse of its two sessions."""
    names = list(tools("uint8", "int8"))
    lines = [("net", "types", *names), ("---", "---", *("---:" for _ in names))]
    for net, types in dict.fromkeys((row["net"], row["types"]) for row in result["rows"]):
        cells = []
        for name in names:
            found = [r for r in result["rows"] if (r["net"], r["types"], r["tool"]) == (net, types, name)]
            worst = max(found, key=lambda row: float(row["steps"]))
            fails = f"{worst['cosine']:.5f}, {worst['channel']:.3f}, {worst['steps']:.0f}"
            cells.append("fails" if worst["error"] else fails)
        lines.append((net, types, *cells))
    machine = result["machine"]
    note = (
        "Cosine to float of the whole output, of the worst channel, and the largest error in output steps against the "
        f"best that a quantized layer can do; the worse of both sessions. onnxruntime {machine['onnxruntime']}."
    )
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", note])


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    page = parser.parse_args().write
    table = bias_table(json.loads(RESULTS.read_text(encoding="utf-8")))
    if page is None:
        print(table)
    else:
        write(page, "bias", table)


if __name__ == "__main__":
    main()
