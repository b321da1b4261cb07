"""Findings of `onnxq lint` in the formats people and services read: one function each, reports in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxq.linting.files import FileReport
from onnxq.report.lint.ci import github, gitlab, junit
from onnxq.report.lint.machine import json_lines, json_text
from onnxq.report.lint.sarif import sarif
from onnxq.report.lint.text import concise, text

Formatter = Callable[[Sequence[FileReport]], str]

FORMATS: dict[str, Formatter] = {
    "text": text,
    "concise": concise,
    "json": json_text,
    "json-lines": json_lines,
    "github": github,
    "gitlab": gitlab,
    "junit": junit,
    "sarif": sarif,
}
