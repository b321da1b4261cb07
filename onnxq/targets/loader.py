"""Target files: YAML to `Target`, strict, with file and line in every error."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from onnxq.errors import OptionError, RecipeError, near
from onnxq.numerics.spec import QType
from onnxq.targets.target import IntegerOp, Target


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
        file = resources.files(__package__) / f"{text}.yaml"
        return parse_target(file.read_text(encoding="utf-8"), f"{text}.yaml")
    path = Path(text)
    if path.suffix not in (".yaml", ".yml"):
        raise OptionError(f"unknown target '{text}'{near(text, names)} (or give the path of a YAML file)")
    try:
        return parse_target(path.read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read target file {text}: {error}") from error


def parse_target(text: str, file: str) -> Target:
    """Read the text of a target file; ``file`` is used in messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise RecipeError(f"not YAML: {error.problem}", file=file, line=line) from error
    if root is None:
        raise RecipeError("the file is empty; a target needs a name, an opset and rules", file=file)
    target = _Reader(file).read(Target, root, "target")
    assert isinstance(target, Target)
    return target


class _Reader:
    """Builds frozen dataclasses from YAML nodes by their type hints."""

    def __init__(self, file: str) -> None:
        self.file = file

    def fail(self, node: yaml.Node, message: str) -> RecipeError:
        return RecipeError(message, file=self.file, line=node.start_mark.line + 1)

    def read(self, hint: Any, node: yaml.Node, name: str) -> Any:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if dataclasses.is_dataclass(hint) and hint is not QType:
            return self.dataclass(hint, node, name)
        if origin is tuple:
            items = node.value if isinstance(node, yaml.SequenceNode) else [node]
            return tuple(self.read(args[0], item, name) for item in items)
        if origin is Mapping:
            return {key: self.read(args[1], value, key) for key, value in self.entries(node, name).items()}
        value = self.scalar(node, name)
        if hint is QType:
            try:
                return QType.named(str(value))
            except OptionError as error:
                raise self.fail(node, f"{name}: {error}") from error
        if origin is typing.Literal and value not in args:
            raise self.fail(node, f"{name}: '{value}' is not one of {', '.join(args)}{near(str(value), args)}")
        if hint in (int, str, bool) and type(value) is not hint:
            raise self.fail(node, f"{name}: expected {hint.__name__}, got {value!r}")
        return value

    def dataclass(self, cls: Any, node: yaml.Node, name: str) -> Any:
        hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
        if cls is IntegerOp and isinstance(node, yaml.ScalarNode):  # `Add: binary` is short for `Add: {kind: binary}`
            return cls(self.read(hints["kind"], node, name))
        entries = self.entries(node, name)
        for key_node, _ in node.value:
            if key_node.value not in hints:
                raise self.fail(key_node, f"{name}: unknown key '{key_node.value}'{near(key_node.value, hints)}")
        needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
        if missing := needed - set(entries):
            raise self.fail(node, f"{name}: missing {', '.join(sorted(missing))}")
        values = {key: self.read(hints[key], value, key) for key, value in entries.items()}
        try:
            return cls(**values)
        except OptionError as error:
            raise self.fail(node, f"{name}: {error}") from error

    def entries(self, node: yaml.Node, name: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, f"{name}: expected keys and values")
        out: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.fail(key, f"{name}: keys are plain words")
            if key.value in out:
                raise self.fail(key, f"{name}: '{key.value}' stands here twice")
            out[key.value] = value
        return out

    def scalar(self, node: yaml.Node, name: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, f"{name}: expected one value")
        return yaml.SafeLoader("").construct_object(node)
