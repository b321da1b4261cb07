"""The reference of passes, recipes and lint rules, made from their docstrings: ``python -m onnxq.docs [FOLDER]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from onnxq.docstrings import own_doc, sections, summary
from onnxq.errors import OptionError
from onnxq.linting.catalog import Entry as RuleEntry
from onnxq.linting.catalog import entries
from onnxq.options import MISSING, describe, options_of, to_data
from onnxq.passbase import Pass
from onnxq.recipe_text import Recipe, find_recipe
from onnxq.registry import Entry, Registry

HEAD = """\
# Passes and recipes

Made by `make docs` from the docstrings of the passes and the descriptions of the recipes.
"""


def reference(registry: Registry) -> str:
    """All passes and recipes as one Markdown page."""
    listed = [entry for entry in registry.entries.values() if entry.summary is not None]
    parts = [HEAD]
    for kind, title in (("recipe", "Recipes"), ("pass", "Passes")):
        parts += [f"## {title}\n", *(page(entry, registry, "###") for entry in listed if entry.kind == kind)]
    return "\n".join(parts)


def page(entry: Entry, registry: Registry, heading: str = "#") -> str:
    """One pass or recipe as Markdown."""
    recipe = find_recipe(entry.name, registry) if entry.kind == "recipe" else None
    blocks = _recipe(recipe) if recipe else _pass(entry.load())
    return "\n\n".join([f"{heading} `{entry.name}`", *blocks]) + "\n"


def facts(entry: Entry, registry: Registry) -> dict[str, Any]:
    """One pass or recipe as JSON-able data."""
    out: dict[str, Any] = {"name": entry.name, "kind": entry.kind, "origin": entry.origin}
    if entry.kind == "recipe":
        recipe = find_recipe(entry.name, registry)
        assert recipe is not None
        out |= {"description": recipe.description, "steps": recipe.steps.plain()}
        return out | {"parameters": {p[0]: dict(zip(PARAMETER[1:], p[1:], strict=True)) for p in _parameters(recipe)}}
    found = entry.load()
    out |= {"description": sections(own_doc(found))[""], **_contract(found)}
    return out | {"options": {o[0]: dict(zip(OPTION[1:], o[1:], strict=True)) for o in _options(found)}}


RULES_HEAD = """\
# Lint rules

Made by `make docs` from the docstrings of the rules; `onnxq rule CODE` shows the same.
How to run them: [Lint](lint.md).

"""
_GROUPS = {
    "0": "Model",
    "1": "Pairs",
    "2": "Parameters",
    "3": "Axes",
    "4": "Packing",
    "5": "Biases",
    "6": "Targets and opsets",
    "7": "Performance",
    "9": "The check itself",
}


def rules() -> str:
    """All lint rules as one Markdown page: a table, then a section each."""
    found = list(entries().values())
    rows = [
        (f"[{e.code}](#{e.code.lower()}-{e.name})", e.name, e.severity, ", ".join(e.targets) or "all", _fix(e))
        for e in found
    ]
    parts, group = [RULES_HEAD + _table(("code", "name", "severity", "targets", "fix"), rows)], ""
    for e in found:
        if e.code[2] != group:
            group = e.code[2]
            parts.append(f"## {_GROUPS[group]}")
        parts += [f"### {e.code} {e.name}", _rule_text(e.page)]
    return "\n\n".join(parts) + "\n"


def _fix(entry: RuleEntry) -> str:
    return "" if not entry.fix else f"`{entry.fix}`{'' if entry.safe else ', unsafe'}"


def _rule_text(page: str) -> str:
    """A docstring as Markdown: section titles become bold, their texts lose the indent."""
    lines = []
    for line in page.splitlines():
        title = line[:-1] if line.endswith(":") and line[:1].strip() else ""
        lines.append(f"**{title}.** " if title else line.strip())
    text = "\n".join(lines)
    return text.replace(".** \n", ".** ")


OPTION = ("option", "type", "default", "meaning")
PARAMETER = ("parameter", "default", "choices", "meaning")


def _pass(found: Any) -> Iterator[str]:
    yield sections(own_doc(found))[""] or "Not documented."
    contract = _contract(found)
    if contract:
        lines = [f"{key} {', '.join(value)}" for key, value in contract.items() if isinstance(value, list) and value]
        once = [] if contract["idempotent"] else ["a second run changes the model again"]
        text = "; ".join([*lines, *once]) or "reads and writes no facts"
        yield f"{text[0].upper()}{text[1:]}."
    rows = list(_options(found))
    yield _table(OPTION, rows) if rows else "No options."


def _recipe(recipe: Recipe) -> Iterator[str]:
    yield summary(recipe.description) or "Not documented."
    rows = list(_parameters(recipe))
    if rows:
        yield _table(PARAMETER, rows)
    yield f"```yaml\n{yaml.safe_dump(recipe.steps.plain(), sort_keys=False, default_flow_style=None, width=100)}```"


def _contract(found: Any) -> dict[str, Any]:
    """What a pass reads, writes and keeps."""
    if not (isinstance(found, type) and issubclass(found, Pass)):
        return {}
    kinds = {"reads": found.reads, "may read": found.maybe_reads, "writes": found.writes, "keeps": found.keeps}
    out: dict[str, Any] = {key: sorted(fact.__name__ for fact in value) for key, value in kinds.items()}
    return out | {"idempotent": found.idempotent}


def _options(found: Any) -> Iterator[tuple[str, str, str, str]]:
    for option in options_of(found).values():
        yield option.key, describe(option.kind), _default(option.default), option.doc


def _parameters(recipe: Recipe) -> Iterator[tuple[str, str, str, str]]:
    for parameter in recipe.parameters.values():
        default = _text(parameter.default.plain()) if parameter.default else "required"
        choices = ", ".join(_text(choice.plain()) for choice in parameter.choices)
        yield parameter.name, default, choices, parameter.description


def _default(value: Any) -> str:
    if value is MISSING:
        return "required"
    try:
        return _text(to_data(value))
    except OptionError:
        return "set by the function"


def _text(data: Any) -> str:
    text: str = yaml.safe_dump(data, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(tuple(head)), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    folder = Path(*sys.argv[1:2] or ["docs"])
    (folder / "passes.md").write_text(reference(Registry()), encoding="utf-8")
    (folder / "rules.md").write_text(rules(), encoding="utf-8")
