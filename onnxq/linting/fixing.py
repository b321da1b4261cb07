"""Mending: the passes that rules name, run until nothing is left that they could mend.

A fix is a pass that gets `onnxq.chosen.Chosen`: the nodes and values of the findings, without those that are
suppressed. After each round the result is written and checked as a file again, so that wire rules see what was written;
what the border itself mends (declarations of nothing) is mended by that, too.
"""

from __future__ import annotations

import difflib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq import border
from onnxq.chosen import Chosen
from onnxq.context import Context
from onnxq.diagnostics import Place
from onnxq.errors import OnnxqError
from onnxq.facts import Goal
from onnxq.linting.engine import UNREADABLE, Outcome, check
from onnxq.linting.files import STDIN, FileReport
from onnxq.linting.rule import Finding, Rule
from onnxq.linting.selection import Selection
from onnxq.linting.settings import LintSettings
from onnxq.linting.subject import Subject
from onnxq.linting.textform import text_form
from onnxq.passbase import run_step
from onnxq.registry import Registry
from onnxq.targets import load_target

MAX_ROUNDS = 10


@dataclass
class Mended:
    """One mended model.

    Attributes:
        outcome: What is still found.
        model: The mended model; None where nothing was changed.
        fixed: Findings that are gone, by code.
    """

    outcome: Outcome
    model: ir.Model | None = None
    fixed: dict[str, int] = field(default_factory=dict)


@dataclass
class Fixed:
    """What became of the files.

    Attributes:
        reports: What is found afterwards, by file.
        diff: Unified diff of the files' text form.
        stdin: The model that came in on stdin, mended; as it was where nothing could be.
        errors: Why files could not be mended, by file; they are as they were.
    """

    reports: list[FileReport] = field(default_factory=list)
    diff: str = ""
    stdin: bytes | None = None
    errors: dict[str, str] = field(default_factory=dict)


def fix_files(files: Sequence[str], settings: LintSettings, data: bytes | None, *, unsafe: bool, write: bool) -> Fixed:
    """Mend files where they lie, or only say how they would change.

    A file is replaced as a whole, and only if something changes; one that cannot be mended stays as it is, and the
    others go on.

    Args:
        files: What `onnxq.linting.files.expand` made.
        settings: Which rules, and what to ignore.
        data: What came in on stdin.
        unsafe: Also run fixes that may change results.
        write: Replace the files; else make the differences.
    """
    fixed = Fixed(stdin=data if write else None)
    for file in files:
        source = data if file == STDIN and data is not None else file
        path = None if file == STDIN else Path(file)
        with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
            try:
                mended = mend(source, settings, Path(folder), path, unsafe=unsafe)
                if mended.model is not None and not write:
                    fixed.diff += _diff(source, mended.outcome, file)
                elif mended.model is not None and path is not None:
                    border.save(mended.model, path)
                elif mended.model is not None:
                    fixed.stdin = border.Crossing(mended.model, bytes).to_bytes()
            except OnnxqError as error:
                fixed.errors[file] = str(error)
                mended = Mended(check(source, settings.selection()))
        if not write:
            mended.fixed = {}
        fixed.reports.append(_report(file, mended, settings, path))
    return fixed


def _report(file: str, mended: Mended, settings: LintSettings, path: Path | None) -> FileReport:
    kept = [d for d in mended.outcome.diagnostics if not settings.ignores(d, path)]
    hidden = mended.outcome.suppressed + len(mended.outcome.diagnostics) - len(kept)
    return FileReport(file, kept, hidden, mended.fixed)


