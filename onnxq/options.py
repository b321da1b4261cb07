"""Options of passes: what there is, and typed conversion between YAML and Python.

The fields of a pass (and the keyword arguments of a plain function) are its options. Names are kebab-case in YAML and
on the command line, snake_case in Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.docstrings import attributes
from onnxq.errors import OptionError, near
from onnxq.wording import plural
from onnxq.yamltree import Item

MISSING = dataclasses.MISSING
SCALARS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
LISTS: dict[Any, Callable[[Any], Any]] = {tuple: tuple, list: list, set: set, frozenset: frozenset, Sequence: tuple}


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: Name in Python.
        kind: Its type.
        default: Default, or `MISSING` if it must be given.
        doc: What it means, one line.
    """

    name: str
    kind: Any
    default: Any = MISSING
    doc: str = ""

    @property
    def key(self) -> str:
        """Name in YAML."""
        return kebab(self.name)


def kebab(name: str) -> str:
    """``snake_case`` to ``kebab-case``."""
    return name.replace("_", "-")


def options_of(target: Any) -> dict[str, Option]:
    """The options of a dataclass (compared fields), another class (constructor arguments) or a function (keywords).

    Returns:
        Options by their YAML name, in the order of their definition.

    Raises:
        OptionError: Annotations that cannot be resolved.
    """
    docs = attributes(target)
    if dataclasses.is_dataclass(target):
        hints = _hints(target)
        found = [
            Option(f.name, hints[f.name], _default(f), docs.get(f.name, ""))
            for f in dataclasses.fields(target)
            if f.init and f.compare
        ]
    else:
        is_class = isinstance(target, type)
        hints = _hints(target.__init__ if is_class else target)
        parameters = list(inspect.signature(target).parameters.values())[0 if is_class else 1 :]
        found = [
            Option(p.name, hints.get(p.name, Any), MISSING if p.default is p.empty else p.default, docs.get(p.name, ""))
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
    return {option.key: option for option in found}


def read_options(options: Mapping[str, Option], given: Item, owner: str) -> dict[str, Any]:
    """Convert what a mapping gives for some options; Python names out.

    Raises:
        RecipeError: An option that does not exist, does not fit, or is missing; with place and near match.
    """
    out = {}
    items = given.mapping(owner)
    for key, item in items.items():
        if key not in options:
            raise given.error(f"{owner} has no option '{key}'{near(key, options) if options else '; it has none'}", key)
        out[options[key].name] = convert(item, options[key].kind, f"option '{key}' of {owner}")
    missing = [key for key, option in options.items() if option.default is MISSING and key not in items]
    if missing:
        raise given.error(f"{owner} needs {', '.join(missing)}")
    return out


def convert(item: Item, kind: Any, what: str) -> Any:
    """Turn a piece of YAML into a value of a Python type; ``what`` names it in errors.

    Raises:
        RecipeError: It does not fit; says what would.
    """
    value, origin, args = item.value, typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return item.plain()
    if origin in (typing.Union, types.UnionType):
        return _one_of(item, args, what)
    if origin is typing.Literal:
        return _choice(item, {str(a): a for a in args}, what)
    base = origin or kind
    if base in LISTS:
        return LISTS[base](_elements(item, base, args, what))
    if base in (dict, Mapping):
        of = args[1] if args else Any
        return {k: convert(v, of, f"'{k}' in {what}") for k, v in item.mapping(what).items()}
    if kind in SCALARS:
        return _scalar(item, kind, what)
    if not isinstance(kind, type):
        raise OptionError(f"{what}: type {kind} cannot be given in a recipe")
    if isinstance(value, kind) or kind is object:
        return value
    if issubclass(kind, enum.Enum):
        return _choice(item, {str(m.value): m for m in kind}, what)
    if issubclass(kind, Path):
        return kind(item.string(what))
    if hasattr(kind, "parse"):
        try:
            return kind.parse(item.string(what))
        except OptionError as error:
            raise item.error(f"{what}: {error}") from error
    if dataclasses.is_dataclass(kind):
        return kind(**read_options(options_of(kind), item, what))
    raise OptionError(f"{what}: type {kind.__name__} cannot be given in a recipe")


def to_data(value: Any) -> Any:
    """The inverse of `convert`: plain data that YAML can hold.

    Raises:
        OptionError: A Python object that has no YAML form.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or type(value) in SCALARS:
        return value
    if isinstance(value, Mapping):
        return {str(k): to_data(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((to_data(v) for v in value), key=str)
    if isinstance(value, list | tuple):
        return [to_data(v) for v in value]
    if isinstance(value, Path) or hasattr(type(value), "parse"):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {option.key: to_data(getattr(value, option.name)) for option in options_of(type(value)).values()}
    raise OptionError(f"{value!r} cannot be written as YAML")


def _hints(target: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError) as error:
        raise OptionError(
            f"{target.__module__}.{target.__qualname__}: the annotations do not resolve: {error}"
        ) from error


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _elements(item: Item, base: Any, args: tuple[Any, ...], what: str) -> list[Any]:
    items = item.sequence(what)
    if base is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise item.error(f"{what}: expected {plural(len(args), 'value')}, got {len(items)}")
        return [convert(child, kind, what) for child, kind in zip(items, args, strict=True)]
    return [convert(child, args[0] if args else Any, what) for child in items]


def _one_of(item: Item, kinds: tuple[Any, ...], what: str) -> Any:
    real = [kind for kind in kinds if kind is not type(None)]
    if item.value is None and len(real) < len(kinds):
        return None
    errors = []
    for kind in sorted(real, key=lambda k: k is str):  # text comes last: any word is text
        try:
            return convert(item, kind, what)
        except ValueError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise item.error(f"{what}: expected {' or '.join(describe(kind) for kind in kinds)}, got {item}")


def _choice(item: Item, known: Mapping[str, Any], what: str) -> Any:
    text = item.text if item.text is not None else str(item.value)
    if isinstance(item.value, list | dict) or text not in known:
        hint = near(text, known, 1)
        hint = "" if hint.startswith("; known") else hint  # they are listed already
        raise item.error(f"{what}: expected one of {', '.join(known)}, got {item}{hint}")
    return known[text]


def _scalar(item: Item, kind: Any, what: str) -> Any:
    value = item.value
    if kind is str:
        return item.string(what)
    if kind is float and isinstance(value, str) and item.text is not None:
        with contextlib.suppress(ValueError):  # YAML 1.1 takes 1e-3 for a word.
            value = float(item.text)
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise item.error(f"{what}: expected {SCALARS[kind]}, got {item}")


def describe(kind: Any) -> str:
    """A type in words, for messages and documentation."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in args)
    if origin is typing.Literal:
        return ", ".join(str(a) or "''" for a in args)
    base = origin or kind
    if base in LISTS:
        return f"list of {describe(args[0])}" if args else "list"
    if base in (dict, Mapping):
        return f"mapping to {describe(args[1])}" if args else "mapping"
    if kind is type(None):
        return "nothing"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(str(m.value) for m in kind)
    return SCALARS.get(kind) or getattr(kind, "__name__", str(kind)).lower()
