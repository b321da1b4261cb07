"""Numbers in messages agree with their nouns, in all modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnxq
from onnxq.wording import plural

NOUNS = "samples|layers|nodes|values|inputs|outputs|bytes|channels|weights|arrays|look-ups|scales"


@pytest.mark.parametrize(("count", "text"), [(0, "0 layers"), (1, "1 layer"), (2, "2 layers"), (1000, "1000 layers")])
def test_plural(count: int, text: str) -> None:
    assert plural(count, "layer") == text


def test_no_number_stands_in_front_of_a_fixed_plural() -> None:
    """What is counted goes through `plural`."""
    counted = re.compile(rf"\{{(?:len\([^{{}}]*\)|count|[\w.]*\.(?:size|samples))\}} (?:[a-z-]+ )?(?:{NOUNS})\b")
    files = {f: f.read_text(encoding="utf-8") for f in Path(onnxq.__file__).parent.rglob("*.py")}
    assert [f"{f.name}: {m[0]}" for f, text in files.items() for m in counted.finditer(text)] == []