def mend(source: str | bytes, settings: LintSettings, folder: Path, path: Path | None, *, unsafe: bool) -> Mended:
    """Run fixes until no finding is left that they could mend.

    Args:
        source: Path or serialized model.
        settings: Which rules, and what to ignore.
        folder: For the files between rounds.
        path: Path by which ``settings`` know the file.
        unsafe: Also run fixes that may change results.

    Raises:
        OnnxqError: A fix failed, or the result cannot be read again; names the pass.
    """
    outcome = check(source, settings.selection(), graph=True)
    before, mended, passes = _counts(outcome), Mended(outcome), Registry()
    for number in range(MAX_ROUNDS):
        model, wanted = outcome.model, _wanted(outcome, settings, path, unsafe)
        if model is None or not wanted:
            break
        changed = False
        for name, findings in wanted.items():
            changed |= _run(name, passes, model, _context(findings, outcome, settings))
        target = folder / f"{number}.onnx"
        border.save(model, target)
        later = check(str(target), settings.selection(), graph=True)
        if later.model is None:
            raise OnnxqError(f"{', '.join(wanted)}: the result could not be read again, a bug in onnxq")
        if not changed and _counts(later) == _counts(outcome):
            break
        outcome = later
        mended.outcome, mended.model = outcome, outcome.model
    mended.fixed = dict(sorted((before - _counts(mended.outcome)).items()))
    return mended


def _run(name: str, passes: Registry, model: ir.Model, ctx: Context) -> bool:
    try:
        return run_step(passes.get(name)(), model, ctx)
    except OnnxqError as error:
        raise OnnxqError(f"the fix {name} failed: {error}") from error


def _counts(outcome: Outcome) -> Counter[str]:
    return Counter(d.code for d in outcome.diagnostics)


def _wanted(
    outcome: Outcome, settings: LintSettings, path: Path | None, unsafe: bool
) -> dict[str, list[tuple[Rule, Finding]]]:
    """Findings that may be mended, by pass, in order of the rules."""
    wanted: dict[str, list[tuple[Rule, Finding]]] = {}
    for (rule, finding), diagnostic in zip(outcome.findings, outcome.reported, strict=True):
        if diagnostic.fix and (rule.safe or unsafe) and not settings.ignores(diagnostic, path):
            wanted.setdefault(rule.fix, []).append((rule, finding))
    return wanted


def _context(findings: Sequence[tuple[Rule, Finding]], outcome: Outcome, settings: LintSettings) -> Context:
    """What a fix reads: the places of its findings, and the target."""
    assert outcome.subject is not None
    chosen, places = Chosen(), _Places(outcome.subject)
    for _, finding in findings:
        at = places.find(finding.at) if isinstance(finding.at, Place) else finding.at
        if isinstance(at, ir.Node):
            chosen.nodes.add(at)
        elif isinstance(at, ir.Value):
            chosen.values.add(at)
    facts: list[Any] = [chosen]
    if settings.target is not None:
        facts.append(Goal(load_target(settings.target)))
    return Context().put(*facts)


class _Places:
    """Nodes and values of a model by the places that wire rules name."""

    def __init__(self, subject: Subject) -> None:
        self._nodes: dict[tuple[str, str], ir.Node] = {}
        self._values: dict[tuple[str, str], ir.Value] = {}
        for graph, path in subject.paths.items():
            for value in (*graph.inputs, *graph.initializers.values()):
                self._values.setdefault((path, value.name or ""), value)
        for node in subject.nodes:
            path = subject.paths[node.graph] if isinstance(node.graph, ir.Graph) else ""
            for key in (node.name, *(value.name for value in node.outputs)):
                self._nodes.setdefault((path, key or ""), node)

    def find(self, place: Place) -> ir.Node | ir.Value | None:
        """The node or value; None for the model as a whole, and for what is not in the graph."""
        if place.node or place.op_type:
            return self._nodes.get((place.graph, place.node or place.value))
        return self._values.get((place.graph, place.value)) if place.value else None


def _diff(source: str | bytes, outcome: Outcome, file: str) -> str:
    name = "stdin" if file == STDIN else file
    texts: list[list[str]] = []
    for side in (check(source, Selection(select=(UNREADABLE,)), graph=True), outcome):
        assert side.model is not None and side.subject is not None
        texts.append(text_form(side.model, side.subject.wire))
    return "".join(difflib.unified_diff(texts[0], texts[1], f"a/{name}", f"b/{name}", n=1))
