"""What holds for `onnxq lint` whatever it is given: diagnostics come out, and nothing else happens."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from onnxq.diagnostics import Diagnostic
from onnxq.linting.engine import FAILED, NOT_CARRIED, Outcome, check
from onnxq.linting.files import FileReport
from onnxq.linting.selection import Selection
from onnxq.report.lint import FORMATS
from onnxq.targets import list_targets

TARGETS: tuple[str | None, ...] = (None, *list_targets())


def broken(data: bytes, folder: Path, target: str | None) -> str:
    """What of the law a model breaks; empty where nothing. Warnings of Python count.

    Args:
        data: A serialized model, or anything else.
        folder: Where its external data are, and where it is written.
        target: The target whose rules are added.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return _broken(data, folder, target)


def _broken(data: bytes, folder: Path, target: str | None) -> str:
    selection, path = Selection(target=target), folder / "model.onnx"
    path.write_bytes(data)
    outcome = check(data, selection, base_dir=folder)
    for diagnostic in outcome.diagnostics:
        if diagnostic.code == FAILED:
            return diagnostic.message
    if outcome.subject is not None:
        assert outcome.subject.inferred is not None  # a rule may ask for them at any time
    from_path = check(path, selection)
    if _said(from_path) != _said(outcome):
        return f"path and bytes differ: {_difference(from_path, outcome)}"
    message = ModelProto()
    try:
        message.ParseFromString(data)
    except DecodeError:
        pass
    else:
        from_message = check(message, selection, base_dir=folder)
        if data and _said(from_message) != _said(outcome):
            return f"message and bytes differ: {_difference(from_message, outcome)}"
    return _printed(outcome.diagnostics)


def _said(outcome: Outcome) -> list[str]:
    """Findings as text; why no graph could be made is said by whoever sees it first."""
    return sorted(f"{d.code} {d.place} {d.message if d.code != NOT_CARRIED else ''}" for d in outcome.diagnostics)


def _difference(one: Outcome, other: Outcome) -> str:
    left, right = _said(one), _said(other)
    return f"{[t for t in left if t not in right][:3]} and {[t for t in right if t not in left][:3]}"


def _printed(diagnostics: list[Diagnostic]) -> str:
    """Whether every format can print the findings, as text that can be written to a file."""
    for name, form in FORMATS.items():
        text = form([FileReport("model.onnx", diagnostics)])
        text.encode()
        if name in ("json", "gitlab", "sarif"):
            json.loads(text, parse_constant=_refuse)
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
