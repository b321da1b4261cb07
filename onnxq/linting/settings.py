"""Settings of the check: ``[tool.onnxq.lint]`` of the project, and what the caller adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from onnxq.diagnostics import Diagnostic, Severity
from onnxq.errors import OptionError, near
from onnxq.linting.selection import Selection

FailOn = Literal["error", "warning", "info", "never"]
_LISTS = ("select", "extend-select", "ignore")
_TABLES = ("per-file-ignores", "per-node-ignores")
_KEYS = (*_LISTS, *_TABLES, "fail-on", "max-warnings", "target", "baseline")


@dataclass(frozen=True)
class LintSettings:
    """What a project says about the check.

    Attributes:
        select: As in `Selection`.
        extend_select: As in `Selection`.
        ignore: As in `Selection`.
        per_file_ignores: Prefixes by pattern of the file's path, relative to ``folder``, or of its name.
        per_node_ignores: Prefixes by pattern of the node's name.
        fail_on: Least severity that makes the exit code 1.
        max_warnings: More warnings than this make it 1, too.
        target: Target whose rules are added.
        baseline: File of known findings.
        folder: Where the settings were read.
    """

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per_node_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fail_on: FailOn = "error"
    max_warnings: int | None = None
    target: str | None = None
    baseline: Path | None = None
    folder: Path = field(default=Path(), compare=False)

    def selection(self) -> Selection:
        """Which rules run."""
        return Selection(self.select, self.extend_select, self.ignore, self.target)

    def ignores(self, diagnostic: Diagnostic, path: Path | None) -> bool:
        """Whether a finding is not to be reported in this file or at this node."""
        prefixes: list[str] = []
        if path is not None:
            for pattern, codes in self.per_file_ignores.items():
                if fnmatchcase(self._relative(path), pattern) or fnmatchcase(path.name, pattern):
                    prefixes += codes
        node = diagnostic.place.node
        for pattern, codes in self.per_node_ignores.items():
            if node and fnmatchcase(node, pattern):
                prefixes += codes
        return any(p == "ALL" or diagnostic.code.startswith(p) for p in prefixes)

    def _relative(self, path: Path) -> str:
        try:
            return path.resolve().relative_to(self.folder.resolve()).as_posix()
        except ValueError:
            return path.as_posix()

    def fails(self, diagnostics: list[Diagnostic]) -> bool:
        """Whether these findings make the exit code 1."""
        order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
        if self.fail_on != "never":
            limit = order.index(Severity(self.fail_on))
            if any(order.index(d.severity) <= limit for d in diagnostics):
                return True
        warnings = sum(d.severity is Severity.WARNING for d in diagnostics)
        return self.max_warnings is not None and warnings > self.max_warnings


def read_settings(table: Mapping[str, Any], file: Path) -> LintSettings:
    """The settings in a ``lint`` table.

    Raises:
        OptionError: An unknown key, or a value of the wrong kind; names the file.
    """
    for key in table:
        if key not in _KEYS:
            raise OptionError(f"{file}: unknown setting 'lint.{key}'{near(key, _KEYS)}")
    lists = {key: _codes(table.get(key, []), f"{file}: lint.{key}") for key in _LISTS}
    tables = {}
    for key in _TABLES:
        value = table.get(key, {})
        if not isinstance(value, dict):
            raise OptionError(f'{file}: lint.{key} must be a table, for example {{"old/*.onnx" = ["OQ7"]}}')
        tables[key] = {pattern: _codes(codes, f"{file}: lint.{key}") for pattern, codes in value.items()}
    fail_on, most = table.get("fail-on", "error"), table.get("max-warnings")
    if fail_on not in get_args(FailOn):
        raise OptionError(f"{file}: lint.fail-on must be one of {', '.join(get_args(FailOn))}, not {fail_on!r}")
    if most is not None and (type(most) is not int or most < 0):
        raise OptionError(f"{file}: lint.max-warnings must be a number from 0 on, not {most!r}")
    texts = {key: table.get(key) for key in ("target", "baseline")}
    for key, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise OptionError(f"{file}: lint.{key} must be a text, not {text!r}")
    return LintSettings(
        lists["select"],
        lists["extend-select"],
        lists["ignore"],
        tables["per-file-ignores"],
        tables["per-node-ignores"],
        fail_on,
        most,
        texts["target"],
        file.parent / texts["baseline"] if texts["baseline"] else None,
        file.parent,
    )


def _codes(value: Any, where: str) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(code, str) for code in value)):
        raise OptionError(f'{where} must be a list of codes, for example ["OQ1", "OQ303"]')
    return tuple(value)
