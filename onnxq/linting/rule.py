"""Rules: a rule is a generator function with a code; its docstring is its page.

A *wire* rule reads the message (`onnxq.linting.wire.Wire`), also of a file that no IR can hold; a *graph* rule reads
the IR (`onnxq.linting.subject.Subject`). The decorators' arguments are literals, since `onnxq rule` reads them, and the
page, without importing the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from onnxq.diagnostics import Place, Severity

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxq.linting.subject import Subject
    from onnxq.linting.wire import Wire

Tier = Literal["wire", "graph"]
Level = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """What a rule saw at one place.

    Attributes:
        at: The node or value, or a `Place` (wire rules have no IR objects).
        message: One sentence: what is wrong, with the numbers.
        help: What to do about it, as an order; empty where the rule's fix says it all.
        numbers: The figures, JSON-able.
        severity: Where it is not the rule's own.
        fixable: Whether the rule's fix applies here.
    """

    at: ir.Node | ir.Value | Place | None
    message: str
    help: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    fixable: bool = True


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: ``OQ`` and three digits; the first is the group. Never used again for something else.
        name: Kebab-case name.
        severity: Harm: error = wrong numbers or does not load, warning = slow, fragile, depends on the target.
        tier: What it reads.
        check: The generator function.
        targets: Targets it belongs to; empty: every file.
        weights: Whether it reads the data of weights; scales, zero points and other small constants do not count.
        fix: Name of the pass that mends it; empty where none can.
        safe: Whether that pass keeps what the model computes, or gives it the meaning that is stated beyond doubt.
    """

    code: str
    name: str
    severity: Severity
    tier: Tier
    check: Callable[[Any], Iterator[Finding]]
    targets: tuple[str, ...] = ()
    weights: bool = False
    fix: str = ""
    safe: bool = True

    @property
    def page(self) -> str:
        """The docstring: a title line, then What it does, Why is this bad, Example, Use instead, Fix safety."""
        return inspect.cleandoc(self.check.__doc__ or "")

    def applies_to(self, target: str | None) -> bool:
        """Whether it is on for a target without being asked for by code."""
        return not self.targets or target in self.targets


def wire_rule(
    code: str,
    name: str,
    severity: Level,
    *,
    targets: tuple[str, ...] = (),
    weights: bool = False,
    fix: str = "",
    safe: bool = True,
) -> Callable[[Callable[[Wire], Iterator[Finding]]], Rule]:
    """Make a `Rule` of a generator over a `Wire`."""
    return lambda check: Rule(code, name, Severity(severity), "wire", check, targets, weights, fix, safe)


def graph_rule(
    code: str,
    name: str,
    severity: Level,
    *,
    targets: tuple[str, ...] = (),
    weights: bool = False,
    fix: str = "",
    safe: bool = True,
) -> Callable[[Callable[[Subject], Iterator[Finding]]], Rule]:
    """Make a `Rule` of a generator over a `Subject`."""
    return lambda check: Rule(code, name, Severity(severity), "graph", check, targets, weights, fix, safe)
