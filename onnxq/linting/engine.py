"""From a file to findings: wire rules on the message, graph rules on the IR made of it.

A file that no IR can hold still gets the wire rules, and one finding that says why the others did not run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onnx import ModelProto

from onnxq.border import incoming
from onnxq.collector import relaxed
from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.errors import InputError
from onnxq.linting.obstacles import obstacle
from onnxq.linting.rule import Finding, Rule
from onnxq.linting.selection import Selection
from onnxq.linting.suppression import Suppressions
from onnxq.linting.wire import Wire

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxq.linting.subject import Subject

Source = ModelProto | bytes | str | PathLike[str]

UNREADABLE, NOT_CARRIED, FAILED = "OQ001", "OQ002", "OQ900"


@dataclass
class Outcome:
    """What was found in one model.

    Attributes:
        diagnostics: By code, and by place in the graph for each code.
        suppressed: Findings that the model itself asks not to report.
        model: The IR, where one could be made.
        subject: What graph rules read, likewise.
        findings: What rules found, for fixes.
        reported: The diagnostic of each of them; those of the engine itself are only among ``diagnostics``.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list)
    suppressed: int = 0
    model: ir.Model | None = None
    subject: Subject | None = None
    findings: list[tuple[Rule, Finding]] = field(default_factory=list)
    reported: list[Diagnostic] = field(default_factory=list)


def check(
    source: Source, selection: Selection, *, base_dir: str | PathLike[str] | None = None, graph: bool = False
) -> Outcome:
    """Run the selected rules on one model.

    Args:
        source: A message, a serialized model, or the path of one; left as it is.
        selection: Which rules, and for which target.
        base_dir: Folder of the external data of a message or of bytes.
        graph: Make the IR also where no selected rule reads it.

    Raises:
        OptionError: A selection or target that does not exist.
    """
    chosen = selection.rules()
    folder = Path(base_dir) if base_dir is not None else None
    graph = graph or any(rule.tier == "graph" for rule in chosen)
    with relaxed(), _quiet():
        try:
            wire, read = _read(source, folder)
        except InputError as error:
            return Outcome([Diagnostic(UNREADABLE, str(error), Severity.ERROR, source="unreadable")])
        outcome, suppressions = Outcome(), Suppressions(wire)
        for rule in chosen:
            if rule.tier == "wire":
                _run(rule, wire, outcome, suppressions)
        if graph:
            _graph_rules(read, wire, chosen, selection, outcome, suppressions)
        outcome.diagnostics.extend(suppressions.unused(chosen))
    outcome.diagnostics.sort(key=lambda d: d.code)
    return outcome


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what onnx-ir logs about odd models: rules say it, with code and place."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read(source: Source, folder: Path | None) -> tuple[Wire, Callable[[], incoming.Incoming]]:
    """What wire rules read, and what makes that of which the graph can be made: a message is copied only then."""
    if isinstance(source, ModelProto):
        return Wire(source, folder=folder), lambda: incoming.read_message(source, folder)
    path = None if isinstance(source, bytes) else Path(source)
    shell = incoming.read_file(path) if path is not None else incoming.read_bytes(cast("bytes", source), folder)
    return Wire(shell.shell, path, shell, folder), lambda: shell


def _graph_rules(
    read: Callable[[], incoming.Incoming],
    wire: Wire,
    chosen: Sequence[Rule],
    selection: Selection,
    outcome: Outcome,
    suppressions: Suppressions,
) -> None:
    from onnxq.border.model import build, left_of
    from onnxq.linting.subject import Subject
    from onnxq.targets import load_target

    target = load_target(selection.target) if selection.target else None
    try:
        if why := obstacle(wire):
            raise InputError(why)
        outcome.model = build(read())
    except InputError as error:
        outcome.diagnostics.append(_not_run(f"the rules about the graph could not run: {error}", outcome))
        return
    if wire.path is not None:
        left_of(outcome.model).source = wire.path.resolve()
    outcome.subject = Subject(outcome.model, wire, target)
    for rule in chosen:
        if rule.tier == "graph":
            _run(rule, outcome.subject, outcome, suppressions)


def _run(rule: Rule, subject: Wire | Subject, outcome: Outcome, suppressions: Suppressions) -> None:
    try:
        for finding in rule.check(subject):
            place = subject.place(finding.at) if not isinstance(subject, Wire) else _wire_place(finding)
            if suppressions.covers(rule, finding, place):
                outcome.suppressed += 1
                continue
            outcome.findings.append((rule, finding))
            outcome.reported.append(_diagnostic(rule, finding, place))
            outcome.diagnostics.append(outcome.reported[-1])
    except InputError as error:  # weights that cannot be read; a rule about the file says so, if it was asked
        outcome.diagnostics.append(_not_run(f"rule {rule.code} could not run: {error}", outcome))
    except Exception as error:  # a bug in a rule must not hide what the others found
        text = f"rule {rule.code} failed on this model, a bug in onnxq: {type(error).__name__}: {error}"
        outcome.diagnostics.append(Diagnostic(FAILED, text, Severity.ERROR, source="rule-failed"))


def _not_run(text: str, outcome: Outcome) -> Diagnostic:
    known = any(d.severity is Severity.ERROR for d in outcome.diagnostics)
    return Diagnostic(NOT_CARRIED, text, Severity.INFO if known else Severity.ERROR, source="not-carried")


def _wire_place(finding: Finding) -> Place:
    assert finding.at is None or isinstance(finding.at, Place), "a wire rule names a Place"
    return finding.at or Place()


def _diagnostic(rule: Rule, finding: Finding, place: Place) -> Diagnostic:
    fix = rule.fix if finding.fixable else ""
    return Diagnostic(
        rule.code,
        finding.message,
        finding.severity or rule.severity,
        place,
        {name: _plain(number) for name, number in finding.numbers.items()},
        rule.name,
        finding.help,
        fix,
        rule.safe,
    )


def _plain(number: Any) -> Any:
    """What JSON can hold: it has no NaN and no infinity."""
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return [_plain(n) for n in number] if isinstance(number, list | tuple) else number
