"""Mending: the passes that rules name, run until nothing is left that they could mend.

A fix is a pass. It may read `Chosen`: the nodes and values of the findings, without those that are suppressed. After
each round the result is written and checked as a file again, so that wire rules see what was written.
"""

from __future__ import annotations

import difflib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir

from onnxq import border
from onnxq.context import Context
from onnxq.errors import OnnxqError
from onnxq.facts import Fact
from onnxq.linting.engine import Outcome, check
from onnxq.linting.files import STDIN, FileReport
from onnxq.linting.rule import Finding, Rule
from onnxq.linting.settings import LintSettings
from onnxq.linting.textform import text_form
from onnxq.passbase import run_step
from onnxq.registry import Registry

MAX_ROUNDS = 10


@dataclass
class Chosen(Fact):
    """What a fix is to mend; a pass that finds none of it in the context mends all it finds.

    Attributes:
        nodes: Nodes of findings.
        values: Values of findings.
    """

    stays: ClassVar[bool] = True
    nodes: set[ir.Node] = field(default_factory=set)
    values: set[ir.Value] = field(default_factory=set)


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


def fix_files(
    files: Sequence[str], settings: LintSettings, data: bytes | None, *, unsafe: bool, write: bool
) -> tuple[list[FileReport], str]:
    """Mend files where they lie, or only say how they would change.

    Args:
        files: What `onnxq.linting.files.expand` made.
        settings: Which rules, and what to ignore.
        data: What came in on stdin; it cannot be mended in place.
        unsafe: Also run fixes that may change results.
        write: Replace the files; else return the differences.

    Returns:
        What is found afterwards, and a unified diff of the files' text form.
    """
    reports, diffs = [], []
    for file in files:
        source = data if file == STDIN and data is not None else file
        path = None if file == STDIN else Path(file)
        with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
            mended = mend(source, settings, Path(folder), path, unsafe=unsafe)
            if mended.model is not None:
                if write and path is not None:
                    border.save(mended.model, path)
                elif not write:
                    diffs.append(_diff(source, mended.model, file))
        kept = [d for d in mended.outcome.diagnostics if not settings.ignores(d, path)]
        hidden = mended.outcome.suppressed + len(mended.outcome.diagnostics) - len(kept)
        reports.append(FileReport(file, kept, hidden, mended.fixed if write and path is not None else {}))
    return reports, "".join(diffs)


def mend(source: str | bytes, settings: LintSettings, folder: Path, path: Path | None, *, unsafe: bool) -> Mended:
    """Run fixes until no finding is left that they could mend.

    Args:
        source: Path or serialized model.
        settings: Which rules, and what to ignore.
        folder: For the files between rounds.
        path: Path by which ``settings`` know the file.
        unsafe: Also run fixes that may change results.
    """
    outcome = check(source, settings.selection())
    before, mended = Counter(d.code for d in outcome.diagnostics), Mended(outcome)
    names = Registry()
    for number in range(MAX_ROUNDS):
        model, wanted = outcome.model, _wanted(outcome, settings, path, unsafe)
        changed = False
        for name, findings in wanted.items():
            assert model is not None
            changed |= run_step(names.get(name)(), model, Context().put(_chosen(findings)))
        if not changed or model is None:
            break
        target = folder / f"{number}.onnx"
        border.save(model, target)
        outcome = check(str(target), settings.selection())
        mended.outcome, mended.model = outcome, outcome.model
    after = Counter(d.code for d in mended.outcome.diagnostics)
    mended.fixed = dict(sorted((before - after).items())) if mended.model is not None else {}
    return mended


def _wanted(
    outcome: Outcome, settings: LintSettings, path: Path | None, unsafe: bool
) -> dict[str, list[tuple[Rule, Finding]]]:
    """Findings that may be mended, by pass, in order of the rules."""
    wanted: dict[str, list[tuple[Rule, Finding]]] = {}
    for (rule, finding), diagnostic in zip(outcome.findings, outcome.reported, strict=True):
        if outcome.model is None or not diagnostic.fix or not (rule.safe or unsafe):
            continue
        if not settings.ignores(diagnostic, path):
            wanted.setdefault(rule.fix, []).append((rule, finding))
    return wanted


def _chosen(findings: Sequence[tuple[Rule, Finding]]) -> Chosen:
    chosen = Chosen()
    for _, finding in findings:
        if isinstance(finding.at, ir.Node):
            chosen.nodes.add(finding.at)
        elif isinstance(finding.at, ir.Value):
            chosen.values.add(finding.at)
    return chosen


def _diff(source: str | bytes, model: ir.Model, file: str) -> str:
    name = "stdin" if file == STDIN else file
    try:
        old = text_form(border.open_model(source).model)
    except OnnxqError:
        old = []
    return "".join(difflib.unified_diff(old, text_form(model), f"a/{name}", f"b/{name}", n=1))
