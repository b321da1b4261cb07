"""Four-bit weights on real models: onnxq's methods, onnxruntime's tools and float, side by side in one run.

Image classifiers as A8W4 (int8 activations, int4 weights per channel) beside A8W8; MiniLM and SmolLM2 with weights
alone in int4, blocks of 32. Metrics stand twice: on onnxruntime's default session, and "true", where Q/DQ nodes are
computed as ONNX writes them.

python -m benchmarks.four_bits                                    all tasks, all variants, half an hour
python -m benchmarks.four_bits --tasks minilm --variants gptq     one row, beside float; the file keeps its other rows

Writes ``results/four_bits.json``, from which `benchmarks.four_bits_table` makes the table of docs/four-bits.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors
from onnxruntime.quantization import QuantType

from benchmarks.accuracy import Quantizer, Row, choose, evaluate, judge, print_rows
from benchmarks.harness import machine
from benchmarks.latency import latency
from benchmarks.peers import onnxruntime_nbits, onnxruntime_static
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import TRUE, Metrics, Task
from benchmarks.tasks.lm import SMOLLM2
from models.fetch import ROOT, NotServed
from onnxq.errors import OnnxqError

BLOCK = 32
RESULTS = ROOT / "benchmarks" / "results" / "four_bits.json"
FOUR_BIT_TASKS = {task.name: task for task in (TASKS["efficientnet"], TASKS["orientation"], TASKS["minilm"], SMOLLM2)}
LOAD_ERRORS = (ort_errors.Fail, ort_errors.InvalidGraph, ort_errors.InvalidArgument, ort_errors.NotImplemented)


@dataclass
class Outcome(Row):
    """A row whose metrics are those of the default session and, as ``true ...``, of true semantics.

    Attributes:
        error: Why there is no such file, or why onnxruntime does not load it.
    """

    error: str = ""


def ours(recipe: str, target: str = "ort-cpu", **parameters: Any) -> Quantizer:
    """A recipe with parameters."""

    def quantize(model: Path, feeds: list[Any], out: Path) -> None:
        import onnxq

        onnxq.quantize(model, feeds, target=target, output=out, recipe=recipe, **parameters)

    return quantize


def a8w4(**parameters: Any) -> Quantizer:
    """Int4 weights per channel that may be packed along any axis, int8 activations."""
    return ours("a8w4", "ascend", **{"pack_axis": "flat", **parameters})


def blocked(**parameters: Any) -> Quantizer:
    """Weights alone, blocks of `BLOCK`, with zero points."""
    return ours("w4-blocked", **{"block_size": BLOCK, "symmetric": "no", **parameters})


def nbits(**options: Any) -> Quantizer:
    """onnxruntime's tool for weights alone."""
    return lambda model, _, out: onnxruntime_nbits(model, out, block_size=BLOCK, **options)


def rounded_to_four_bits(model: Path, feeds: list[Any], out: Path) -> None:
    """onnxruntime's static quantizer with int4 weights."""
    onnxruntime_static(model, feeds, out, weight_type=QuantType.QInt4)


def a8w4_variants() -> dict[str, Quantizer]:
    """Rows of the image classifiers."""
    return {
        "onnxruntime A8W8": onnxruntime_static,
        "onnxruntime A8W4": rounded_to_four_bits,
        "A8W8": a8w4(weights="int8"),
        "A8W4 rtn": a8w4(weight_method="minmax", rounding="nearest"),
        "A8W4 mse": a8w4(weight_method="mse", rounding="nearest"),
        "A8W4 gptq": a8w4(),
        # Zero points of weights are no part of the target ascend.
        "A8W4 gptq asymmetric": ours("a8w4", "onnx", pack_axis="flat", symmetric="no"),
    }


def weight_only_variants(**same: Any) -> dict[str, Quantizer]:
    """Rows of the transformers; ``same`` makes onnxq quantize the layers that onnxruntime's tool does."""
    return {
        "onnxruntime": nbits(),
        "onnxruntime level 4": nbits(level=4),
        "onnxruntime symmetric": nbits(symmetric=True),
        "onnxruntime Q/DQ": nbits(qdq=True),
        "rtn": blocked(weight_method="minmax", rounding="nearest", **same),
        "rtn symmetric": blocked(weight_method="minmax", rounding="nearest", symmetric="yes", **same),
        "mse": blocked(weight_method="mse", rounding="nearest", **same),
        "hqq": blocked(weight_method="hqq", rounding="nearest", **same),
        "gptq": blocked(rounding="gptq", **same),
    }


VARIANTS: Mapping[str, dict[str, Quantizer]] = {
    "efficientnet": a8w4_variants(),
    "orientation": a8w4_variants(),
    "minilm": weight_only_variants(),
    # onnxruntime's tool does not see that the output layer's weight is constant: it stands behind a Transpose.
    "smollm2": weight_only_variants(exclude=["logits", "embedded"]) | {"gptq, all layers": blocked(rounding="gptq")},
}


