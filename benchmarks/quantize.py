"""Speed and memory of `onnxq quantize` beside `onnxruntime.quantization.quantize_static`, in one run on one machine.

Same files, same random samples, QDQ, per-channel int8 weights, uint8 activations. Every measurement is a fresh process
(`benchmarks.worker`); models are built by another one. Prints medians and ratios, and writes ``results/quantize.json``,
from which ``benchmarks.table`` makes the table of the README.

    python -m benchmarks.quantize              # small sizes, about two minutes
    python -m benchmarks.quantize --full       # the sizes of the README; onnxruntime alone needs half an hour
    python -m benchmarks.quantize --only mlp   # one group
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.goals import missed
from benchmarks.harness import ROOT, build, machine, measure, start_up

MB = 1e6
TOOLS = ("onnxruntime", "onnxq")


@dataclass(frozen=True)
class Case:
    """One row: a model of some size, quantized with a method from a number of samples.

    Attributes:
        group: Which question it answers: growth, weights, calibration, weight-only.
        kind: Model in `benchmarks.synthetic`.
        size: Nodes, or megabytes.
        method: Observer, or ``weight-only``.
        samples: Calibration samples.
        tools: Who runs it.
        repeat: Processes for each tool; the median counts.
        external: Store the weights beside the model.
    """

    group: str
    kind: str
    size: int
    method: str = "minmax"
    samples: int = 4
    tools: tuple[str, ...] = TOOLS
    repeat: int = 3
    external: bool = False


def cases(full: bool) -> list[Case]:
    """The rows in the order they are printed; onnxq's own growth is measured at 1 000 and 5 000 nodes in both sets."""
    out = []
    chain, stack = ((1000, 2000, 5000), (1056, 5280)) if full else ((250, 1000), (264, 1056))
    for kind, sizes, ends in (("conv-chain", chain, (1000, 5000)), ("transformer", stack, (1056, 5280))):
        for size in sizes:
            out.append(Case("growth", kind, size, repeat=3 if size <= (1056 if full else 300) else 1))
        out += [Case("growth", kind, size, tools=("onnxq",)) for size in ends if size not in sizes]
    megabytes, batches = (400, (4, 16, 64)) if full else (64, (4, 12))
    out += [Case("weights", kind, megabytes) for kind in ("mlp", "conv-big")]
    for method in ("entropy", "percentile"):
        out += [Case("calibration", "activations", 21, method, n, repeat=1) for n in batches]
    for external in (False, True):
        out.append(Case("weight-only", "mlp", megabytes, "weight-only", 0, ("onnxq",), external=external))
    return out


def run(case: Case, folder: Path) -> dict[str, Any]:
    """All processes of a case; medians by tool. The tools take turns."""
    built = build(case.kind, case.size, folder, case.external)
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in case.tools}
    for _ in range(case.repeat):
        for tool in case.tools:
            if not any("error" in r for r in runs[tool]):
                runs[tool].append(measure(tool, case.method, case.samples, built, folder))
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
    """One printed line for a row: both tools, and how many times faster and smaller onnxq is."""
    name = f"{row['kind']} {row['size']} {'nodes' if row['group'] == 'growth' else 'MB'}"
    if row["group"] == "calibration":
        name += f", {row['method']}, {row['samples']} samples"
    parts = [f"{row['group']:<12} {name + (', external data' if row['external'] else ''):<48}"]
    for tool, r in row["tools"].items():
        parts.append(f"{tool} {r['error'][:80]}" if "error" in r else f"{tool} {r['seconds']:8.2f} s {_memory(row, r)}")
    both = [row["tools"].get(tool, {}) for tool in TOOLS]
    if all("seconds" in r for r in both):
        theirs, ours = both
        faster, memory = theirs["seconds"] / ours["seconds"], ours["peak_rss"] / theirs["peak_rss"]
        parts.append(f"{faster:6.1f}x faster, {memory:.2f}x RSS")
    return "  ".join(parts)


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
        times = {r["size"]: r["tools"].get("onnxq", {}).get("seconds") for r in rows if r["kind"] == kind}
        low, high = min((s for s in times if s >= 1000), default=0), max(times)
        if low < high and times.get(low) and times[high]:
            out[f"{kind} {high} / {low} nodes"] = round(times[high] / times[low], 2)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--full", action="store_true", help="the sizes of the README (half an hour)")
    parser.add_argument("--only", default="", help="run only cases whose group, model or method contains this")
    parser.add_argument("--tool", default="", choices=["", *TOOLS], help="run only one of the two")
    parser.add_argument("--json", type=Path, default=None, help="default: results/quantize[-small].json")
    args = parser.parse_args()
    chosen = [c for c in cases(args.full) if args.only in f"{c.group} {c.kind} {c.method}"]
    rows = []
    with tempfile.TemporaryDirectory(prefix="onnxq-bench-") as folder:
        for case in chosen:
            tools = tuple(t for t in case.tools if args.tool in ("", t))
            if tools:
                rows.append(run(Case(**{**asdict(case), "tools": tools}), Path(folder)))
                print(describe(rows[-1]), flush=True)
    result = {"machine": machine(), "full": args.full, "rows": rows}
    if not args.only:
        result["start_up"] = start_up()
        print("start-up     " + ", ".join(f"{name} {t:.3f} s" for name, t in result["start_up"].items()))
    result["growth"] = growth(rows)
    for name, ratio in result["growth"].items():
        print(f"growth       {name}: {ratio:.1f}x the time")
    for line in missed(result):
        print(f"missed       {line}")
    if not (args.only or args.tool) or args.json:
        file = args.json or ROOT / "benchmarks" / "results" / f"quantize{'' if args.full else '-small'}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {file}")


if __name__ == "__main__":
    main()
