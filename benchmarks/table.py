"""The README's tables, made from ``results/``; nothing in them is typed by hand.

python -m benchmarks.table                     # print them
python -m benchmarks.table --write README.md   # put each between its markers, as <!-- speed --> and <!-- /speed -->
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy_table import accuracy_table
from benchmarks.harness import ROOT

MB = 1e6
Row = dict[str, Any]


def speed_table(result: dict[str, Any]) -> str:
    """Markdown: a line a case, both tools and onnxq's defaults; then growth, start-up, and what it was measured on."""
    rows = [_pair(row) for row in result["rows"] if {"onnxruntime", "onnxq"} <= set(row["tools"])]
    rows += [_alone(row) for row in result["rows"] if row["group"] == "weight-only"]
    lines = _table(("case", "onnxruntime", "onnxq, same work", "ratio", "onnxq, defaults"), rows)
    notes = ["CPU seconds; same work: the same method, weights rounded to nearest, no search for sensitive layers"]
    notes += [f"time grows {ratio:.1f}x from {name}" for name, ratio in result.get("growth", {}).items()]
    start = result.get("start_up", {})
    notes += [f"`{name}` {1e3 * seconds:.0f} ms" for name, seconds in start.items() if name != "python"]
    machine = result["machine"]
    tools = f"onnxruntime {machine['onnxruntime']}, onnx {machine['onnx']}, Python {machine['python']}"
    notes.append(f"medians of fresh processes, {machine['cpus']} cores {machine['machine']}, {tools}")
    return "\n".join([*lines, "", "; ".join(notes) + "."])


def _pair(row: Row) -> Sequence[str]:
    theirs, ours = row["tools"]["onnxruntime"], row["tools"]["onnxq"]
    if "error" in theirs or "error" in ours:
        return (_name(row), _cell(row, theirs), _cell(row, ours), "", "")
    ratio = f"{theirs['cpu'] / ours['cpu']:.0f}x faster"
    if row["group"] == "weights":
        ratio += f", {ours['peak_rss'] / theirs['peak_rss']:.2f}x memory"
    if row["group"] == "calibration":
        extra = (r["peak_rss"] - r["base_rss"] for r in (theirs, ours))
        ratio += f", memory {' / '.join(f'{e / MB:.0f}' for e in extra)} MB"
    defaults = row["tools"].get("onnxq-defaults", {})
    return (_name(row), _cell(row, theirs), _cell(row, ours), ratio, _cell(row, defaults) if defaults else "")


def _alone(row: Row) -> Sequence[str]:
    ours = row["tools"].get("onnxq", {})
    if "seconds" not in ours:
        return (_name(row), "", "fails", "", "")
    anonymous = (ours["peak_anon"] or 0) - (ours["base_anon"] or 0)
    return (_name(row), "", f"{ours['cpu']:.2f} s, +{anonymous / MB:.0f} MB anonymous memory", "", "")


def _cell(row: Row, result: Row) -> str:
    if "error" in result:
        return "fails"
    memory = f", {result['peak_rss'] / MB:.0f} MB" if row["group"] == "weights" else ""
    return f"{result['cpu']:.2f} s{memory}"


def _name(row: Row) -> str:
    kinds = {
        "conv-chain": "convolution chain",
        "transformer": "transformer stack",
        "mlp": "MLP",
        "conv-big": "convolutions",
        "activations": "large activations",
    }
    kind = kinds[row["kind"]]
    if row["group"] == "growth":
        return f"{kind}, {row['nodes']:,} nodes"
    if row["group"] == "calibration":
        return f"{row['method']}, {row['samples']} samples of {row['size']} MB activations"
    place = ", weights beside the model" if row["external"] else ""
    what = "weights only, " if row["group"] == "weight-only" else ""
    return f"{what}{kind}, {row['weight_bytes'] / MB:.0f} MB of weights{place}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    align = ["---", *("---:" for _ in head[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (head, align, *rows)]


def write(file: Path, name: str, table: str) -> None:
    """Put a table between its markers in a file.

    Raises:
        SystemExit: The file has not exactly one pair of them.
    """
    old = file.read_text(encoding="utf-8")
    new, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda found: f"{found[1]}{table}\n{found[2]}", old, flags=re.S
    )
    if count != 1:
        raise SystemExit(f"{file}: expected one pair of <!-- {name} --> and <!-- /{name} -->, found {count}")
    file.write_text(new, encoding="utf-8")


def main() -> None:
    """Print the tables or write them into a file; results that were not measured are left out, with a word."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--write", type=Path, default=None, help="file with a pair of markers for each table")
    args = parser.parse_args()
    for name, (result, make) in TABLES.items():
        source = args.results / result
        if not source.exists():
            print(f"{name}: no {source}")
            continue
        table = make(json.loads(source.read_text(encoding="utf-8")))
        if args.write is None:
            print(f"{table}\n")
        else:
            write(args.write, name, table)


TABLES = {"speed": ("quantize.json", speed_table), "accuracy": ("accuracy.json", accuracy_table)}

if __name__ == "__main__":
    main()
