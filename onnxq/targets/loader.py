"""Target files: YAML to `Target`, strict, with file and line in every error."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from onnxq.errors import OptionError, RecipeError, near
from onnxq.options import convert
from onnxq.targets.target import Target
from onnxq.yamltree import read


def list_targets() -> list[str]:
    """Names of the built-in targets, sorted."""
    folder = resources.files(__package__)
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_target(name_or_path: str | Path | Target) -> Target:
    """A built-in target by name, or a user's own YAML file by path; a `Target` is handed back.

    Raises:
        OptionError: No such target or file.
        RecipeError: The file is not a target: names file, line and the nearest known key.
    """
    if isinstance(name_or_path, Target):
        return name_or_path
    text = str(name_or_path)
    names = list_targets()
    if text in names:
        return _built_in(text)
    path = Path(text)
    if path.suffix not in (".yaml", ".yml"):
        raise OptionError(f"unknown target '{text}'{near(text, names)} (or give the path of a YAML file)")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read target file {text}: {why}") from error
    return parse_target(content, text)


@cache
def _built_in(name: str) -> Target:
    file = resources.files(__package__) / f"{name}.yaml"
    return parse_target(file.read_text(encoding="utf-8"), f"{name}.yaml")


def parse_target(text: str, file: str) -> Target:
    """Read the text of a target file; ``file`` is used in messages.

    Raises:
        RecipeError: It is not a target.
    """
    try:
        target = convert(read(text, file), Target, "target")
    except RecipeError:
        raise
    except OptionError as error:
        raise RecipeError(str(error), file=file) from error
    assert isinstance(target, Target)
    return target
