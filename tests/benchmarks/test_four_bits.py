"""The four-bit benchmark: its rows, goals and table, on the committed LeNet."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import four_bits
from benchmarks.four_bits import Outcome
from benchmarks.four_bits_table import four_bits_table
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Metrics
from onnxq.errors import OptionError


def outcome(task: str, variant: str, metrics: Metrics, **fields: Any) -> Outcome:
    return Outcome(task, variant, metrics, 4.0, 0.2, 1.5, **fields)


def copied(model: Path, _: list[Any], out: Path) -> None:
    out.write_bytes(model.read_bytes())


def refused(*_: Any) -> None:
    raise OptionError("no such thing\nhere")


def not_loadable(model: Path, _: list[Any], out: Path) -> None:
    proto = onnx.load(model)
    proto.graph.node[0].op_type = "Nonsense"
    onnx.save(proto, out)


@pytest.fixture
def lenet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """LeNet in place of the real models; the result file."""
    monkeypatch.setenv("ONNXQ_CACHE", str(tmp_path / "cache"))
    rows = {"copy": copied, "refused": refused, "broken": not_loadable}
    monkeypatch.setattr(four_bits, "VARIANTS", {"lenet": rows})
    monkeypatch.setitem(four_bits.FOUR_BIT_TASKS, "lenet", TASKS["lenet"])
    return tmp_path / "results" / "four_bits.json"


def test_a_run_has_both_sessions_and_says_what_failed(lenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert four_bits.main(["--threads", "--json", str(lenet)]) == 0
    floats, copy, no, broken = json.loads(lenet.read_text())["rows"]
    assert floats["variant"] == "float"
    assert copy["metrics"] == {
        **floats["metrics"], **{f"true {name}": value for name, value in floats["metrics"].items()}
    }  # fmt: skip
    assert copy["size_ratio"] == 1.0
    assert no["error"] == "no such thing"
    assert "Nonsense" in broken["error"]
    out = capsys.readouterr().out
    assert "LeNet, MNIST, 500 samples" in out
    assert "refused: no such thing" in out


def test_one_row_again_keeps_the_others(lenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert four_bits.main(["--threads", "--json", str(lenet), "--variants", "refused,copy"]) == 0
    monkeypatch.setattr(four_bits, "VARIANTS", {"lenet": {"copy": copied, "refused": copied}})
    assert four_bits.main(["--threads", "--json", str(lenet), "--variants", "refused"]) == 0
    rows = json.loads(lenet.read_text())["rows"]
    assert [(row["variant"], row["error"]) for row in rows] == [("float", ""), ("copy", ""), ("refused", "")]
    with pytest.raises(SystemExit, match="unknown: nonsense; known: lenet"):
        four_bits.main(["--tasks", "nonsense"])


def test_the_recipes_rows_on_lenet(lenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "A8W8": four_bits.a8w4(weights="int8", rounding="nearest", method="minmax"),
        "A8W4": four_bits.a8w4(rounding="nearest", method="minmax"),
        "W4": four_bits.blocked(rounding="nearest", weight_method="minmax"),
    }
    monkeypatch.setattr(four_bits, "VARIANTS", {"lenet": rows})
    assert four_bits.main(["--threads", "--json", str(lenet)]) == 0
    found = {row["variant"]: row for row in json.loads(lenet.read_text())["rows"]}
    for name, least, size in (("A8W8", 0.995, 0.4), ("A8W4", 0.97, 0.3), ("W4", 0.97, 0.5)):
        assert not found[name]["error"]
        assert found[name]["metrics"]["true agree"] >= least, name
        assert found[name]["size_ratio"] < size, name


def test_missed_goals_are_named_with_numbers() -> None:
    lite = four_bits.FOUR_BIT_TASKS["efficientnet"]
    rows = [outcome("efficientnet", "A8W8", {"agree": 0.97, "cosine": 0.99})]
    assert four_bits.missed(lite, [*rows, outcome("", "A8W4 gptq", {"agree": 0.88, "cosine": 0.96})]) == []
    assert four_bits.missed(lite, [*rows, outcome("", "A8W4 gptq", {"agree": 0.86, "cosine": 0.94})]) == [
        "EfficientNet-Lite0: cosine of A8W4 gptq is 0.9400, wanted at least 0.9500",
        "EfficientNet-Lite0: agree of A8W4 gptq is 0.8600, wanted at least 0.8700",
    ]
    assert four_bits.missed(lite, [*rows, outcome("", "A8W4 gptq", {}, error="x")]) == []


def test_missed_goals_of_weights_alone() -> None:
    lm, minilm = (four_bits.FOUR_BIT_TASKS[name] for name in ("smollm2", "minilm"))
    rows = [outcome("", name, {"perplexity": p}) for name, p in (("onnxruntime", 57.8), ("rtn", 60.0), ("hqq", 61.0))]
    assert four_bits.missed(lm, rows) == ["SmolLM2-135M: perplexity of hqq is 61.0000, wanted at most 60.0000"]
    assert four_bits.missed(lm, [*rows[:2], outcome("", "gptq", {"perplexity": 55.0})]) == []
    found = four_bits.missed(minilm, [outcome("", "gptq", {"cosine": 0.99, "recall@1": 0.5})])
    assert found == ["MiniLM-L6: recall@1 of gptq is 0.5000, wanted at least 0.5700"]


def test_the_table_has_a_line_a_row() -> None:
    both = {"perplexity": 50.0, "agree": 0.9, "true perplexity": 49.0, "true agree": 0.91}
    rows = [
        outcome("smollm2", "float", {"perplexity": 46.2, "agree": 1.0}, milliseconds={"1": 200.0}),
        outcome("smollm2", "gptq", both, milliseconds={"1": 100.0}),
        outcome("smollm2", "onnxruntime Q/DQ", {}, error="no"),
    ]
    machine = {"onnxruntime": "1.32.0", "machine": "x86_64", "cpus": 2}
    lines = four_bits_table({"machine": machine, "rows": [asdict(row) for row in rows]}).splitlines()
    assert lines[2:6] == [
        "| SmolLM2-135M | float | perplexity 46.20 | 100.0% same |  | 4.0 | 1.00 |  |",
        "| SmolLM2-135M | gptq | perplexity 50.00 | 90.0% same | 91.0% same | 4.0 | 0.50 | 1.5 |",
        "| SmolLM2-135M | onnxruntime Q/DQ | fails |  |  |  |  |  |",
        "",
    ]
