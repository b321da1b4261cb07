"""Known findings do not count; new ones of the same kind do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from onnxq.diagnostics import Diagnostic, Place
from onnxq.errors import OptionError
from onnxq.linting import baseline

A = Diagnostic("OQ101", "one", place=Place("a", "Conv"))
AGAIN = Diagnostic("OQ101", "another text", place=Place("a", "Conv"))
B = Diagnostic("OQ101", "one", place=Place("b", "Conv"))


def test_written_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    file.write_text(json.dumps(baseline.content({"m.onnx": [A, AGAIN, B], "clean.onnx": []})))
    known = baseline.read(file)
    assert list(known) == ["m.onnx"] and known["m.onnx"].total() == 3
    assert baseline.new_ones([A, AGAIN, B], known["m.onnx"]) == []


def test_one_more_of_a_kind_is_new() -> None:
    known = Counter([baseline.key_of(A)])
    assert baseline.new_ones([A, AGAIN, B], known) == [AGAIN, B]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x", "files": {}}', '{"format": "onnxq-baseline-1"}'])
def test_what_is_no_baseline(tmp_path: Path, text: str) -> None:
    file = tmp_path / "known.json"
    file.write_text(text)
    with pytest.raises(OptionError, match="is no baseline"):
        baseline.read(file)
    with pytest.raises(OptionError, match="write it with --update-baseline"):
        baseline.read(tmp_path / "missing.json")


def test_fingerprints_tell_files_and_occurrences_apart() -> None:
    prints = {baseline.fingerprint(A, "m"), baseline.fingerprint(A, "n"), baseline.fingerprint(A, "m", 1)}
    assert len(prints) == 3 and baseline.fingerprint(AGAIN, "m") in prints
