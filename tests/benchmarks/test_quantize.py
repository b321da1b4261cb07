"""The speed benchmark: rows measured in pieces come together, and one line of the table says all of a row."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.quantize import added, cases, describe
from benchmarks.table import speed_table

MACHINE = {"onnxruntime": "1.32.0", "onnx": "1.23", "machine": "x86_64", "cpus": 2, "python": "3.11"}


def took(seconds: float) -> dict[str, float]:
    return {
        "seconds": 2 * seconds,
        "cpu": seconds,
        "peak_rss": 3e8,
        "base_rss": 1e8,
        "peak_anon": 2e8,
        "base_anon": 1e8,
    }


def row(index: int, **tools: float) -> dict[str, Any]:
    found = {tool.replace("_", "-"): took(seconds) for tool, seconds in tools.items()}
    return {**asdict(cases(True)[index]), "nodes": 1000, "weight_bytes": 10, "largest": 5, "tools": found}


def test_pieces_come_together_in_order_and_the_newest_counts(tmp_path: Path) -> None:
    file = tmp_path / "quantize.json"
    first = {"machine": MACHINE, "full": True, "start_up": {"python": 0.02}, "rows": [row(1, onnxq=9.0)]}
    assert added(first, file) == first
    file.write_text(json.dumps(added(first, file)))
    later = {"machine": MACHINE, "full": True, "rows": [row(0, onnxq=1.0), row(1, onnxruntime=60.0, onnxq=2.0)]}
    found = added(later, file)
    assert found["start_up"] == {"python": 0.02}
    assert [(r["size"], list(r["tools"])) for r in found["rows"]] == [
        (1000, ["onnxq"]),
        (2000, ["onnxruntime", "onnxq"]),
    ]
    assert found["rows"][1]["tools"]["onnxq"]["cpu"] == 2.0


def test_a_row_is_one_line_and_the_defaults_are_told_apart() -> None:
    one = row(0, onnxruntime=13.0, onnxq=0.5, onnxq_defaults=2.0)
    first, second = describe(one).splitlines()
    assert "26.0x faster, 1.00x RSS" in first
    assert "onnxq-defaults    2.00 s CPU (4.0 s)" in second
    table = speed_table({"machine": MACHINE, "rows": [one, row(-1, onnxq=0.2)]}).splitlines()
    assert table[2] == "| convolution chain, 1,000 nodes | 13.00 s | 0.50 s | 26x faster | 2.00 s |"
    assert table[3].endswith("| 0.20 s, +100 MB anonymous memory |  |  |")
