"""All rules: by import for running them, by reading the source for `onnxq rule`, which must not wait for onnx."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxq.errors import OptionError, near

if TYPE_CHECKING:
    from onnxq.linting.rule import Rule

_RULES = Path(__file__).parent.parent / "rules"


@cache
def rules() -> dict[str, Rule]:
    """Every rule by code, in order."""
    from onnxq.linting.rule import Rule

    found: dict[str, Rule] = {}
    for file in _files():
        module = importlib.import_module(f"onnxq.rules.{file.stem}")
        for one in vars(module).values():
            if isinstance(one, Rule):
                found[one.code] = one
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Entry:
    """What the source says of a rule: the literals of its decorator, and its docstring."""

    code: str
    name: str
    severity: str
    tier: str
    targets: tuple[str, ...]
    weights: bool
    fix: str
    safe: bool
    page: str


@cache
def entries() -> dict[str, Entry]:
    """Every rule by code, in order, read without importing a rule."""
    found = (_entry(node, call) for file in _files() for node, call in _decorated(file))
    return dict(sorted((entry.code, entry) for entry in found))


def entry(code: str) -> Entry:
    """The rule of a code or name.

    Raises:
        OptionError: There is none.
    """
    told = (f'"{code.upper()}"'.encode(), f'"{code}"'.encode())
    for file in _files():  # parsing one file instead of all saves a third of the command's time
        if any(text in file.read_bytes() for text in told):
            for one in (_entry(node, call) for node, call in _decorated(file)):
                if code.upper() == one.code or code == one.name:
                    return one
    raise OptionError(f"no rule '{code}'{near(code, [*entries(), *(e.name for e in entries().values())])}")


def _files() -> list[Path]:
    return sorted(f for f in _RULES.glob("*.py") if not f.name.startswith("_"))


def _decorated(file: Path) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.FunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("wire_rule", "graph_rule"):
                    yield node, call


def _entry(node: ast.FunctionDef, call: ast.Call) -> Entry:
    code, name, severity = (ast.literal_eval(a) for a in call.args)
    options: dict[str, Any] = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
    tier = call.func.id.removesuffix("_rule") if isinstance(call.func, ast.Name) else ""
    return Entry(
        code,
        name,
        severity,
        tier,
        options.get("targets", ()),
        options.get("weights", False),
        options.get("fix", ""),
        options.get("safe", True),
        inspect.cleandoc(ast.get_docstring(node) or ""),
    )
