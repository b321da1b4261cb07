"""Numbers in messages."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """``1 layer``, ``2 layers``, ``0 layers``; for nouns that take an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
