"""Every defect of the corpus is found where it is, under its code, and nothing that is not there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from onnxq import lint
from onnxq.diagnostics import Diagnostic, Severity
from onnxq.linting.catalog import rules
from tests.defects.corpus import cases
from tests.defects.defect import Case
from tests.defects.layers import Layer

HARM = (Severity.ERROR, Severity.WARNING)
CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_found(case: Case, request: pytest.FixtureRequest) -> None:
    broken, place = case.broken(lambda: Path(request.getfixturevalue("tmp_path")))
    found = lint(broken, target=case.defect.target)
    at = [d for d in found if d.code == case.defect.code]
    assert [d for d in at if _is_at(d, place)], (place, [f"{d.severity.value} {d.place!r} {d}" for d in found])
    before = {d.code for d in _healthy(case.layer, case.defect.target)}
    more = {d.code for d in found if d.severity in HARM} - before - {case.defect.code} - set(case.defect.also)
    assert not more, [str(d) for d in found if d.code in more]


@pytest.mark.parametrize("layer", sorted({c.layer for c in CASES}, key=str), ids=str)
def test_healthy(layer: Layer) -> None:
    assert not [str(d) for d in _healthy(layer, None) if d.severity in HARM]


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 600
    assert {c.layer.where for c in CASES} == {"main", "then", "loop", "nested", "function"}


def test_each_rule_has_a_defect() -> None:
    told_by_the_engine = {"OQ002", "OQ900", "OQ901"}
    assert {case.defect.code for case in CASES} == set(rules()) - told_by_the_engine


def _is_at(diagnostic: Diagnostic, place: object) -> bool:
    found = diagnostic.place
    wanted = [getattr(place, name) for name in ("graph", "node", "value")]
    actual = [found.graph, found.node, found.value]
    return actual[0] == wanted[0] and all(w in ("", a) for w, a in zip(wanted[1:], actual[1:], strict=True))


@cache
def _healthy(layer: Layer, target: str | None) -> list[Diagnostic]:
    return lint(layer.draft().model(), target=target)
