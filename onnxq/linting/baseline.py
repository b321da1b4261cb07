"""Known findings: a file that lists them, so that only new ones count."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onnxq.diagnostics import Diagnostic
from onnxq.errors import OptionError

FORMAT = "onnxq-baseline-1"


def key_of(diagnostic: Diagnostic) -> str:
    """What a finding is known by: code and place, by names; no positions, so that it stays when nodes move."""
    place = diagnostic.place
    return f"{diagnostic.code} {place.graph}|{place.node}|{place.op_type}|{place.value}"


def fingerprint(diagnostic: Diagnostic, file: str, occurrence: int = 0) -> str:
    """A short hash of a finding in a file, for services that track findings."""
    text = f"{file}|{key_of(diagnostic)}|{occurrence}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read(file: Path) -> dict[str, Counter[str]]:
    """Known findings by file, as `write` wrote them.

    Raises:
        OptionError: It cannot be read, or is no baseline.
    """
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}")
        return {name: Counter({str(k): int(n) for k, n in known.items()}) for name, known in data["files"].items()}
    except FileNotFoundError:
        raise OptionError(f"no baseline '{file}': write it with --update-baseline") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise OptionError(f"'{file}' is no baseline ({FORMAT}): {error}") from error


def content(found: Mapping[str, Iterable[Diagnostic]]) -> dict[str, Any]:
    """What to write: the findings of each file, as names and counts, sorted."""
    files = {name: dict(sorted(Counter(map(key_of, ds)).items())) for name, ds in sorted(found.items())}
    return {"format": FORMAT, "files": {name: known for name, known in files.items() if known}}


def new_ones(diagnostics: Iterable[Diagnostic], known: Counter[str]) -> list[Diagnostic]:
    """Findings beyond the known ones; of several of a kind at one place the first are the known ones."""
    left, out = Counter(known), []
    for diagnostic in diagnostics:
        key = key_of(diagnostic)
        if left[key] > 0:
            left[key] -= 1
        else:
            out.append(diagnostic)
    return out
