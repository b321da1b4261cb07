"""Speed and memory of `onnxq quantize` beside `onnxruntime.quantization.quantize_static`, in one run on one machine.

Same files, same random samples, QDQ, per-channel int8 weights, uint8 activations. ``onnxq`` does the same work as
onnxruntime's tool: the same method, weights rounded to nearest, no search; ``onnxq-defaults`` is what a user gets who
sets nothing. Every measurement is a fresh process (`benchmarks.worker`); models are built by another one. Prints
medians and ratios, and writes ``results/quantize.json``, from which ``benchmarks.table`` makes the table of the README.
Ratios are of CPU seconds, which other work on the machine changes least; wall time stands beside them.

    python -m benchmarks.quantize                                      # small sizes, about two minutes
    python -m benchmarks.quantize --full                               # the sizes of the README, half an hour
    python -m benchmarks.quantize --full --only mlp --add                # one group; the file keeps its other rows
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.goals import missed
from benchmarks.harness import ROOT, build, machine, measure, start_up

MB = 1e6
TOOLS = ("onnxruntime", "onnxq")
DEFAULTS = "onnxq-defaults"
REPEAT = 3


@dataclass(frozen=True)
class Case:
    """One row: a model of some size, quantized with a method from a number of samples.

    Attributes:
        group: Which question it answers: growth, weights, calibration, weight-only.
        kind: Model in `benchmarks.synthetic`.
        size: Nodes, or megabytes.
        method: Observer, or ``weight-only``.
        samples: Calibration samples.
        tools: Who runs it, of `benchmarks.worker.TOOLS`.
        external: Store the weights beside the model.
    """

    group: str
    kind: str
    size: int
    method: str = "minmax"
    samples: int = 4
    tools: tuple[str, ...] = TOOLS
    external: bool = False


def cases(full: bool) -> list[Case]:
    """The rows in the order they are printed; onnxq's own growth is measured at 1 000 and 5 000 nodes in both sets."""
    out = []
    both = (*TOOLS, DEFAULTS)
    chain, stack = ((1000, 2000, 5000), (1056, 5280)) if full else ((250, 1000), (264, 1056))
    for kind, sizes, ends in (("conv-chain", chain, (1000, 5000)), ("transformer", stack, (1056, 5280))):
        out += [Case("growth", kind, size, tools=both) for size in sizes]
        out += [Case("growth", kind, size, tools=("onnxq",)) for size in ends if size not in sizes]
    megabytes, batches = (400, (4, 16, 64)) if full else (64, (4, 12))
    out += [Case("weights", kind, megabytes, tools=both if full else TOOLS) for kind in ("mlp", "conv-big")]
    for method in ("entropy", "percentile"):
        out += [Case("calibration", "activations", 21, method, n) for n in batches]
    for external in (False, True):
        out.append(Case("weight-only", "mlp", megabytes, "weight-only", 0, ("onnxq",), external=external))
    return out


def run(case: Case, folder: Path, patience: float) -> dict[str, Any]:
    """Processes of a case in turns, three for each tool, or fewer once a tool took ``patience`` seconds in all."""
    built = build(case.kind, case.size, folder, case.external)
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in case.tools}
    for _ in range(REPEAT):
        for tool, results in runs.items():
            if not any("error" in r for r in results) and sum(r["seconds"] for r in results) < patience:
                results.append(measure(tool, case.method, case.samples, built, folder))
    row: dict[str, Any] = {**asdict(case), "tools": {}}
    row |= {key: built[key] for key in ("nodes", "weight_bytes", "largest")}
    for tool, results in runs.items():
        failed = next((r for r in results if "error" in r), None)
        row["tools"][tool] = failed or {key: median(r[key] for r in results) for key in results[0]}
    return row


