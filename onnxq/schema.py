"""JSON Schema (draft 2020-12) of recipes, for editors: names, options, types, defaults, descriptions of all passes."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxq.docstrings import own_doc, sections, summary
from onnxq.errors import OptionError
from onnxq.options import LISTS, MISSING, Option, options_of, to_data
from onnxq.recipe_text import Parameter, find_recipe
from onnxq.registry import Entry, Registry

Schema = dict[str, Any]

PARAMETER = {"type": "string", "pattern": r"^\$[A-Za-z][\w-]*$", "description": "Value of a parameter."}
ELSEWHERE = r"^(\w+(\.\w+)+|[\w.]+:[\w.]+|.+\.ya?ml)$"
PLAIN: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": ["string", "number", "boolean"]},
    type(None): {"type": "null"},
    Any: {},
}


def recipe_schema(registry: Registry) -> Schema:
    """The schema; imports every pass.

    Raises:
        OptionError: A pass that cannot be imported.
    """
    steps = {name: _entry(entry, registry) for name, entry in registry.entries.items() if entry.summary is not None}
    frame = {
        "name": {"type": "string", "description": "Name used in messages; the file name if absent."},
        "description": {"type": "string", "description": "What the recipe does."},
        "until-stable": {"type": "boolean", "description": "Repeat all steps until nothing changes."},
        "steps": {"$ref": "#/$defs/steps"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "onnxq recipe",
        **_object({**frame, "parameters": _PARAMETERS}, ["steps"]),
        "$defs": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}, "description": "Steps, in order."},
            "step": {"anyOf": [_bare(steps), {"type": "string", "pattern": ELSEWHERE}, _with_options(steps, frame)]},
            **{f"step:{name}": schema for name, schema in steps.items()},
        },
    }


_PARAMETERS: Schema = {
    "type": "object",
    "description": "Values that steps use as $name.",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "default": {"description": "Value if none is given; a parameter without one must be given."},
            "description": {"type": "string"},
            "choices": {"type": "array", "description": "The only values it may have."},
        },
    },
}


def option_schema(option: Option) -> Schema:
    """The schema of one option: its type, or a parameter."""
    out: Schema = {"anyOf": [type_schema(option.kind), PARAMETER]}
    if option.doc:
        out["description"] = option.doc
    if option.default is not MISSING:
        try:
            out["default"] = to_data(option.default)
        except OptionError:  # a function's default that only Python can hold
            return out
    return out


def type_schema(kind: Any) -> Schema:
    """The schema of a Python type, as `onnxq.options.convert` reads it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [type_schema(arg) for arg in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    base = origin or kind
    if base is tuple and args and args[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [type_schema(a) for a in args], "minItems": len(args), "items": False}
    if base in LISTS:
        return {"type": "array", "items": type_schema(args[0] if args else Any)}
    if base in (dict, Mapping):
        return {"type": "object", "additionalProperties": type_schema(args[1] if args else Any)}
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and (issubclass(kind, Path) or hasattr(kind, "parse")):
        return {"type": "string"}
    if dataclasses.is_dataclass(kind):
        return _options(options_of(kind))
    raise OptionError(f"type {kind} has no form in YAML")


def _entry(entry: Entry, registry: Registry) -> Schema:
    """What may stand behind a name; ``title`` is its summary."""
    if entry.kind == "recipe":
        recipe = find_recipe(entry.name, registry)
        assert recipe is not None
        required = [p.name for p in recipe.parameters.values() if p.default is None]
        return {
            "title": entry.summary,
            "description": recipe.description,
            **_object({p.name: _parameter(p) for p in recipe.parameters.values()}, required),
        }
    found = entry.load()
    doc = own_doc(found)
    return {"title": summary(doc), "description": sections(doc)[""], **_options(options_of(found))}


def _parameter(parameter: Parameter) -> Schema:
    out: Schema = {"description": parameter.description} if parameter.description else {}
    if parameter.default is not None:
        out["default"] = parameter.default.plain()
    if parameter.choices:
        out["anyOf"] = [{"enum": [choice.plain() for choice in parameter.choices]}, PARAMETER]
    return out


def _options(options: Mapping[str, Option]) -> Schema:
    required = [key for key, option in options.items() if option.default is MISSING]
    return _object({key: option_schema(option) for key, option in options.items()}, required)


def _object(properties: Schema, required: list[str]) -> Schema:
    out: Schema = {"type": ["object", "null"] if not required else "object", "properties": properties}
    return {**out, "additionalProperties": False, **({"required": required} if required else {})}


def _bare(steps: Mapping[str, Schema]) -> Schema:
    """Names that need no options."""
    names = [{"const": name, "description": s["title"]} for name, s in steps.items() if "required" not in s]
    return {"oneOf": names}


def _with_options(steps: Mapping[str, Schema], frame: Schema) -> Schema:
    """One name with its options, and perhaps a condition."""
    named = {name: {"$ref": f"#/$defs/step:{name}"} for name in steps}
    groups = {
        "until-stable": {"$ref": "#/$defs/steps", "description": "Repeat these until nothing changes."},
        "pipeline": {"description": "Steps that belong together.", **_object(frame, ["steps"])},
        "when": {"anyOf": [{"type": "boolean"}, PARAMETER], "description": "The step is there only if this is true."},
    }
    return {
        "type": "object",
        "properties": {**named, **groups},
        "patternProperties": {ELSEWHERE: {"type": ["object", "null"]}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    }
