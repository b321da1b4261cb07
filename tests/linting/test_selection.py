"""Which rules run: prefixes, targets, and what wins."""

from __future__ import annotations

import pytest

from onnxq.errors import OptionError
from onnxq.linting.catalog import entries, entry, rules
from onnxq.linting.selection import Selection, split


def codes(**given: object) -> set[str]:
    return {rule.code for rule in Selection(**given).rules()}  # type: ignore[arg-type]


def test_the_default_is_every_rule_of_no_target() -> None:
    assert codes() == {code for code, rule in rules().items() if not rule.targets}
    assert codes(target="ort-cpu") - codes() == {c for c, r in rules().items() if "ort-cpu" in r.targets}


def test_select_replaces_extend_adds_ignore_takes_out() -> None:
    assert codes(select=("OQ1",)) == {c for c in codes() if c.startswith("OQ1")}
    assert codes(select=("OQ101", "OQ303")) == {"OQ101", "OQ303"}
    assert codes(select=("OQ1",), ignore=("OQ10",)) == {c for c in codes() if c.startswith("OQ1") and c[3] != "0"}
    assert codes(ignore=("OQ101",)) == codes() - {"OQ101"}
    assert codes(select=("OQ10",), extend_select=("OQ303",)) == codes(select=("OQ10",)) | {"OQ303"}


def test_the_longer_prefix_wins() -> None:
    assert "OQ101" in codes(select=("OQ101",), ignore=("OQ1",))
    assert "OQ101" not in codes(select=("OQ1",), ignore=("OQ101",))
    assert "OQ101" not in codes(select=("OQ101",), ignore=("OQ101",))


def test_rules_of_other_targets_only_by_their_whole_code_or_all() -> None:
    foreign = next(c for c, r in rules().items() if r.targets == ("ort-cpu",))
    assert foreign not in codes(select=(foreign[:3],)) and foreign in codes(select=(foreign,))
    assert codes(select=("ALL",)) == set(rules())


def test_an_unknown_prefix_is_an_error_with_a_near_one() -> None:
    with pytest.raises(OptionError, match="no rule has the code or prefix 'OQ99'"):
        codes(ignore=("OQ99",))


def test_comma_lists() -> None:
    assert split(["OQ1, OQ2", "", "OQ303"]) == ("OQ1", "OQ2", "OQ303")


def test_the_catalog_read_from_source_is_that_of_the_rules() -> None:
    assert list(entries()) == list(rules())
    for code, rule in rules().items():
        read = entries()[code]
        assert (read.name, read.severity, read.tier) == (rule.name, rule.severity.value, rule.tier)
        assert (read.targets, read.weights, read.fix, read.safe) == (rule.targets, rule.weights, rule.fix, rule.safe)
        assert read.page == rule.page
    assert entry("oq101") == entry("pair-parameters-differ")


@pytest.mark.parametrize("code", rules())
def test_every_page_says_what_why_and_what_instead(code: str) -> None:
    page = rules()[code].page
    for part in ("What it does:", "Why is this bad:", "Use instead:"):
        assert f"\n{part}\n" in page, part
    assert ("Fix safety:" in page) == bool(rules()[code].fix)
    assert not page.splitlines()[1].strip() and len(page.splitlines()[0]) <= 120


def test_names_are_unique_and_fixes_are_passes() -> None:
    from onnxq.registry import Registry

    names = [rule.name for rule in rules().values()]
    assert len(set(names)) == len(names)
    known = Registry().entries
    assert {rule.fix for rule in rules().values() if rule.fix} <= set(known)
