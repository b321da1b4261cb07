"""For people: every finding with its numbers and what to do, or one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from onnxq.diagnostics import Diagnostic, Severity
from onnxq.linting.files import STDIN, FileReport
from onnxq.wording import plural

FIXABLE = {True: "[*]", False: "[~]"}


def text(reports: Sequence[FileReport]) -> str:
    """One block a finding: severity, code, name; file and place; what is wrong with its numbers; what to do."""
    lines: list[str] = []
    for report in reports:
        for d in report.diagnostics:
            lines += [
                " ".join([d.severity.value, d.code, d.source, *_mark(d)]),
                f"  {file_name(report.file)}{_at(d)}",
                f"  {d.message}{_numbers(d)}",
                *([f"  help: {d.help}"] if d.help else []),
                "",
            ]
    return "\n".join([*lines, *summary(reports)]) + "\n"


def concise(reports: Sequence[FileReport]) -> str:
    """One line a finding."""
    lines = [
        f"{file_name(report.file)}{_at(d)}: {' '.join([d.severity.value, d.code, *_mark(d)])} {d.message}{_numbers(d)}"
        for report in reports
        for d in report.diagnostics
    ]
    return "\n".join([*lines, *summary(reports)]) + "\n"


def summary(reports: Sequence[FileReport]) -> list[str]:
    """The last lines: how many findings, how many can be mended, how many are not shown."""
    found = [d for report in reports for d in report.diagnostics]
    fixed, suppressed = sum(sum(r.fixed.values()) for r in reports), sum(r.suppressed for r in reports)
    lines = []
    counts = Counter(d.severity for d in found)
    if found:
        parts = [plural(counts[s], s.value) if s is not Severity.INFO else f"{counts[s]} info" for s in Severity]
        text = f"Found {', '.join(part for part, s in zip(parts, Severity, strict=True) if counts[s])}"
        lines.append(f"{text}{f' ({fixed} fixed)' if fixed else ''}.")
    else:
        lines.append(f"All checks passed: {plural(len(reports), 'file')}{f', {fixed} fixed' if fixed else ''}.")
    safe, unsafe = (sum(bool(d.fix) and d.safe is kind for d in found) for kind in (True, False))
    if safe or unsafe:
        hidden = f"{FIXABLE[False]} {unsafe} with --unsafe-fixes" if unsafe else ""
        shown = f"{FIXABLE[True]} {safe} fixable with --fix" if safe else ""
        lines.append(", ".join(part for part in (shown, hidden) if part) + ".")
    if suppressed:
        lines.append(f"{suppressed} not shown: metadata, settings or the baseline say so.")
    return lines


def statistics(reports: Sequence[FileReport]) -> str:
    """How often each rule fired, most often first."""
    found = [d for report in reports for d in report.diagnostics]
    names = {d.code: d.source for d in found}
    counts = sorted(Counter(d.code for d in found).items(), key=lambda item: (-item[1], item[0]))
    width = max((len(str(n)) for _, n in counts), default=0)
    lines = [f"{n:>{width}} {code} {names[code]}" for code, n in counts]
    return "\n".join([*lines, *summary(reports)]) + "\n"


def file_name(file: str) -> str:
    """How a file is called: ``<stdin>`` for standard input."""
    return "<stdin>" if file == STDIN else file


def _at(diagnostic: Diagnostic) -> str:
    place = str(diagnostic.place)
    if diagnostic.place.op_type and diagnostic.place.value:
        place += f" -> {diagnostic.place.value}" if diagnostic.place.node else f" '{diagnostic.place.value}'"
    return f": {place}" if place else ""


def _mark(diagnostic: Diagnostic) -> list[str]:
    return [FIXABLE[diagnostic.safe]] if diagnostic.fix else []


def _numbers(diagnostic: Diagnostic) -> str:
    parts = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in diagnostic.numbers.items()]
    return f" ({', '.join(parts)})" if parts else ""


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
