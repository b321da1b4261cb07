from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lint_real import FILES, found

PAGE = Path(__file__).parents[2] / "docs" / "case-study.md"


@pytest.mark.real
@pytest.mark.parametrize("name", FILES)
def test_the_case_study_says_what_lint_says(name: str, real_model: Callable[[str], Path]) -> None:
    """Each finding on these files was reviewed; a new one has to be, too: `python -m benchmarks.lint_real --write`."""
    real_model(name)
    assert f"| {' | '.join(found(name))} |" in PAGE.read_text(encoding="utf-8").splitlines()
