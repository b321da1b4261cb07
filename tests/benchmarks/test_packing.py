"""The packing benchmark: both sides make the same bytes, fresh processes are measured, and a missed goal is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.packing import describe, expression, missed, packing
from benchmarks.weight_only import matmul
from benchmarks.worker import Samples, four_bits_with_onnxq, four_bits_with_onnxruntime
from onnxq import border
from onnxq.numerics.packing import pack
from onnxq.numerics.spec import QTYPES


def result(**changes: Any) -> dict[str, Any]:
    took = {"cpu": 1.0, "seconds": 2.0, "peak_rss": 9e8, "peak_anon": 2e8, "output_bytes": 1e8}
    row = {"case": "m, block 32, symmetric", "time": 0.5, "wall_time": 0.5, "memory": 0.24}
    row["tools"] = {"onnxruntime-nbits": took, "onnxq-4-bits": took}
    found = {"packing": {"ratio": 1.2, "extra_bytes": 3e5}, "quantizing": [row]}
    for key, value in changes.items():
        (row if key in row else found["packing"])[key] = value
    return found


def test_both_sides_make_the_same_bytes() -> None:
    values = np.random.default_rng(0).integers(-8, 8, 700_000, np.int8)
    np.testing.assert_array_equal(pack(values, QTYPES["int4"]), expression(values))
    found = packing(4000, 2)
    assert set(found["seconds"]) == {"onnxq", "expression"} and found["extra_bytes"] < 1 << 20


def test_missed_goals() -> None:
    assert missed(result()) == []
    assert missed(result(ratio=2.5, extra_bytes=1e8)) == [
        "packing: 2.5x the time of the expression, wanted at most 2x",
        "packing: 100 MB beside the output, wanted at most 64 MB",
    ]
    assert missed(result(time=1.1, memory=0.4)) == [
        "m, block 32, symmetric: 1.1x the time, wanted at most 1x",
        "m, block 32, symmetric: 0.4x the memory, wanted at most 0.35x",
    ]
    assert "0.5x CPU time, 0.5x wall time, anonymous 0.24x of RSS" in describe(result()["quantizing"][0])


def test_what_the_worker_runs(tmp_path: Path) -> None:
    """Both tools write 4-bit weights."""
    model = matmul(64, tmp_path / "m.onnx")
    for method in ("symmetric", "asymmetric"):
        four_bits_with_onnxruntime(str(model), str(tmp_path / "theirs.onnx"), Samples([1, 8], 1), method)
        four_bits_with_onnxq(str(model), str(tmp_path / "ours.onnx"), Samples([1, 8], 1), method)
        theirs, ours = (border.open_model(tmp_path / f"{n}.onnx").model.graph for n in ("theirs", "ours"))
        assert [n.op_type for n in theirs] == ["MatMulNBits"]
        assert [n.op_type for n in ours] == ["DequantizeLinear", "MatMul"]
        assert any(v.dtype is not None and v.dtype.bitwidth == 4 for v in ours.initializers.values())
