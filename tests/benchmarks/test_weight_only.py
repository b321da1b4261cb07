"""The weight-only benchmark: all files of a row compute the same, and a goal that is missed is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.tasks.base import session
from benchmarks.weight_only import goals, matmul, rows, variants


def test_all_files_compute_the_same(tmp_path: Path) -> None:
    files = variants(matmul(64, tmp_path / "matmul.onnx"), 32, tmp_path)
    x = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    found = {name: session(file, 1).run(None, x)[0] for name, file in files.items()}
    np.testing.assert_array_equal(found["onnxq"], found["onnxq-nbits"])
    for name in ("onnxq", "onnxruntime"):
        assert np.abs(found[name] - found["float"]).max() < 0.2 * np.abs(found["float"]).max()


def test_rows_and_goals(tmp_path: Path) -> None:
    found = rows(tmp_path, 64, None, seconds=0)
    assert [row["case"] for row in found] == [f"MatMul 64 x 64, M=1, block {b}" for b in (32, 128)]
    assert all(set(row["milliseconds"]) == {"float", "onnxq", "onnxq-nbits", "onnxruntime"} for row in found)
    fast = {"case": "MatMul", "speedup": 9.0, "onnxruntime_speedup": 9.1, "against_onnxruntime": 0.96}
    assert goals([fast]) == []
    assert len(goals([{**fast, "speedup": 7.0, "against_onnxruntime": 0.9}])) == 2