def median(values: Iterable[float | None]) -> float | None:
    """Median of the known values."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def describe(row: dict[str, Any]) -> str:
    """What is printed for a row: both tools, how much faster and smaller onnxq is, and onnxq with its defaults."""
    name = f"{row['kind']} {row['size']} {'nodes' if row['group'] == 'growth' else 'MB'}"
    if row["group"] == "calibration":
        name += f", {row['method']}, {row['samples']} samples"
    lines = [f"{row['group']:<12} {name + (', external data' if row['external'] else ''):<44}"]
    for tool, r in row["tools"].items():
        took = "" if "error" in r else f"{r['cpu']:7.2f} s CPU ({r['seconds']:.1f} s) {_memory(row, r)}"
        text = f"{tool} {took or r['error'][:80]}"
        if tool == DEFAULTS:
            lines.append(f"{'':<12} {'':<44}  {text} (calibration method, sensitive layers and rounding chosen by it)")
        else:
            lines[0] += f"  {text}"
    both = [row["tools"].get(tool, {}) for tool in TOOLS]
    if all("seconds" in r for r in both):
        theirs, ours = both
        faster, memory = theirs["cpu"] / ours["cpu"], ours["peak_rss"] / theirs["peak_rss"]
        lines[0] += f"  {faster:6.1f}x faster, {memory:.2f}x RSS"
    return "\n".join(lines)


def _memory(row: dict[str, Any], r: dict[str, Any]) -> str:
    """The kind of memory that the group is about."""
    if row["group"] == "calibration":
        return f"+{(r['peak_rss'] - r['base_rss']) / MB:5.0f} MB"
    if row["group"] == "weight-only" and r["peak_anon"]:
        above = (r["peak_anon"] - r["base_anon"]) / MB
        return f"+{above:.0f} MB anonymous (largest tensor {row['largest'] / MB:.0f} MB)"
    return f"{r['peak_rss'] / MB:6.0f} MB"


def growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """time(largest) / time(1 000) of onnxq for each kind of the growth group."""
    out = {}
    for kind in dict.fromkeys(r["kind"] for r in rows if r["group"] == "growth"):
        times = {r["size"]: r["tools"].get("onnxq", {}).get("cpu") for r in rows if r["kind"] == kind}
        low, high = min((s for s in times if s >= 1000), default=0), max(times)
        if low < high and times.get(low) and times[high]:
            out[f"{kind} {high} / {low} nodes"] = round(times[high] / times[low], 2)
    return out


def added(result: dict[str, Any], file: Path) -> dict[str, Any]:
    """A result and what an earlier one in a file has besides: other rows, and other tools of the same rows."""
    if not file.exists():
        return result
    old = json.loads(file.read_text())
    rows = {_key(row): row for row in old["rows"]}
    for row in result["rows"]:
        tools = rows.get(_key(row), {}).get("tools", {}) | row["tools"]
        rows[_key(row)] = {**row, "tools": {tool: tools[tool] for tool in (*TOOLS, DEFAULTS) if tool in tools}}
    order = [_key(asdict(case)) for case in cases(True) + cases(False)]
    merged = sorted(rows.values(), key=lambda row: order.index(_key(row)))
    return {**old, **result, "full": old["full"] and result["full"], "rows": merged}


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("group", "kind", "size", "method", "samples", "external"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--full", action="store_true", help="the sizes of the README (half an hour)")
    parser.add_argument("--only", default="", help='run only cases whose "group model size method" contains this')
    parser.add_argument("--tool", default="", choices=["", *TOOLS, DEFAULTS], help="run only this one")
    parser.add_argument("--json", type=Path, default=None, help="default: results/quantize[-small].json")
    parser.add_argument("--add", action="store_true", help="keep what the file has besides; for measuring in pieces")
    args = parser.parse_args()
    chosen = [c for c in cases(args.full) if args.only in f"{c.group} {c.kind} {c.size} {c.method}"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="onnxq-bench-") as folder:
        for case in chosen:
            tools = tuple(t for t in case.tools if args.tool in ("", t))
            if tools:
                rows.append(run(replace(case, tools=tools), Path(folder), 30 if args.full else 3))
                print(describe(rows[-1]), flush=True)
    result = {"machine": machine(), "full": args.full, "rows": rows}
    if not args.only:
        result["start_up"] = start_up()
        print("start-up     " + ", ".join(f"{name} {t:.3f} s" for name, t in result["start_up"].items()))
    file = args.json or ROOT / "benchmarks" / "results" / f"quantize{'' if args.full else '-small'}.json"
    if args.add:
        result = added(result, file)
    result["growth"] = growth(result["rows"])
    for name, ratio in result["growth"].items():
        print(f"growth       {name}: {ratio:.1f}x the time")
    for line in missed(result):
        print(f"missed       {line}")
    if args.add or args.json or not (args.only or args.tool):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {file}")


if __name__ == "__main__":
    main()
