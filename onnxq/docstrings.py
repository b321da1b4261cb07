"""Google-style docstrings as data: the one source of the help, the schema and the documentation of passes."""

from __future__ import annotations

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^(Attributes|Args|Raises|Returns|Yields|Example|Examples|Class attributes|Note):\s*$")
_ENTRY = re.compile(r"^    (\w+)(?: \([^)]*\))?:\s*(.*)$")


def sections(doc: str) -> dict[str, str]:
    """Split a docstring: the text before any section under ``""``, then each section under its title."""
    out: dict[str, list[str]] = {"": []}
    title = ""
    for line in inspect.cleandoc(doc).splitlines():
        head = _SECTION.match(line)
        if head:
            title = head[1]
            out[title] = []
        else:
            out[title].append(line)
    return {k: "\n".join(v).strip("\n") for k, v in out.items()}


def entries(section: str) -> dict[str, str]:
    """``name: text`` entries of a section, with continuation lines joined."""
    out: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            name = entry[1]
            out[name] = entry[2]
        elif name and line.strip():
            out[name] += " " + line.strip()
    return out


def summary(doc: str | None) -> str:
    """The first paragraph in one line; empty without a docstring."""
    return " ".join(inspect.cleandoc(doc).split("\n\n")[0].split()) if doc else ""


def own_doc(target: Any) -> str:
    """The docstring somebody wrote for this very object; not one that is inherited or made by `dataclass`."""
    doc = vars(target).get("__doc__") if isinstance(target, type) else getattr(target, "__doc__", None)
    made = isinstance(doc, str) and doc.startswith(f"{getattr(target, '__name__', '')}(")
    return "" if not doc or made else inspect.cleandoc(doc)


def attributes(target: Any) -> dict[str, str]:
    """What the docstrings of a class and its bases, or of a function, say about each attribute or argument."""
    out: dict[str, str] = {}
    for one in reversed(target.__mro__) if isinstance(target, type) else (target,):
        parts = sections(own_doc(one))
        out |= entries(parts.get("Args", "")) | entries(parts.get("Attributes", ""))
    return out
