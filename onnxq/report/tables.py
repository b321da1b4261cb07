"""Small rich tables that read well without colour, too; shared by all text reports."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Iterable[int] = ()) -> Group:
    """A titled table without a box; ``numbers`` are the columns set flush right."""
    out = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    right = set(numbers)
    for i, column in enumerate(columns):
        out.add_column(column, justify="right" if i in right else "left", no_wrap=i in right, overflow="fold")
    for row in rows:
        out.add_row(*(Text(str(cell)) for cell in row))
    return Group(Text(title, style="bold"), out)


def counts(items: Iterable[tuple[str, int]], limit: int | None = None) -> str:
    """``Conv 53, Relu 50``; each name stays on one line with its number; the rest beyond ``limit`` is only counted."""
    listed = list(items)
    shown = ", ".join(f"{name}\N{NO-BREAK SPACE}{n}" for name, n in listed[:limit])
    return f"{shown}, … {len(listed) - limit} more" if limit is not None and len(listed) > limit else shown


def stdout() -> Console:
    """Standard output: the terminal's width, or 120 columns into a file or pipe; `rich` honours ``NO_COLOR``."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def to_text(parts: Iterable[RenderableType], width: int = 120) -> str:
    """Render without colour or trailing blanks."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    show(console, parts)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def show(console: Console, parts: Iterable[RenderableType]) -> None:
    """Print parts with an empty line between them."""
    for i, part in enumerate(parts):
        if i:
            console.print()
        console.print(part)


def human_bytes(size: float) -> str:
    """Bytes for people, in powers of 1000: ``97.5 MB``."""
    for unit in ("B", "kB", "MB"):
        if abs(size) < 999.5:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:.0f} GB"


def share(part: float, whole: float) -> str:
    """A share in percent; ``<0.1 %`` for small ones that are not nothing."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    return "<0.1 %" if percent < 0.05 else f"{percent:.1f} %"
