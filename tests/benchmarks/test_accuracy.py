"""The accuracy harness: metrics with known values, goals, and one whole run on the committed LeNet."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import accuracy
from benchmarks.data import text
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Metrics, cosine, ctc, edit_distance, same
from models.fetch import NotServed


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "", 0), ("abc", "abc", 0), ("kitten", "sitting", 3), ("", "abc", 3), ("ab", "ba", 2)]
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == distance


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_edit_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_ctc_drops_repeats_before_blanks() -> None:
    assert ctc(np.array([0, 3, 3, 0, 3, 5, 5, 0])) == [3, 3, 5]


def test_cosine_and_share() -> None:
    assert cosine([np.array([1.0, 0.0])], [np.array([1.0, 1.0])]) == pytest.approx(0.5**0.5)
    assert cosine([np.zeros(3)], [np.ones(3)]) == 0.0
    assert same([1, 2, 3, 4], [1, 2, 3, 5]) == 0.75


def test_pages_and_lines_repeat_and_need_neither_fonts_nor_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Path:
        raise NotServed(name)

    text.fonts.cache_clear()
    text.corpus.cache_clear()
    monkeypatch.setattr(text, "fetch", nothing)
    monkeypatch.setattr(text, "DEBIAN", Path("nowhere"))
    try:
        assert text.sources() == "own licence text, built-in font"
        (page, boxes), (again, _) = text.pages(1, 3)[0], text.pages(1, 3)[0]
        assert np.array_equal(np.asarray(page), np.asarray(again))
        assert boxes
        assert all(0 <= left < right <= page.size[0] for left, _, right, _ in boxes)
        line, words = text.lines(1, 5)[0]
        assert words
        assert np.asarray(line).std() > 1
    finally:
        text.fonts.cache_clear()
        text.corpus.cache_clear()


def test_captchas_repeat() -> None:
    pytest.importorskip("captcha")
    from benchmarks.data.captchas import captchas

    state = random.getstate()
    (image, word), (again, same_word) = captchas(1, 7)[0], captchas(1, 7)[0]
    assert (word, image.size) == (same_word, (160, 60))
    assert np.array_equal(np.asarray(image), np.asarray(again))
    assert random.getstate() == state


def row(variant: str, metrics: Metrics, *, size: float = 0.3, ms: float = 1.0) -> accuracy.Row:
    return accuracy.Row("lenet", variant, metrics, 1.0, size, milliseconds={1: ms})


def test_missed_goals_are_named_with_numbers() -> None:
    task = replace(TASKS["lenet"], wanted={"agree": 0.99})
    good, bad = {"agree": 0.995}, {"agree": 0.98}
    theirs = row("onnxruntime", bad)
    assert accuracy.missed(task, [theirs, row("onnxq", good)]) == []
    lines = accuracy.missed(task, [theirs, row("onnxq", bad, size=0.6, ms=1.1)])
    assert lines == [
        "LeNet, MNIST: agree 0.9800, wanted at least 0.99",
        "LeNet, MNIST: 60.0% of the float file, onnxruntime's has 30.0%",
        "LeNet, MNIST: 1.10 x the latency of onnxruntime's at 1 threads, wanted 1.03, or 1.15 where layers stay float "
        "for accuracy",
    ]
    assert accuracy.missed(task, [theirs]) == []


def test_whole_run_on_lenet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONNXQ_CACHE", str(tmp_path / "cache"))
    result = tmp_path / "out" / "accuracy.json"
    arguments = ["--tasks", "lenet", "--quantizers", "onnxq", "--threads", "--json", str(result)]
    assert accuracy.main([*arguments, "--keep", str(tmp_path / "kept")]) == 0
    floats, ours = json.loads(result.read_text())["rows"]
    assert floats["metrics"]["accuracy"] == pytest.approx(0.948)
    assert ours["metrics"]["agree"] >= 0.99
    assert ours["size_ratio"] < 0.5
    assert (tmp_path / "kept" / "lenet.onnxq.onnx").exists()
    assert "LeNet, MNIST, 500 samples" in capsys.readouterr().out
    assert list((tmp_path / "cache" / "reference").iterdir())


def test_unknown_task_is_one_line() -> None:
    with pytest.raises(SystemExit, match=r"unknown: nonsense; known: .*magika"):
        accuracy.main(["--tasks", "nonsense"])
