"""SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/): what code scanning services read.

A model has no lines. GitHub wants one, so it is 1; the real place is a logical location, named without positions, so
that an alert stays where it is when nodes move.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onnxq import __version__
from onnxq.diagnostics import Diagnostic, Severity
from onnxq.linting.baseline import fingerprint
from onnxq.linting.catalog import entries
from onnxq.linting.files import FileReport
from onnxq.report.lint.ci import numbered

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif(reports: Sequence[FileReport]) -> str:
    """One run with the rules that fired and all findings."""
    codes = sorted({d.code for report in reports for d in report.diagnostics})
    index = {code: i for i, code in enumerate(codes)}
    results = [
        _result(report.file, d, occurrence, index)
        for report in reports
        for d, occurrence in numbered(report.diagnostics)
    ]
    driver = {"name": "onnxq", "version": __version__, "semanticVersion": __version__, "rules": [*map(_rule, codes)]}
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str) -> dict[str, Any]:
    entry = entries().get(code)
    if entry is None:
        return {"id": code}
    title = entry.page.splitlines()[0] if entry.page else entry.name
    return {
        "id": code,
        "name": "".join(part.capitalize() for part in entry.name.split("-")),
        "shortDescription": {"text": title},
        "help": {"text": entry.page or title},
        "defaultConfiguration": {"level": _LEVEL[Severity(entry.severity)]},
    }


def _result(file: str, d: Diagnostic, occurrence: int, index: dict[str, int]) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(_relative(file))},
            "region": {"startLine": 1},
        }
    }
    name = d.place.node or d.place.value or d.place.op_type
    if name or d.place.graph:
        full = f"{d.place.graph}/{name}".strip("/")
        location["logicalLocations"] = [{"name": name or full, "fullyQualifiedName": full, "kind": "element"}]
    text = f"{d}{f' {d.help}' if d.help else ''}"
    return {
        "ruleId": d.code,
        "ruleIndex": index[d.code],
        "level": _LEVEL[d.severity],
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {"onnxq/v1": fingerprint(d, file, occurrence)},
        "properties": {"numbers": d.numbers},
    }


def _relative(file: str) -> str:
    """The path as seen from the working folder, which services take for the root of the repository."""
    path = Path(file)
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.as_posix()
