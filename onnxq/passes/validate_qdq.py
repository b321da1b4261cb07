"""`validate-qdq`: the gate behind every recipe that writes pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.errors import ValidationError
from onnxq.facts import Fact, Goal
from onnxq.linting.catalog import rules
from onnxq.linting.rule import Rule
from onnxq.linting.subject import Subject
from onnxq.passbase import Context, Pass
from onnxq.wording import plural

_GROUPS = ("OQ1", "OQ2", "OQ3", "OQ4", "OQ5")
_ASKED_FOR = frozenset({"OQ401"})  # `skip-odd-pack-axis` applies the pack rule, which its options may lift
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class ValidateQdq(Pass):
    """graph -> graph, or a `ValidationError` that names each broken rule and its place.

    The rules are those of `onnxq lint` about pairs, parameters, axes, packing and biases (OQ1 to OQ5) whose findings
    are errors, with those of the target that the recipe writes for; not the pack rule (OQ401), which
    `skip-odd-pack-axis` applies. `onnxq rule CODE` explains each. Weights are not
    read. What a rule finds less than an error is a note.
    """

    name: ClassVar[str] = "validate-qdq"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Check every pair in all scopes; the graph stays as it is.

        Raises:
            ValidationError: At least one rule is broken.
        """
        goal = ctx.maybe(Goal)
        subject = Subject(model, target=goal.target if goal is not None else None)
        broken = []
        for rule in _gate(subject):
            for finding in rule.check(subject):
                severity, place = finding.severity or rule.severity, subject.place(finding.at)
                at = finding.at if isinstance(finding.at, ir.Node | ir.Value) else None
                ctx.note(rule.code, at, finding.message, severity, **finding.numbers)
                if severity is Severity.ERROR:
                    broken.append(f"{place}: {finding.message} [{rule.code}]")
        if broken:
            more = f"\n  … and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
            lines = "\n  ".join(broken[:_SHOWN])
            raise ValidationError(f"{plural(len(broken), 'broken Q/DQ rule')}:\n  {lines}{more}")
        return False


def _gate(subject: Subject) -> Iterator[Rule]:
    """The rules that a written file has to pass."""
    target = subject.target.name if subject.target is not None else None
    for rule in rules().values():
        gated = rule.tier == "graph" and rule.code.startswith(_GROUPS) and not rule.weights
        if gated and rule.code not in _ASKED_FOR and rule.severity is Severity.ERROR and rule.applies_to(target):
            yield rule
