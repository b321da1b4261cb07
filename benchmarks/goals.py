"""What onnxq is meant to reach in `benchmarks.quantize`, and which of it a result misses; times are CPU seconds.

Ratios to onnxruntime's tool hold at the full sizes only: below, both mostly start up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MB = 1e6
FASTER = {1000: 10, 5000: 100}
"""Nodes to the least ratio of onnxruntime's time to onnxq's."""
GROWTH = 6.0
"""Most that time may grow from 1 000 to 5 000 nodes."""
WEIGHTS_FASTER, WEIGHTS_MEMORY = 4.0, 0.45
BATCHES = 3
"""Extra peak memory of a histogram calibration, in batches' worth of activations."""
ANONYMOUS = 100 * MB
"""Anonymous memory above twice the largest tensor, for weights alone."""
START_UP = {"import onnxq": 0.15, "onnxq --help": 0.2}


def missed(result: dict[str, Any]) -> list[str]:
    """The goals that a result misses, in words; only what was measured is judged."""
    out = [line for row in result["rows"] for line in _row(row)]
    for name, ratio in result.get("growth", {}).items():
        if ratio > GROWTH:
            out.append(f"{name}: {ratio:.1f}x the time, wanted at most {GROWTH:g}x")
    for name, limit in START_UP.items():
        seconds = result.get("start_up", {}).get(name, 0.0)
        if seconds > limit:
            out.append(f"{name}: {seconds:.2f} s, wanted at most {limit} s")
    return out


def _row(row: dict[str, Any]) -> Iterator[str]:
    theirs, ours = row["tools"].get("onnxruntime", {}), row["tools"].get("onnxq", {})
    name = f"{row['group']} {row['kind']} {row['size']} {row['method']}"
    if "error" in ours:
        yield f"{name}: {ours['error']}"
    if "seconds" not in ours:
        return
    if row["group"] == "weight-only" and ours["peak_anon"]:
        above, limit = ours["peak_anon"] - ours["base_anon"], 2 * row["largest"] + ANONYMOUS
        if above > limit:
            yield f"{name}: +{above / MB:.0f} MB of anonymous memory, wanted at most {limit / MB:.0f} MB"
    if row["group"] == "calibration":
        above, limit = ours["peak_rss"] - ours["base_rss"], BATCHES * row["size"] * 2**20
        if above > limit:
            yield f"{name}: +{above / MB:.0f} MB at {row['samples']} samples, wanted at most {limit / MB:.0f} MB"
    if "seconds" not in theirs:
        return
    faster, memory = theirs["cpu"] / ours["cpu"], ours["peak_rss"] / theirs["peak_rss"]
    wanted = max((f for nodes, f in FASTER.items() if row["size"] >= nodes), default=0.0)
    wanted = {"growth": wanted, "weights": WEIGHTS_FASTER, "calibration": 1.0}[row["group"]]
    if faster < wanted:
        yield f"{name}: {faster:.1f}x faster, wanted {wanted:g}x"
    if row["group"] == "weights" and row["size"] >= 400 and memory > WEIGHTS_MEMORY:
        yield f"{name}: {memory:.2f}x the memory, wanted at most {WEIGHTS_MEMORY}x"
