"""The tables of docs/lint-defects.md, made from ``results/lint.json``; nothing in them is typed by hand.

python -m benchmarks.lint_table                               # print them
python -m benchmarks.lint_table --write docs/lint-defects.md  # put them between <!-- defects --> and <!-- speed -->
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.lint import RESULTS
from benchmarks.table import write

Row = dict[str, Any]


def defect_table(result: Row) -> str:
    """Markdown: a line a kind of defect, how many of its cases each tool catches."""
    found = result["defects"]
    tools = list(found["seconds"])
    head = ("", "defect", "cases", *tools, "error")
    lines = [head, ("---", "---", *("---:" for _ in head[2:]))]
    for row in found["rows"]:
        cells = [_share(row, tool) for tool in tools]
        lines.append((row["code"], _title(row), str(row["cases"]), *cells, _error(row)))
    total = sum(row["cases"] for row in found["rows"])
    sums = [sum(row["caught"][tool] for row in found["rows"]) for tool in tools]
    lines.append(("", "**all**", f"**{total}**", *(f"**{n / total:.0%}**" for n in sums), ""))
    ours = found["seconds"]["onnxq"]
    times = ", ".join(f"{tool} {found['seconds'][tool] / ours:.2g}x" for tool in tools if tool != "onnxq")
    machine = result["machine"]
    peers = ", ".join(f"{name} {version}" for name, version in found["tools"].items() if version)
    note = (
        "Caught by a peer: it says something of the broken model that it does not say of the healthy one; by "
        "onnxruntime: a default session does not load it, or stops when it runs (r: all of them only then); by onnxq: "
        "the right rule at the right node. Error: the largest relative difference of onnxruntime's output to that of "
        "the healthy model, where both run and nothing else was changed. CPU time beside onnxq's for the same models: "
        f"{times}. "
        f"onnx {machine['onnx']}, onnxruntime {machine['onnxruntime']}, {peers}."
    )
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", note])


def _title(row: Row) -> str:
    target = f" [{row['target']}]" if row["target"] else ""
    return f"{row['title']}{target}"


def _share(row: Row, tool: str) -> str:
    count = row["caught"][tool]
    if not count:
        return ""
    text = "all" if count == row["cases"] else str(count)
    return f"{text} r" if tool == "onnxruntime" and row["run"] == count else text


def _error(row: Row) -> str:
    if not row["error"]:
        return ""
    return "NaN" if row["error"] >= 1e9 else f"{row['error']:.2g}"


def speed_table(result: Row) -> str:
    """Markdown: what was measured, and what was wanted."""
    found = result["speed"]
    lines = [("what", "CPU", "wall", "peak memory"), ("---", "---:", "---:", "---:")]
    for row in found["models"]:
        lines.append((f"{row['kind']}, {row['nodes']:,} nodes, all rules", *_times(row["lint"]), _memory(row)))
    row = found["external"]
    lines.append(
        (f"int8 weights of {row['megabytes']} MB beside the model, not read", *_times(row["lint"]), _memory(row))
    )
    row = found["checker"]
    nodes = f"{found['models'][0]['nodes']:,} nodes in memory"
    lines.append((f"onnx.checker, {nodes}", *_times(row["checker"]), ""))
    lines.append((f"wire rules of group 0, {nodes}", *_times(row["wire"]), ""))
    lines.append((f"all rules of group 0, {nodes}", *_times(row["group 0"]), ""))
    lines.append(("`onnxq rule OQ303`, whole process", *_times(found["rule"]), ""))
    machine = result["machine"]
    where = f"{machine['cpus']} cores {machine['machine']}, Python {machine['python']}"
    note = f"The smallest of three fresh processes after imports, of seven for the page of a rule; {where}."
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", note])


def _times(row: Row) -> tuple[str, str]:
    return f"{row['cpu']:.2f} s", f"{row['seconds']:.2f} s"


def _memory(row: Row) -> str:
    return f"{row['peak_rss'] / 1e6:.0f} MB"


def main() -> None:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    page = parser.parse_args().write
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name, table in (("defects", defect_table(result)), ("speed", speed_table(result))):
        if page is None:
            print(f"{table}\n")
        else:
            write(page, name, table)


if __name__ == "__main__":
    main()
