"""YAML as a tree that remembers where each piece stands, so that every error can name file and line.

Scalars keep the text they were written with: an option that takes words reads ``off`` or ``1e-3`` as written, whatever
YAML 1.1 makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from onnxq.errors import RecipeError


@dataclass(frozen=True)
class Item:
    """One piece of YAML, or a Python value that a caller gave in its place.

    Attributes:
        value: None, bool, int, float, str; a list of `Item`; a dict of key to `Item`; or any other Python object.
        text: A plain (unquoted) scalar as written, else None.
        file: Where it stands: a file, or the command-line option it came from.
        line: 1-based line, when there is one.
        lines: Line of each key of a mapping.
    """

    value: Any
    text: str | None = None
    file: str | None = None
    line: int | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    def error(self, message: str, key: str | None = None) -> RecipeError:
        """An error at this place, or at one key of this mapping, which may come from somewhere else."""
        child = self.value.get(key) if key and isinstance(self.value, dict) else None
        if isinstance(child, Item) and child.file != self.file:
            return RecipeError(message, file=child.file, line=child.line)
        return RecipeError(message, file=self.file, line=self.lines.get(key, self.line) if key else self.line)

    def mapping(self, what: str) -> dict[str, Item]:
        """The value as a mapping; empty for nothing at all.

        Raises:
            RecipeError: It is something else.
        """
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error(f"{what}: expected a mapping of 'key: value', got {self}")
        return self.value

    def sequence(self, what: str) -> list[Item]:
        """The value as a list.

        Raises:
            RecipeError: It is something else.
        """
        if not isinstance(self.value, list):
            raise self.error(f"{what}: expected a list, got {self}")
        return self.value

    def string(self, what: str) -> str:
        """The value as text; a plain scalar counts as written.

        Raises:
            RecipeError: It is something else.
        """
        if isinstance(self.value, str):
            return self.value
        if self.text is None or self.value is None:
            raise self.error(f"{what}: expected text, got {self}")
        return self.text

    def plain(self) -> Any:
        """The value with no trace of places."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [v.plain() for v in self.value]
        return self.value

    def mapped(self, change: Callable[[Item], Item]) -> Item:
        """The same tree with each scalar put through ``change``."""
        if isinstance(self.value, dict):
            return replace(self, value={k: v.mapped(change) for k, v in self.value.items()})
        if isinstance(self.value, list):
            return replace(self, value=[v.mapped(change) for v in self.value])
        return change(self)

    def __str__(self) -> str:
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.value is None:
            return "nothing"
        return f"'{self.text if self.text is not None else self.value}'"


def read(text: str, file: str | None = None) -> Item:
    """Parse one YAML document.

    Raises:
        RecipeError: Not YAML, more than one document, a doubled key, a key that is not text, an alias cycle or merge.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RecipeError(f"not YAML: {problem}", file=file, line=mark.line + 1 if mark else None) from error
    return Item(None, file=file) if root is None else _Reader(file).item(root)


def read_file(path: Path) -> Item:
    """Parse a YAML file.

    Raises:
        RecipeError: It cannot be read, or is not YAML as `read` wants it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8 text: {error.reason} at byte {error.start}", file=str(path)) from error
    return read(text, str(path))


def value_of(value: Any, origin: str) -> Item:
    """A Python value as an item; ``origin`` stands for the file in messages."""
    if isinstance(value, Item):
        return value
    if isinstance(value, Mapping):
        return Item({str(k): value_of(v, origin) for k, v in value.items()}, file=origin)
    if isinstance(value, list | tuple):
        return Item([value_of(v, origin) for v in value], file=origin)
    return Item(value, file=origin)


def setting(text: str, option: str) -> tuple[str, Item]:
    """Split a command line's ``key=value``; the value is YAML, so ``[a, b]`` is a list and ``8`` a number.

    Raises:
        RecipeError: No ``=``, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"expected key=value, got '{text}'", file=option)
    origin = f"{option} {key.strip()}"
    return key.strip(), replace(read(value, origin), line=None)


class _Reader:
    """YAML nodes to items."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._scalars = yaml.SafeLoader("")
        self._open: set[int] = set()

    def item(self, node: yaml.Node) -> Item:
        line = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            try:
                value = self._scalars.construct_object(node)
            except (yaml.YAMLError, ValueError) as error:
                raise RecipeError(f"'{node.value}': {error}", file=self._file, line=line) from error
            plain = node.style is None
            known = value is None or isinstance(value, bool | int | float | str)
            return Item(value if known else node.value, node.value if plain else None, self._file, line)
        if id(node) in self._open:
            raise RecipeError("an alias stands inside its own anchor", file=self._file, line=line)
        self._open.add(id(node))
        item = self._sequence(node, line) if isinstance(node, yaml.SequenceNode) else self._mapping(node, line)
        self._open.discard(id(node))
        return item

    def _sequence(self, node: yaml.SequenceNode, line: int) -> Item:
        return Item([self.item(child) for child in node.value], None, self._file, line)

    def _mapping(self, node: yaml.Node, line: int) -> Item:
        out: dict[str, Item] = {}
        lines: dict[str, int] = {}
        for key, child in node.value:
            here = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not key.value or key.value == "<<":
                raise RecipeError("a key must be a word", file=self._file, line=here)
            if key.value in out:
                raise RecipeError(
                    f"'{key.value}' stands here twice (first in line {lines[key.value]})", file=self._file, line=here
                )
            lines[key.value] = here
            out[key.value] = self.item(child)
        return Item(out, None, self._file, line, lines)