def measure(task: Task, variants: Mapping[str, Quantizer], threads: Sequence[int], folder: Path) -> list[Outcome]:
    """The float row and one for each variant; latencies of all that run, side by side."""
    files, rows = [task.model()], [Outcome(**vars(judge(task, task.model(), "float")))]
    for variant, quantize in variants.items():
        file = folder / f"{task.name}.{variant.replace('/', '').replace(' ', '-')}.onnx"
        try:
            row = evaluate(task, quantize, variant, file)
            true = task.evaluate(file, task.reference(), TRUE)
        except (OnnxqError, *LOAD_ERRORS) as why:
            rows.append(Outcome(task.name, variant, {}, 0.0, error=_reason(why, folder)))
        else:
            row.metrics |= {f"true {name}": value for name, value in true.items()}
            rows.append(Outcome(**vars(row)))
            files.append(file)
    middle = len(task.test_feeds) // 2
    for count in threads:
        times = latency(files, task.test_feeds[middle : middle + 3], count)
        for row, ms in zip((row for row in rows if not row.error), times, strict=True):
            row.milliseconds[count] = ms
            row.speedup[count] = times[0] / ms
    return rows


def _reason(why: Exception, folder: Path) -> str:
    """The first line of a message, without the folder that is gone when it is read."""
    return str(why).strip().splitlines()[0].replace(f"{folder}{os.sep}", "")


def missed(task: Task, rows: Sequence[Outcome]) -> list[str]:
    """The goals that onnxq's recipe misses on a task, in words; only what was measured is judged."""
    by = {row.variant: row.metrics for row in rows if not row.error}
    return [
        f"{task.title}: {what} of {variant} is {by[variant][what]:.4f}, wanted {'at least' if sign > 0 else 'at most'} "
        f"{limit:.4f}"
        for variant, what, sign, limit in goals(task.name, by)
        if sign * by[variant][what] < sign * limit
    ]


def goals(task: str, by: Mapping[str, Metrics]) -> Iterator[tuple[str, str, int, float]]:
    """Variant, metric, 1 for a lower and -1 for an upper limit, limit."""
    if "A8W4 gptq" in by:
        yield "A8W4 gptq", "cosine", 1, 0.95
        if "A8W8" in by:
            yield "A8W4 gptq", "agree", 1, by["A8W8"]["agree"] - 0.10
    if task == "minilm" and "gptq" in by:
        yield "gptq", "cosine", 1, 0.98
        yield "gptq", "recall@1", 1, 0.57
    if task == "smollm2":
        for better, worse in (("gptq", "onnxruntime"), ("gptq", "rtn"), ("hqq", "rtn")):
            if {better, worse} <= set(by):
                yield better, "perplexity", -1, by[worse]["perplexity"]


def show(task: Task, rows: Sequence[Outcome]) -> None:
    """The rows as a table, and below it what failed and what is missed of the goals."""
    print_rows(task, [row for row in rows if not row.error], width=160)
    for row in rows:
        if row.error:
            print(f"{row.variant}: {row.error}")
    for line in missed(task, rows):
        print(f"missed: {line}")


def together(rows: Sequence[Outcome], file: Path) -> list[dict[str, Any]]:
    """The rows and what the file has besides, in the order of `VARIANTS`."""
    found = {(row.task, row.variant): asdict(row) for row in rows}
    old = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    known = {(row["task"], row["variant"]): row for row in old} | found
    order = [(name, variant) for name, variants in VARIANTS.items() for variant in ("float", *variants)]
    return [known[key] for key in [*order, *(k for k in found if k not in order)] if key in known]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 when a model could not be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(VARIANTS), help="comma separated: " + ", ".join(VARIANTS))
    parser.add_argument("--variants", default="", help="comma separated; only those whose name contains one of these")
    parser.add_argument("--threads", type=int, nargs="*", default=[1], help="latency thread counts; none: no latency")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, help="keep the quantized files in this folder")
    args = parser.parse_args(argv)
    wanted = args.variants.split(",")
    missing = 0
    for name in choose(args.tasks, list(VARIANTS)):
        chosen = {v: q for v, q in VARIANTS[name].items() if any(part in v for part in wanted)}
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.keep or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                rows = measure(FOUR_BIT_TASKS[name], chosen, args.threads, folder)
            except NotServed as why:
                print(f"\n{FOUR_BIT_TASKS[name].title}: left out, {why}")
                missing += 1
                continue
        show(FOUR_BIT_TASKS[name], rows)
        result = {"machine": machine(), "rows": together(rows, args.json)}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
