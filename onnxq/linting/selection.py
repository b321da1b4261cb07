"""Which rules run: prefixes of codes, as ruff has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnxq.errors import OptionError, near
from onnxq.linting.catalog import rules
from onnxq.linting.rule import Rule

ALL = "ALL"


@dataclass(frozen=True)
class Selection:
    """What was asked for. A longer prefix wins over a shorter one; at the same length ``ignore`` wins.

    Attributes:
        select: Prefixes that replace the default set, which is every rule that belongs to no target or to ``target``.
        extend_select: Prefixes added to it.
        ignore: Prefixes taken out.
        target: Name of the target whose rules are added.
    """

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: str | None = None

    def rules(self) -> list[Rule]:
        """The rules that run, by code.

        Raises:
            OptionError: A prefix that no code has.
        """
        for prefix in (*self.select, *self.extend_select, *self.ignore):
            check_prefix(prefix)
        return [rule for rule in rules().values() if self._has(rule)]

    def _has(self, rule: Rule) -> bool:
        wanted = _longest(rule, (*self.select, *self.extend_select))
        unwanted = _longest(rule, self.ignore)
        if wanted < 0 and not self.select and rule.applies_to(self.target):
            wanted = 0
        if 0 <= wanted < len(rule.code) and not rule.applies_to(self.target) and not self._all(rule):
            return False  # a prefix of several rules does not turn on those of other targets
        return wanted > unwanted if unwanted >= 0 else wanted >= 0

    def _all(self, rule: Rule) -> bool:
        return ALL in (*self.select, *self.extend_select)


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that no code has.

    Raises:
        OptionError: Names near ones.
    """
    if prefix != ALL and not any(code.startswith(prefix) for code in rules()):
        raise OptionError(f"no rule has the code or prefix '{prefix}'{near(prefix, rules())}")


def split(texts: Iterable[str]) -> tuple[str, ...]:
    """Comma lists, given once or several times, as one tuple."""
    return tuple(code.strip() for text in texts for code in text.split(",") if code.strip())


def _longest(rule: Rule, prefixes: Iterable[str]) -> int:
    """Length of the longest prefix a rule's code has; -1 for none, 0 for ``ALL``."""
    return max((0 if p == ALL else len(p) for p in prefixes if p == ALL or rule.code.startswith(p)), default=-1)
