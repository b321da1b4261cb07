"""Recipes: YAML to `Pipeline` and back.

    name: int8
    description: What it does, for people.
    parameters:
      weights: {default: int8, choices: [int8, int4], description: Type of weights.}
      smooth: {default: false}
    steps:
      - prepare                         # another recipe, or a pass
      - plan: {weights: $weights}       # options; $name is the value of a parameter, $$ a dollar sign
      - smooth-quant: {alpha: 0.5}
        when: $smooth                   # a step that is only there if this is true
      - until-stable: [fold-constants, remove-unused]
      - onnx_ir.passes.common.RemoveUnusedNodesPass
      - my_package.fixes:drop_dropout   # a ModelProto -> ModelProto function
      - ./own.yaml                      # a recipe file, relative to this one

A parameter without a default must be given. Its value is typed by the option it ends up in.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from onnxq import yamltree
from onnxq.errors import OptionError, RecipeError, near
from onnxq.foreign import IrPass, Options, ProtoPass, locate
from onnxq.options import MISSING, options_of, read_options, to_data
from onnxq.passbase import Pass, Pipeline, Step, step_name
from onnxq.recipe_text import Recipe, filled, find_recipe, flag, read_recipe, values_of
from onnxq.registry import Registry, kebab
from onnxq.yamltree import Item


def load_recipe(
    source: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
) -> Pipeline:
    """Build a pipeline from a recipe by name or path; the name of a pass gives a pipeline of that one pass.

    Args:
        source: Name (`onnxq passes` lists them), or path of a YAML file.
        parameters: Values of the recipe's parameters.
        overrides: ``{"step.option": value}``: options set from outside, in every step of that name.
        registry: Where names are looked up; onnxq's own and the installed packages' by default.

    Raises:
        OptionError: Unknown recipe, or an override that meets no step.
        RecipeError: A recipe that does not hold together; names file, line and the nearest known name.
    """
    builder = _Builder(registry or Registry(), overrides)
    given = {key: yamltree.value_of(value, f"parameter {key}") for key, value in (parameters or {}).items()}
    step = builder.step(str(source), Item(given), None)
    return builder.finish(step if isinstance(step, Pipeline) else Pipeline(steps=(step,), label=str(step)))


def parse_recipe(
    text: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    file: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
) -> Pipeline:
    """Build a pipeline from the text of a recipe; ``file`` is used in messages. See `load_recipe`."""
    builder = _Builder(registry or Registry(), overrides)
    given = {key: yamltree.value_of(value, f"parameter {key}") for key, value in (parameters or {}).items()}
    return builder.finish(builder.recipe(read_recipe(yamltree.read(text, file)), Item(given, file=file)))


class _Builder:
    """One loading: recipes in recipes, one set of overrides."""

    def __init__(self, registry: Registry, overrides: Mapping[str, Any] | None) -> None:
        self._registry = registry
        self._overrides: dict[str, dict[str, Item]] = {}
        for key, value in (overrides or {}).items():
            step, dot, option = key.rpartition(".")
            if not dot or not step or not option:
                raise OptionError(f"--set {key}: expected step.option=value")
            self._overrides.setdefault(step, {})[option] = yamltree.value_of(value, f"--set {key}")
        self._met: set[str] = set()
        self._names: set[str] = set()
        self._open: list[Path] = []

    def finish(self, pipeline: Pipeline) -> Pipeline:
        """Complain about overrides that no step took."""
        for step in self._overrides:
            if step not in self._met:
                raise OptionError(f"--set {step}: no step of {pipeline.label} is called so{near(step, self._names)}")
        return pipeline

    def recipe(self, recipe: Recipe, given: Item) -> Pipeline:
        """Build a recipe; ``given`` maps its parameters to values and says where they stand."""
        place = recipe.path.resolve() if recipe.path else None
        if place in self._open:
            chain = " > ".join(path.stem for path in (*self._open, place))
            raise given.error(f"recipe {recipe.name} contains itself: {chain}")
        steps = filled(recipe, values_of(recipe, given))
        self._open += [place] if place else []
        built = self._group(recipe.name, recipe.until_stable, steps, recipe.path)
        self._open = self._open[:-1] if place else self._open
        return built

    def _group(self, label: str, until_stable: bool, steps: Item, path: Path | None) -> Pipeline:
        return Pipeline(steps=self._list(steps, path), label=label, until_stable=until_stable)

    def _list(self, steps: Item, path: Path | None) -> tuple[Step, ...]:
        out = []
        for item in steps.sequence("steps"):
            keys = item.mapping("a step") if isinstance(item.value, dict) else {item.string("a step"): Item(None)}
            names = [key for key in keys if key != "when"]
            if len(names) != 1:
                raise item.error(f"a step is one name with its options; got {', '.join(names) or 'none'}")
            if "when" not in keys or flag(keys["when"], "when"):
                options = keys[names[0]]
                if options.value is None:
                    options = Item(None, file=item.file, line=item.line)
                out.append(self.step(names[0], options, path))
        return tuple(out)

    def step(self, name: str, options: Item, path: Path | None) -> Step:
        """Build one step of the recipe in ``path``."""
        if name == "until-stable":
            return self._group(name, True, options, path)
        if name == "pipeline":
            inline = read_recipe(options)
            if inline.parameters:
                raise options.error("a pipeline inside a recipe has no parameters of its own", "parameters")
            return self._group(inline.name, inline.until_stable, inline.steps, path)
        self._names.add(name)
        options = self._overridden(name, options)
        try:
            if name.endswith((".yaml", ".yml")):
                file = (path.parent if path else Path()) / name
                return self.recipe(read_recipe(yamltree.read_file(file), file), options)
            if ":" in name or "." in name:
                return _made(locate(name), name, options)
            recipe = find_recipe(name, self._registry)
            if recipe is not None:
                return self.recipe(recipe, options)
            return _made(self._registry.find(name).load(), name, options)
        except RecipeError:
            raise
        except ValueError as error:
            raise options.error(str(error)) from error

    def _overridden(self, name: str, options: Item) -> Item:
        extra = self._overrides.get(name)
        if extra is None:
            return options
        self._met.add(name)
        return replace(options, value={**options.mapping(name), **extra})


def _made(found: Any, name: str, options: Item) -> Step:
    """A step out of what a name means: an onnxq pass class, another pass class or instance, or a function."""
    if isinstance(found, type) and issubclass(found, Pass):
        return found(**read_options(options_of(found), options, name))
    if inspect.isfunction(found):
        return ProtoPass(function=found, options=_all_options(found, options, name))
    target = name if ":" in name or "." in name else f"{found.__module__}:{found.__qualname__}"
    return IrPass(target=target, options=_all_options(found, options, name) if isinstance(found, type) else ())


def _all_options(found: Any, given: Item, name: str) -> Options:
    """Given options and, as far as YAML can hold them, the defaults of the others."""
    known = options_of(found)
    values = {o.name: o.default for o in known.values() if o.default is not MISSING and _writable(o.default)}
    values |= read_options(known, given, name)
    return tuple((o.name, values[o.name]) for o in known.values() if o.name in values)


def _writable(value: Any) -> bool:
    try:
        to_data(value)
    except OptionError:
        return False
    return True


def dump(pipeline: Pipeline, *, registry: Registry | None = None) -> str:
    """Write a pipeline as a recipe with every option filled in; `parse_recipe` reads an equal one back.

    Raises:
        OptionError: A step that has no name, or an option value that has no YAML form.
    """
    data = _group_data(pipeline, registry or Registry())
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


class _Dumper(yaml.SafeDumper):
    """Plain data, with odd characters escaped: PyYAML writes U+0085 raw and reads it back as a line break."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    ),
)


