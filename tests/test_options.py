"""Options of passes: what YAML text means for each type of field, and what is refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import onnx_ir as ir
import pytest

from onnxq.context import Context
from onnxq.errors import OptionError, RecipeError
from onnxq.options import convert, describe, options_of
from onnxq.passbase import Pass
from onnxq.recipe import parse_recipe
from onnxq.selectors import Selector
from onnxq.yamltree import value_of


class Level(enum.Enum):
    """Like every choice of onnxq: kebab-case words."""

    OFF = "off"
    FULL = "full-range"


@dataclass(frozen=True)
class Window:
    low: float
    high: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Toy(Pass):
    name = "toy"

    flag: bool = False
    count: int = 1
    rate: float = 0.5
    text: str = "x"
    level: Level = Level.OFF
    mode: Literal["auto", "never"] = "auto"
    names: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    skip: tuple[Selector, ...] = ()
    limit: float | None = None
    size: int | Level = 3
    where: Path | None = None
    per_op: dict[str, int] | None = None
    window: Window = Window(0.0)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise OptionError("count must not be negative")

    def run(self, model: ir.Model, ctx: Context) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Needy(Pass):
    name = "needy"
    must: int

    def run(self, model: ir.Model, ctx: Context) -> bool:
        return False


TOY, NEEDY = f"{__name__}:Toy", f"{__name__}:Needy"


def toy(options: str, **kwargs: object) -> Toy:
    (step,) = parse_recipe(f"steps:\n  - {TOY}: {{{options}}}\n", file="r.yaml", **kwargs).steps  # type: ignore[arg-type]
    assert isinstance(step, Toy)
    return step


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("flag: true", {"flag": True}),
        ("flag: off", {"flag": False}),
        ("count: 3", {"count": 3}),
        ("rate: 3", {"rate": 3.0}),
        ("rate: 1e-3", {"rate": 0.001}),
        ("rate: .inf", {"rate": float("inf")}),
        ("text: off", {"text": "off"}),
        ("text: 0012", {"text": "0012"}),
        ("text: '12'", {"text": "12"}),
        ("level: off", {"level": Level.OFF}),
        ("level: full-range", {"level": Level.FULL}),
        ("mode: never", {"mode": "never"}),
        ("names: [a, no, 1]", {"names": ("a", "no", "1")}),
        ("pair: [3, 4]", {"pair": (3, 4.0)}),
        ("skip: ['op:Conv', /a/**]", {"skip": (Selector.parse("op:Conv"), Selector.parse("path:/a"))}),
        ("limit: 2", {"limit": 2.0}),
        ("limit: null", {"limit": None}),
        ("size: 8", {"size": 8}),
        ("size: full-range", {"size": Level.FULL}),
        ("where: out/dir", {"where": Path("out/dir")}),
        ("per-op: {Conv: 4}", {"per_op": {"Conv": 4}}),
        ("window: {low: 1}", {"window": Window(1.0, 1.0)}),
        ("text: $$price", {"text": "$price"}),
        ("text: a$b", {"text": "a$b"}),
        ("text: 2024-01-01", {"text": "2024-01-01"}),
    ],
)
def test_options_are_typed_by_the_field(option: str, value: dict[str, object]) -> None:
    assert toy(option) == Toy(**value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("flag: maybe", "option 'flag' of .*Toy: expected true or false, got 'maybe'"),
        ("flag: 1", "expected true or false, got '1'"),
        ("count: true", "expected an integer, got 'true'"),
        ("count: 1.5", "expected an integer, got '1.5'"),
        ("count: '1'", "expected an integer, got '1'"),
        ("rate: fast", "expected a number, got 'fast'"),
        ("text: [a]", "expected text, got a list"),
        ("text: null", "expected text, got nothing"),
        ("level: full", "expected one of off, full-range, got 'full'; did you mean full-range"),
        ("mode: nevr", "expected one of auto, never, got 'nevr'; did you mean never"),
        ("names: a", "expected a list, got 'a'"),
        ("pair: [1]", "expected 2 values, got 1"),
        ("skip: ['re:(']", "selector 're:.' is no regular expression"),
        ("limit: x", "option 'limit' of .*: expected a number, got 'x'"),
        ("size: big", "expected an integer or off, full-range, got 'big'"),
        ("per-op: {Conv: x}", "'Conv' in option 'per-op' of .*: expected an integer"),
        ("per-op: 3", "expected a mapping of 'key: value', got '3'"),
        ("window: {}", "option 'window' of .* needs low"),
        ("window: {low: 1, hihg: 2}", "has no option 'hihg'; did you mean high"),
        ("cuont: 1", "has no option 'cuont'; did you mean count"),
        ("per_op: {}", "has no option 'per_op'; did you mean per-op"),
        ("count: -1", "count must not be negative"),
    ],
)
def test_a_wrong_option_names_file_line_and_what_would_be_right(option: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"^r.yaml:2: .*{message}"):
        toy(option)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Literal["", "per-tensor"], "'', per-tensor"),
        (Level, "off, full-range"),
        (int | None, "an integer or nothing"),
        (tuple[int, ...], "list of an integer"),
        (list, "list"),
        (dict[str, int], "mapping to an integer"),
        (dict, "mapping"),
        (Path, "path"),
    ],
)
def test_types_in_words(kind: object, text: str) -> None:
    assert describe(kind) == text


def test_an_option_without_default_must_be_given() -> None:
    with pytest.raises(RecipeError, match=r"^r.yaml:3: .*Needy needs must$"):
        parse_recipe(f"name: x\nsteps:\n  - {NEEDY}\n", file="r.yaml")


class Odd:
    """Neither a class that YAML can make, nor one that parses text."""


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Odd, "the option: type Odd cannot be given"), (TypeVar("T"), "the option: type ~T cannot be given")],
)
def test_types_that_yaml_cannot_give(kind: object, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        convert(value_of("x", "here"), kind, "the option")


def test_annotations_that_do_not_resolve_are_named() -> None:
    def lost(x: int) -> None: ...

    lost.__annotations__["x"] = "Nowhere"
    with pytest.raises(OptionError, match=r"lost: the annotations do not resolve: name 'Nowhere' is not defined"):
        options_of(lost)


def test_python_values_as_items() -> None:
    nested = {"a": [1, {"b": None}], 2: "x"}
    item = value_of(nested, "here")
    assert item.plain() == {"a": [1, {"b": None}], "2": "x"} and item.file == "here"
    assert value_of(item, "elsewhere") is item
