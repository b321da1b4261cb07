"""The lint benchmark: peers are asked in processes of their own, onnxq counts at the right place only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks.lint import ask, defects, healthy_layer
from benchmarks.lint_speed import external, measure, missed, quantized
from benchmarks.lint_table import defect_table, speed_table
from onnxq import lint
from tests.defects.corpus import cases
from tests.defects.layers import Layer

CASES = {case.defect.name: case for case in cases()}


def test_counts_of_each_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.lint.ELSEWHERE", ())
    tools = ("onnx.checker", "onnxruntime", "onnxq")
    monkeypatch.setattr("benchmarks.lint_tools.TOOLS", dict.fromkeys(tools))
    chosen = [CASES[name] for name in ("pair-scale", "pair-type", "scale-length", "external-missing")]
    found = defects(chosen, tmp_path)
    rows = {row["name"]: row for row in found["rows"]}
    assert {name: list(row["caught"].values()) for name, row in rows.items()} == {
        "pair-scale": [0, 0, 1],
        "pair-type": [1, 1, 1],
        "scale-length": [0, 1, 1],
        "external-missing": [1, 1, 1],
    }
    assert rows["pair-scale"]["error"] > 0 and rows["scale-length"]["run"] == 1
    table = defect_table({"defects": found, "machine": {"onnx": "1", "onnxruntime": "2"}}).splitlines()
    assert table[0] == "|  | defect | cases | onnx.checker | onnxruntime | onnxq | error |"
    assert "| 1 |  | all r | all |  |" in next(line for line in table if "OQ302" in line)
    assert "**50%** | **75%** | **100%**" in next(line for line in table if "**all**" in line)


def test_a_tool_that_crashes_is_asked_about_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(
        "import json, os, sys\n"
        "for path in json.load(sys.stdin):\n"
        "    if path == 'b': os.abort()\n"
        "    print(json.dumps({'path': path, 'said': [], 'seconds': 0.0}), flush=True)\n"
    )
    monkeypatch.setattr("benchmarks.lint_tools.__file__", str(tool))
    said = {path: row["said"] for path, row in ask("any", ["a", "b", "c"], sys.executable).items()}
    assert said == {"a": [], "b": ["crash: signal 6"], "c": []}


def test_where_the_layer_is_the_defect_a_plain_one_is_healthy() -> None:
    case = CASES["half-pairs"]
    assert healthy_layer(case) == Layer(op=case.layer.op, where=case.layer.where)
    assert healthy_layer(CASES["pair-scale"]) == CASES["pair-scale"].layer


def test_models_that_are_measured(tmp_path: Path) -> None:
    model = quantized(52)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.node) == 52 and not [d for d in lint(model) if d.severity.value != "info"]
    path = external(tmp_path, 4, 1024)
    assert (tmp_path / "weights.bin").stat().st_size == 4 << 20
    assert not [d for d in lint(path, ignore="OQ209,OQ210,OQ212,OQ402") if d.severity.value != "info"]
    (tmp_path / "small.onnx").write_bytes(quantized(12).SerializeToString())


def result(**changes: Any) -> dict[str, Any]:
    def took(cpu: float) -> dict[str, float]:
        return {"cpu": cpu, "seconds": cpu, "findings": 0}

    values = {"first": 1.0, "last": 10.0, "wire": 0.06, "external": 0.1, "memory": 150e6, "rule": 0.1} | changes
    models = [
        {"kind": kind, "nodes": nodes, "peak_rss": 2e8, "lint": took(values[name])}
        for kind in ("quantized", "float")
        for nodes, name in ((10_000, "first"), (100_000, "last"))
    ]
    checker = {"checker": took(0.05), "wire": took(values["wire"]), "group 0": took(0.5), "peak_rss": 1e8}
    beside = {"lint": took(values["external"]), "peak_rss": values["memory"], "megabytes": 1024}
    return {"models": models, "checker": checker, "external": beside, "rule": took(values["rule"])}


def test_missed_goals() -> None:
    assert missed(result()) == []
    assert missed(result(first=2.0))[0] == "quantized, 10,000 nodes: 2.00 s, wanted 1.5 s"
    assert missed(result(last=15.0))[0] == "quantized: 1.5x the time a node of 100,000 nodes, wanted 1.3x"
    assert missed(result(wire=0.2)) == ["wire rules: 150 ms behind onnx.checker, wanted 50 ms"]
    assert missed(result(memory=3e8)) == ["external data: 0.10 s and 300 MB, wanted 1 s and 200 MB"]
    assert missed(result(rule=0.3)) == ["onnxq rule: 0.30 s, wanted 0.2 s"]
    machine = {"cpus": 2, "machine": "x86_64", "python": "3.11"}
    assert "| onnx.checker, 10,000 nodes in memory | 0.05 s | 0.05 s |  |" in speed_table(
        {"speed": result(), "machine": machine}
    )


@pytest.mark.slow
def test_a_measurement(tmp_path: Path) -> None:
    for name, nodes in (("small", 12), ("large", 102)):
        (tmp_path / f"{name}.onnx").write_bytes(quantized(nodes).SerializeToString())
    row = measure(tmp_path / "large.onnx", tmp_path / "small.onnx", checker=True)
    assert set(row) == {"checker", "wire", "group 0", "peak_rss"} and row["peak_rss"] > 2e7
