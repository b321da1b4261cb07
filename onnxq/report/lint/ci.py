"""For services that run checks: GitHub annotations, GitLab code quality, JUnit."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from xml.sax.saxutils import escape, quoteattr

from onnxq.diagnostics import Diagnostic, Severity
from onnxq.linting.baseline import fingerprint, key_of
from onnxq.linting.files import FileReport
from onnxq.report.lint.text import file_name

_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_GITLAB = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}
# Characters that XML 1.0 cannot hold even as references.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def github(reports: Sequence[FileReport]) -> str:
    """Workflow commands; a file has no lines, so there is nothing but its path in ``file``."""
    lines = []
    for report in reports:
        file = file_name(report.file).replace("%", "%25").replace(",", "%2C").replace(":", "%3A")
        for d in report.diagnostics:
            text = f"{d}{f' {d.help}' if d.help else ''}"
            text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            lines.append(f"::{_GITHUB[d.severity]} file={file},title=onnxq ({d.code})::{text}\n")
    return "".join(lines)


def gitlab(reports: Sequence[FileReport]) -> str:
    """A code quality report."""
    entries = []
    for report in reports:
        for d, occurrence in numbered(report.diagnostics):
            entries.append(
                {
                    "description": str(d),
                    "check_name": d.code,
                    "fingerprint": fingerprint(d, report.file, occurrence),
                    "severity": _GITLAB[d.severity],
                    "location": {"path": PurePath(report.file).as_posix(), "lines": {"begin": 1}},
                }
            )
    return json.dumps(entries, indent=2) + "\n"


def junit(reports: Sequence[FileReport]) -> str:
    """A JUnit document: a suite a file, a failed case a finding, one passed case for a clean file."""
    suites = []
    for report in reports:
        cases = [_case(d) for d in report.diagnostics] or ['    <testcase name="onnxq lint" classname="onnxq"/>']
        head = f'  <testsuite name={_xml(file_name(report.file))} tests="{len(cases)}" errors="0"'
        suites += [f'{head} failures="{len(report.diagnostics)}">', *cases, "  </testsuite>"]
    tests = sum(max(len(r.diagnostics), 1) for r in reports)
    failures = sum(len(r.diagnostics) for r in reports)
    head = f'<testsuites name="onnxq lint" tests="{tests}" failures="{failures}" errors="0">'
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', head, *suites, "</testsuites>"]) + "\n"


def _case(d: Diagnostic) -> str:
    name = f"{d.code} {d.place}".strip()
    message = f"<failure message={_xml(d.message)} type={_xml(d.severity.value)}>{escape(_clean(str(d)))}</failure>"
    return f"    <testcase name={_xml(name)} classname={_xml(d.source)}>{message}</testcase>"


def _xml(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def numbered(diagnostics: Sequence[Diagnostic]) -> list[tuple[Diagnostic, int]]:
    """Each finding with the number of earlier ones of its kind at its place."""
    seen: Counter[str] = Counter()
    out = []
    for diagnostic in diagnostics:
        key = key_of(diagnostic)
        out.append((diagnostic, seen[key]))
        seen[key] += 1
    return out
