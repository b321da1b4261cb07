"""OQ9: findings about the check itself. The engine makes them; the rules here hold their names and pages."""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import Wire


@wire_rule("OQ900", "rule-failed", "error")
def rule_failed(wire: Wire) -> Iterator[Finding]:
    """A rule stopped with an error of its own.

    What it does:
        Reports that a rule raised an exception on this model. The other rules ran.

    Why is this bad:
        What the rule looks for was not looked for. It is a bug in onnxq: please report it, with the model if you can.

    Use instead:
        `--ignore` with the code of the rule, until it is mended.
    """
    return iter(())


@wire_rule("OQ901", "unused-suppression", "warning")
def unused_suppression(wire: Wire) -> Iterator[Finding]:
    """A suppression that suppresses nothing.

    What it does:
        Looks for entries of `onnxq.noqa` in metadata that name rules which ran and found nothing there.

    Why is this bad:
        It will hide the next finding of that kind, which nobody has looked at.

    Use instead:
        Take the entry out of the metadata.
    """
    return iter(())
