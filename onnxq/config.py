"""Settings of a project: ``[tool.onnxq]`` of the nearest ``pyproject.toml`` upwards, or ``onnxq.toml`` beside it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxq.errors import OptionError, near
from onnxq.linting.settings import LintSettings, read_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Config:
    """What a project says.

    Attributes:
        pass_dirs: Folders with the project's own passes and recipes.
        file: Where it was read, None without a file.
        lint: Settings of `onnxq lint`.
    """

    pass_dirs: tuple[Path, ...] = ()
    file: Path | None = None
    lint: LintSettings = field(default_factory=LintSettings)


def read_config(start: Path) -> Config:
    """The settings that hold in a folder; ``onnxq.toml`` wins over ``pyproject.toml`` of the same folder.

    Raises:
        OptionError: A file that is not TOML, an unknown key, or a value of the wrong kind.
    """
    for folder in (start.resolve(), *start.resolve().parents):
        for file in (folder / "onnxq.toml", folder / "pyproject.toml"):
            if file.is_file():
                table = _table(file)
                if table is not None:
                    return _config(table, file)
    return Config()


def read_config_file(file: Path) -> Config:
    """The settings in one file, ``onnxq.toml`` or a ``pyproject.toml``.

    Raises:
        OptionError: It cannot be read, or holds no settings of onnxq.
    """
    table = _table(file)
    if table is None:
        raise OptionError(f"{file}: no table [tool.onnxq]")
    return _config(table, file)


def _table(file: Path) -> dict[str, Any] | None:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{file}: {error}") from error
    table = data if file.name != "pyproject.toml" else data.get("tool", {}).get("onnxq")
    if table is not None and not isinstance(table, dict):
        raise OptionError(f"{file}: [tool.onnxq] must be a table")
    return table


def _config(table: dict[str, Any], file: Path) -> Config:
    known = ("pass-dirs", "lint")
    for key in table:
        if key not in known:
            raise OptionError(f"{file}: unknown setting '{key}'{near(key, known)}")
    dirs = table.get("pass-dirs", [])
    if not (isinstance(dirs, list) and all(isinstance(d, str) for d in dirs)):
        raise OptionError(f'{file}: pass-dirs must be a list of folders, for example ["passes"]')
    lint = table.get("lint", {})
    if not isinstance(lint, dict):
        raise OptionError(f"{file}: lint must be a table")
    return Config(tuple(file.parent / d for d in dirs), file, read_settings(lint, file))
