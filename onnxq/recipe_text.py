"""A recipe as written: its frame, its parameters, and what ``$name`` stands for. `onnxq.recipe` builds the pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxq import yamltree
from onnxq.errors import near
from onnxq.registry import Registry
from onnxq.yamltree import Item

KEYS = ("name", "description", "parameters", "until-stable", "steps")
DOLLAR = re.compile(r"^\$([A-Za-z][\w-]*)$")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a recipe; ``default`` is None where it must be given."""

    name: str
    default: Item | None
    description: str
    choices: tuple[Item, ...]


@dataclass(frozen=True)
class Recipe:
    """A recipe as written; `load_recipe` builds the pipeline."""

    name: str
    description: str
    parameters: dict[str, Parameter]
    until_stable: bool
    steps: Item
    path: Path | None


def find_recipe(source: str | Path, registry: Registry) -> Recipe | None:
    """The recipe of a name or path; None for the name of a pass.

    Raises:
        OptionError: Unknown name.
        RecipeError: Not a recipe.
    """
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        entry = registry.find(str(source))
        if entry.kind == "pass":
            return None
        path = entry.load()
    return read_recipe(yamltree.read_file(path), path)


def read_recipe(root: Item, path: Path | None = None) -> Recipe:
    """Check the frame of a recipe; its steps are checked when they are built.

    Raises:
        RecipeError: Unknown keys, no steps, or a wrong kind of value.
    """
    keys = root.mapping("a recipe")
    for key in keys:
        if key not in KEYS:
            raise root.error(f"a recipe has no key '{key}'{near(key, KEYS)}", key)
    if "steps" not in keys:
        raise root.error("a recipe needs 'steps'")
    declared = keys.get("parameters", Item({})).mapping("parameters")
    return Recipe(
        keys["name"].string("name") if "name" in keys else path.stem if path else "recipe",
        keys["description"].string("description") if "description" in keys else "",
        {name: _parameter(name, item) for name, item in declared.items()},
        flag(keys["until-stable"], "until-stable") if "until-stable" in keys else False,
        keys["steps"],
        path,
    )


def _parameter(name: str, item: Item) -> Parameter:
    what = f"parameter '{name}'"
    known = ("default", "description", "choices")
    keys = item.mapping(what)
    for key in keys:
        if key not in known:
            raise item.error(f"{what} has no key '{key}'{near(key, known)}", key)
    parameter = Parameter(
        name,
        keys.get("default"),
        keys["description"].string(what) if "description" in keys else "",
        tuple(keys["choices"].sequence(f"choices of {what}")) if "choices" in keys else (),
    )
    if parameter.default is not None:
        check_choice(parameter, parameter.default)
    return parameter


def check_choice(parameter: Parameter, given: Item) -> None:
    """Refuse a value that is none of the parameter's choices.

    Raises:
        RecipeError: Names the choices and the nearest one.
    """
    known = [c.plain() for c in parameter.choices]
    if known and given.plain() not in known:
        texts = [str(k) for k in known]
        hint = near(str(given.plain()), texts, 1)
        raise given.error(f"parameter '{parameter.name}': expected one of {', '.join(texts)}, got {given}{hint}")


def flag(item: Item, what: str) -> bool:
    """The value as true or false.

    Raises:
        RecipeError: It is something else.
    """
    if not isinstance(item.value, bool):
        raise item.error(f"{what}: expected true or false, got {item}")
    return item.value


def values_of(recipe: Recipe, given: Item) -> dict[str, Item]:
    """The value of each parameter: the one that the mapping ``given`` holds, else the default.

    Raises:
        RecipeError: An unknown parameter, a value that is not among its choices, or a missing one.
    """
    out = {}
    for name, item in given.mapping(f"parameters of {recipe.name}").items():
        if name not in recipe.parameters:
            hint = near(name, recipe.parameters) if recipe.parameters else "; it has none"
            raise given.error(f"recipe {recipe.name} has no parameter '{name}'{hint}", name)
        check_choice(recipe.parameters[name], item)
        out[name] = item
    for name, parameter in recipe.parameters.items():
        if name not in out:
            if parameter.default is None:
                about = f" ({parameter.description})" if parameter.description else ""
                raise given.error(f"recipe {recipe.name} needs parameter '{name}'{about}")
            out[name] = parameter.default
    return out


def filled(recipe: Recipe, values: Mapping[str, Item]) -> Item:
    """The steps with the values of parameters in place of ``$name``, and ``$$`` made a dollar sign.

    Raises:
        RecipeError: ``$name`` of no parameter, or a parameter that no step uses.
    """
    used = set()

    def change(item: Item) -> Item:
        if not isinstance(item.value, str):
            return item
        if item.value.startswith("$$"):
            return Item(item.value[1:], None, item.file, item.line)
        match = DOLLAR.match(item.value)
        if match is None:
            return item
        if match[1] not in values:
            raise item.error(f"no parameter is called '{match[1]}'{near(match[1], values)}")
        used.add(match[1])
        return values[match[1]]

    steps = recipe.steps.mapped(change)
    for name in values:
        if name not in used:
            raise recipe.steps.error(f"no step of {recipe.name} uses parameter '{name}' (write ${name})")
    return steps
