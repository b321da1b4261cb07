"""The JSON Schema of recipes accepts what the reader accepts, and refuses what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from onnxq.docs import facts, page, reference
from onnxq.errors import OptionError
from onnxq.recipe import dump, load_recipe
from onnxq.registry import Registry, shipped_recipes
from onnxq.schema import recipe_schema, type_schema

PASS = '''
import enum
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from onnxq.passbase import Pass
from onnxq.selectors import Selector

class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"

@dataclass(frozen=True, kw_only=True)
class Wide(Pass):
    """A -> B.

    More words.

    Attributes:
        level: How much
            of it.
        skip: Nodes | left alone.
    """

    name: ClassVar[str] = "wide"
    must: int
    level: Level = Level.LOW
    skip: tuple[Selector, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    limit: float | None = None
    mode: Literal["a", "b"] = "a"
    per: dict[str, int] | None = None
    where: Path | None = None
'''


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "wide.py").write_text(PASS)
    (folder / "fix.py").write_text('def fix(model, *, level: int = 1, hook=print):\n    "Fixes it."\n')
    (folder / "own.yaml").write_text(
        "description: Own one.\nparameters: {n: {choices: [1, 2]}, m: {default: 3, description: M.}}\n"
        "steps: [{wide: {must: $n}}, {fix: {level: $m}}]\n"
    )
    (folder / "help_only.py").write_text("x = 1\n")
    return Registry([folder])


@pytest.fixture(scope="module")
def check(registry: Registry) -> Any:
    schema = recipe_schema(registry)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    "step",
    [
        "fix",
        "fix: {level: 3}",
        "fix: {level: $n}",
        "fix:",
        "wide: {must: 1}",
        "wide: {must: 1, level: high, skip: ['op:Conv'], pair: [1, 2.5], limit: null, mode: b, per: {a: 1}}",
        "{wide: {must: 1}, when: $flag}",
        "until-stable: [fix, {fix: {level: 1}}]",
        "pipeline: {name: x, steps: [fix]}",
        "own: {n: 1}",
        "own: {n: $k}",
        "./other.yaml",
        "my_package.fixes:drop",
        "my_package.fixes:drop: {a: 1}",
        "onnx_ir.passes.common.RemoveUnusedNodesPass",
    ],
)
def test_good_steps(check: Any, step: str) -> None:
    check.validate({"steps": [yaml.safe_load(step)]})


@pytest.mark.parametrize(
    "step",
    [
        "fxi",
        "fxi: {}",
        "fix: {lvel: 1}",
        "fix: {level: high}",
        "wide",
        "wide: {}",
        "wide: {must: 1, level: medium}",
        "wide: {must: 1, skip: x}",
        "wide: {must: 1, pair: [1]}",
        "{wide: {must: 1}, when: maybe}",
        "{wide: {must: 1}, fix: {}, when: true}",
        "until-stable: fix",
        "own",
        "own: {n: 3}",
        "own: {n: 1, k: 1}",
        "help-only",
    ],
)
def test_bad_steps(check: Any, step: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check.validate({"steps": [yaml.safe_load(step)]})


@pytest.mark.parametrize("frame", [{}, {"steps": [], "nmae": "x"}, {"steps": [], "parameters": {"a": {"defualt": 1}}}])
def test_bad_frames(check: Any, frame: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check.validate(frame)


def test_shipped_recipes_and_their_dumps_fit(check: Any, registry: Registry) -> None:
    for path in shipped_recipes().glob("*.yaml"):
        check.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        check.validate(yaml.safe_load(dump(load_recipe(path.stem, registry=registry), registry=registry)))


def test_options_carry_default_description_and_enum(check: Any) -> None:
    wide = check.schema["$defs"]["step:wide"]
    assert wide["title"] == "A -> B." and wide["description"] == "A -> B.\n\nMore words."
    level = wide["properties"]["level"]
    assert level["anyOf"][0] == {"enum": ["low", "high"]}
    assert (level["default"], level["description"]) == ("low", "How much of it.")
    assert check.schema["$defs"]["step:own"]["properties"]["m"] == {"description": "M.", "default": 3}
    assert type_schema(Path) == {"type": "string"}


def test_the_reference_has_every_pass_and_recipe(registry: Registry) -> None:
    text = reference(registry)
    for name, entry in registry.entries.items():
        assert (f"### `{name}`\n" in text) == (entry.summary is not None)
    assert "| level | low, high | low | How much of it. |" in text
    assert r"| skip | list of selector | [] | Nodes \| left alone. |" in text
    assert "| must | an integer | required |  |" in text
    assert "| hook | any | set by the function |  |" in text


def test_the_page_of_a_pass_says_what_it_reads_and_writes() -> None:
    registry = Registry()
    assert "May read Goal; writes Goal, Plan" in page(registry.find("plan"), registry)
    assert facts(registry.find("plan"), registry)["writes"] == ["Goal", "Plan"]


def test_structures_and_types_without_a_form() -> None:
    @dataclass(frozen=True)
    class Window:
        low: float
        high: float = 1.0

    schema = type_schema(Window)
    assert set(schema["properties"]) == {"low", "high"} and schema["required"] == ["low"]
    with pytest.raises(OptionError, match="has no form in YAML"):
        type_schema(complex)