def _group_data(pipeline: Pipeline, registry: Registry) -> dict[str, Any]:
    repeat = {"until-stable": True} if pipeline.until_stable else {}
    return {"name": pipeline.label, **repeat, "steps": [_step_data(step, registry) for step in pipeline.steps]}


def _step_data(step: Step, registry: Registry) -> Any:
    if isinstance(step, Pipeline):
        group = _group_data(step, registry)
        short = step.until_stable and step.label == "until-stable"
        return {"until-stable": group["steps"]} if short else {"pipeline": {**group, "name": _escaped(step.label)}}
    name, options = _named(step, registry)
    return {name: {key: _escaped(to_data(value)) for key, value in options.items()}} if options else name


def _named(step: Step, registry: Registry) -> tuple[str, dict[str, Any]]:
    """The name a recipe calls a step by, and its options."""
    if isinstance(step, IrPass):
        return step.target, {kebab(k): v for k, v in step.options}
    if isinstance(step, ProtoPass):
        return _path(step.function, step, registry), {kebab(k): v for k, v in step.options}
    if isinstance(step, Pass):
        values = {option.key: getattr(step, option.name) for option in options_of(type(step)).values()}
        return _path(type(step), step, registry), values
    raise OptionError(f"{step_name(step)} was made in Python: it has no name that a recipe could use")


def _path(found: Any, step: Step, registry: Registry) -> str:
    """The registered name of a class or function, else its import path."""
    name = getattr(found, "name", None) or kebab(found.__name__)
    entry = registry.entries.get(name)
    if entry is not None and entry.kind == "pass" and entry.load() is found:
        return name
    path = f"{found.__module__}:{found.__qualname__}"
    if "<" in path or locate(path) is not found:
        raise OptionError(f"{step_name(step)}: {path} cannot be imported, so a recipe cannot name it")
    return path


def _escaped(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _escaped(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_escaped(value) for value in data]
    return f"${data}" if isinstance(data, str) and data.startswith("$") else data
