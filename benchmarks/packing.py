"""Four-bit packing beside the best NumPy expression, and a model of 540 MB in 4 bits beside onnxruntime's own tool.

Packing: 100 M values of int4, once in range-checked form (`onnxq.numerics.packing`), once as the bare expression on
words of 16 bits, in turns in one process; the least CPU time counts. Quantizing: SmolLM2 from file to file, blocks of
32, rounded to nearest, symmetric and not; every measurement is a fresh process (`benchmarks.worker`). onnxruntime's
tool leaves the output layer and the embeddings float, onnxq quantizes both. Writes ``results/packing.json``.

    python -m benchmarks.packing                   # one to three minutes
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import ENVIRONMENT, ROOT, machine, measure
from onnxq.numerics.packing import pack
from onnxq.numerics.spec import QTYPES

RESULTS = ROOT / "benchmarks" / "results" / "packing.json"
COUNT = 100_000_000
CHUNK = 256 << 10
ROUNDS, REPEAT = 9, 5
TOOLS = ("onnxruntime-nbits", "onnxq-4-bits")
MB = 1e6
WANTED_PACKING, WANTED_EXTRA, WANTED_TIME, WANTED_MEMORY = 2.0, 64 * MB, 1.0, 0.35

Array = np.ndarray[Any, Any]


def expression(values: Array) -> Array:
    """Two int4 values a byte, by 16-bit words, in chunks: the fastest of the expressions that were tried."""
    words = values.view("<u2")
    out = np.empty(words.size, np.uint8)
    for start in range(0, words.size, CHUNK // 2):
        word = words[start : start + CHUNK // 2]
        out[start : start + CHUNK // 2] = ((word >> 4) & 0xF0) | (word & 0x0F)
    return out


def packing(count: int = COUNT, rounds: int = ROUNDS) -> dict[str, Any]:
    """CPU seconds of both, and the memory that packing takes beside its output."""
    values = np.random.default_rng(0).integers(-8, 8, count, np.int8)
    runs: dict[str, Callable[[], Array]] = {
        "onnxq": lambda: pack(values, QTYPES["int4"]),
        "expression": lambda: expression(values),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        packed = []
        for name, run in runs.items():
            start = time.process_time()
            packed.append(run())
            times[name].append(time.process_time() - start)
        if not np.array_equal(packed[0], packed[1]):
            raise AssertionError("the packed bytes differ")
    seconds = {name: min(found) for name, found in times.items()}
    ratio = seconds["onnxq"] / seconds["expression"]
    return {"values": count, "seconds": seconds, "ratio": round(ratio, 2), "extra_bytes": extra_memory(count)}


def extra_memory(count: int) -> int:
    """Peak memory above the output while ``count`` values are packed, in bytes; a fresh process."""
    code = (
        "import tracemalloc, numpy as np\n"
        "from onnxq.numerics.packing import pack\n"
        "from onnxq.numerics.spec import QTYPES\n"
        f"values = np.zeros({count}, np.int8)\n"
        "tracemalloc.start()\n"
        "packed = pack(values, QTYPES['int4'])\n"
        "print(tracemalloc.get_traced_memory()[1] - packed.nbytes)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=ENVIRONMENT)
    return int(done.stdout)


def quantizing(model: Path, method: str, folder: Path, repeat: int = REPEAT) -> dict[str, Any]:
    """Medians of both tools, in turns; the ratios that matter."""
    built = {"model": str(model), "shape": [1, 8]}
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in TOOLS}
    for _ in range(repeat):
        for tool, found in runs.items():
            result = measure(tool, method, 1, built, folder)
            if "error" in result:
                raise RuntimeError(f"{tool}: {result['error']}")
            found.append(result)
    keys = ("seconds", "cpu", "peak_rss", "peak_anon", "output_bytes")
    tools = {tool: {key: statistics.median(r[key] for r in found) for key in keys} for tool, found in runs.items()}
    theirs, ours = (tools[tool] for tool in TOOLS)
    return {
        "case": f"{model.stem}, block 32, {method}",
        "bytes": model.stat().st_size,
        "tools": tools,
        "time": round(ours["cpu"] / theirs["cpu"], 2),
        "wall_time": round(ours["seconds"] / theirs["seconds"], 2),
        "memory": round(ours["peak_anon"] / theirs["peak_rss"], 2),
    }


def missed(result: dict[str, Any]) -> list[str]:
    """The goals that a result misses, in words."""
    packed, out = result["packing"], []
    if packed["ratio"] > WANTED_PACKING:
        out.append(f"packing: {packed['ratio']}x the time of the expression, wanted at most {WANTED_PACKING:g}x")
    if packed["extra_bytes"] > WANTED_EXTRA:
        out.append(f"packing: {packed['extra_bytes'] / MB:.0f} MB beside the output, wanted at most 64 MB")
    for row in result["quantizing"]:
        for key, limit in (("time", WANTED_TIME), ("memory", WANTED_MEMORY)):
            if row[key] > limit:
                out.append(f"{row['case']}: {row[key]}x the {key}, wanted at most {limit:g}x")
    return out


def describe(row: dict[str, Any]) -> str:
    """One line of the quantizing rows."""
    parts = [
        f"{tool} {r['cpu']:.2f} s CPU ({r['seconds']:.1f} s), {r['peak_rss'] / MB:.0f} MB RSS, "
        f"{r['peak_anon'] / MB:.0f} MB anonymous, file {r['output_bytes'] / MB:.0f} MB"
        for tool, r in row["tools"].items()
    ]
    ratios = f"{row['time']}x CPU time, {row['wall_time']}x wall time, anonymous {row['memory']}x of RSS"
    return f"{row['case']}: {'; '.join(parts)}: {ratios}"


def main() -> None:
    from models.smollm2 import smollm2

    model = smollm2()
    result: dict[str, Any] = {"machine": machine(), "packing": packing()}
    found = result["packing"]
    times = {name: f"{1e3 * t:.0f} ms" for name, t in found["seconds"].items()}
    print(f"packing {COUNT:,} values: onnxq {times['onnxq']}, expression {times['expression']}", end="")
    print(f", {found['ratio']}x; {found['extra_bytes'] / MB:.1f} MB beside the output", flush=True)
    with tempfile.TemporaryDirectory(prefix="onnxq-bench-") as folder:
        result["quantizing"] = []
        for method in ("symmetric", "asymmetric"):
            result["quantizing"].append(quantizing(model, method, Path(folder)))
            print(describe(result["quantizing"][-1]), flush=True)
    for line in missed(result):
        print(f"missed  {line}")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
