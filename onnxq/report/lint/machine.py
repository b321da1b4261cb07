"""For programs: JSON with stable keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onnxq.diagnostics import Diagnostic
from onnxq.linting.baseline import fingerprint
from onnxq.linting.files import FileReport

FORMAT = "onnxq-lint-1"


def json_text(reports: Sequence[FileReport]) -> str:
    """One document: format, files checked, and all findings."""
    findings = [entry(report.file, d) for report in reports for d in report.diagnostics]
    whole = {
        "format": FORMAT,
        "files": len(reports),
        "suppressed": sum(report.suppressed for report in reports),
        "fixed": {report.file: report.fixed for report in reports if report.fixed},
        "findings": findings,
    }
    return json.dumps(whole, indent=2) + "\n"


def json_lines(reports: Sequence[FileReport]) -> str:
    """One finding a line."""
    return "".join(json.dumps(entry(report.file, d)) + "\n" for report in reports for d in report.diagnostics)


def entry(file: str, diagnostic: Diagnostic) -> dict[str, Any]:
    """A finding with stable keys."""
    place = diagnostic.place
    return {
        "code": diagnostic.code,
        "name": diagnostic.source,
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        "file": file,
        "place": {"graph": place.graph, "node": place.node, "op_type": place.op_type, "value": place.value},
        "numbers": diagnostic.numbers,
        "help": diagnostic.help,
        "fix": {"passes": [diagnostic.fix], "safe": diagnostic.safe} if diagnostic.fix else None,
        "fingerprint": fingerprint(diagnostic, file),
    }
