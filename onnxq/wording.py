"""Numbers in messages."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, noun: str) -> str:
    """``1 layer``, ``2 layers``, ``0 layers``, ``2 biases``; for nouns that take an s or es."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def shape_text(dims: Iterable[int | None]) -> str:
    """``[2, ?, 3]``: a shape as far as it is known."""
    return f"[{', '.join('?' if d is None else str(d) for d in dims)}]"
