"""Accuracy, size and latency on real models: float, onnxruntime's static quantizer, onnxq's default, in one run.

python -m benchmarks.accuracy                            all tasks, all quantizers
python -m benchmarks.accuracy --tasks ocr-rec,magika --quantizers onnxq
python -m benchmarks.accuracy --tasks magika --file my.onnx     judge any file

Prints a table a task and what is missed of the goals; writes ``results/accuracy.json``, from which `benchmarks.table`
makes the table of the README.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine
from benchmarks.latency import latency
from benchmarks.peers import onnxruntime_static
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Feed, Metrics, Task
from models.fetch import ROOT, NotServed

Quantizer = Callable[[Path, list[Feed], Path], object]
"""Writes the quantized form of a model file: (model, calibration feeds, output file)."""


@dataclass
class Row:
    """One model file on one task; latencies in ms by thread count."""

    task: str
    variant: str
    metrics: Metrics
    megabytes: float
    size_ratio: float = 1.0
    seconds: float = 0.0
    milliseconds: dict[int, float] = field(default_factory=dict)
    speedup: dict[int, float] = field(default_factory=dict)


def onnxq_default(model: Path, feeds: list[Feed], out: Path) -> None:
    """The default recipe, path to path."""
    import onnxq

    onnxq.quantize(model, data=feeds, output=out)


# The default may be this much slower than onnxruntime's tool: noise, or layers left float for accuracy.
SLOWER, SLOWER_FOR_ACCURACY = 1.03, 1.15
LARGEST = 0.35

QUANTIZERS: dict[str, Quantizer] = {"onnxruntime": onnxruntime_static, "onnxq": onnxq_default}


def judge(task: Task, file: Path, variant: str, seconds: float = 0.0) -> Row:
    """Metrics and size of one model file."""
    size = file.stat().st_size
    metrics = task.evaluate(file, task.reference())
    return Row(task.name, variant, metrics, size / 1e6, size / task.model().stat().st_size, seconds)


def evaluate(task: Task, quantize: Quantizer, variant: str, out: Path) -> Row:
    """Quantize a task's model into ``out`` and judge the result."""
    start = time.perf_counter()
    quantize(task.model(), task.calibration(), out)
    return judge(task, out, variant, time.perf_counter() - start)


def compare(
    task: Task, quantizers: dict[str, Quantizer], files: Sequence[Path], threads: Sequence[int], folder: Path
) -> list[Row]:
    """The rows of one task: the float model, each quantizer, each given file; latencies measured side by side."""
    models = [task.model()]
    rows = [judge(task, task.model(), "float")]
    for variant, quantize in quantizers.items():
        models.append(folder / f"{task.name}.{variant}.onnx")
        rows.append(evaluate(task, quantize, variant, models[-1]))
    for file in files:
        models.append(file)
        rows.append(judge(task, file, file.stem))
    middle = len(task.test_feeds) // 2
    for count in threads:
        for row, ms in zip(rows, latency(models, task.test_feeds[middle : middle + 3], count), strict=True):
            row.milliseconds[count] = ms
            row.speedup[count] = rows[0].milliseconds[count] / ms
    return rows


def print_rows(task: Task, rows: Sequence[Row], width: int = 120) -> None:
    """One task's rows as a table; size is the share of the float file, speed-ups are over the float model."""
    table = Table(title=f"{task.title}, {len(task.test_feeds)} samples", title_justify="left")
    names, threads = list(rows[-1].metrics), list(rows[0].milliseconds)
    latencies = [f"{what}, {'1 thread' if t == 1 else f'{t} threads'}" for t in threads for what in ("ms", "speed-up")]
    for head in ("model", *names, "MB", "size", *latencies):
        table.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        cells = [f"{row.metrics[n]:.4f}" if n in row.metrics else "" for n in names]
        cells += [f"{row.megabytes:.2f}", f"{row.size_ratio:.1%}"]
        for t in threads:
            cells += [f"{row.milliseconds[t]:.2f}", f"{row.speedup[t]:.2f}"]
        table.add_row(row.variant, *cells)
    Console(width=max(width, Console().width)).print(table)


def missed(task: Task, rows: Sequence[Row]) -> list[str]:
    """The goals that onnxq's default misses on a task, in words; only what was measured is judged."""
    by = {row.variant: row for row in rows}
    ours, theirs = by.get("onnxq"), by.get("onnxruntime")
    if ours is None:
        return []
    out = [
        f"{task.title}: {metric} {ours.metrics[metric]:.4f}, wanted at least {least:g}"
        for metric, least in task.wanted.items()
        if ours.metrics[metric] < least
    ]
    if ours.size_ratio > LARGEST and theirs is not None and ours.size_ratio > theirs.size_ratio + 0.05:
        out.append(f"{task.title}: {ours.size_ratio:.1%} of the float file, onnxruntime's has {theirs.size_ratio:.1%}")
    for threads, ms in ours.milliseconds.items():
        slower = ms / theirs.milliseconds[threads] if theirs is not None else 0.0
        if slower > SLOWER:
            limit = f"wanted {SLOWER:g}, or {SLOWER_FOR_ACCURACY:g} where layers stay float for accuracy"
            out.append(f"{task.title}: {slower:.2f} x the latency of onnxruntime's at {threads} threads, {limit}")
    return out


def choose(text: str, known: Sequence[str]) -> list[str]:
    """The names in a comma separated text; unknown ones end the program with the known ones."""
    chosen = [name for name in text.split(",") if name]
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 when a model could not be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma separated: " + ", ".join(TASKS))
    parser.add_argument("--quantizers", default=",".join(QUANTIZERS), help="comma separated; may be empty with --file")
    parser.add_argument("--file", type=Path, action="append", default=[], help="also judge this model file")
    parser.add_argument(
        "--threads", type=int, nargs="*", default=[1, 2], help="latency thread counts; none: no latency"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "accuracy.json")
    parser.add_argument("--keep", type=Path, help="keep the quantized files in this folder")
    args = parser.parse_args(argv)
    quantizers = {name: QUANTIZERS[name] for name in choose(args.quantizers, list(QUANTIZERS))}
    rows: list[Row] = []
    goals: list[str] = []
    missing = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in choose(args.tasks, list(TASKS)):
            try:
                mine = compare(TASKS[name], quantizers, args.file, args.threads, folder)
            except NotServed as why:
                print(f"\n{TASKS[name].title}: left out, {why}")
                missing += 1
                continue
            print_rows(TASKS[name], mine)
            goals += missed(TASKS[name], mine)
            rows += mine
    if goals:
        print("\nmissed:\n  " + "\n  ".join(goals))
    result = {"machine": machine(), "rows": [asdict(row) for row in rows]}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten: {args.json}")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
