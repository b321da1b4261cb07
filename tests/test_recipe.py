"""Recipes: every form of a step, parameters, and errors with their place."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxq.context import Context
from onnxq.errors import OptionError, RecipeError
from onnxq.foreign import IrPass, ProtoPass
from onnxq.passbase import Pass, Pipeline
from onnxq.recipe import load_recipe, parse_recipe
from onnxq.registry import Registry
from onnxq.selectors import Selector

HERE = __name__


class Level(enum.Enum):
    """Like every choice of onnxq: kebab-case words."""

    OFF = "off"
    FULL = "full-range"


@dataclass(frozen=True, kw_only=True)
class Toy(Pass):
    name = "toy"

    count: int = 1
    text: str = "x"
    level: Level = Level.OFF
    names: tuple[str, ...] = ()
    skip: tuple[Selector, ...] = ()

    def run(self, model: ir.Model, ctx: Context) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Needy(Pass):
    name = "needy"
    must: int

    def run(self, model: ir.Model, ctx: Context) -> bool:
        return False


def set_doc(model: onnx.ModelProto, *, text: str = "hello", times: int = 1) -> None:
    model.doc_string = text * times


TOY, NEEDY, DOC = f"{HERE}:Toy", f"{HERE}:Needy", f"{HERE}:set_doc"


def test_every_form_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nparameters: {n: {default: 1}}\nsteps:\n  - toy: {count: $n}\n")
    (tmp_path / "toy.py").write_text(f"from {HERE} import Toy as Imported\nclass Toy(Imported):\n    name = 'toy'\n")
    (tmp_path / "main.yaml").write_text(
        f"""
description: All of them.
steps:
  - toy
  - toy: {{count: 2}}
  - own: {{n: 3}}
  - ./own.yaml
  - until-stable:
      - toy
      - toy: {{count: 4}}
  - onnx_ir.passes.common.RemoveUnusedNodesPass
  - onnx_ir.passes.common:DeduplicateInitializersPass: {{size-limit: 7}}
  - {DOC}: {{times: 2}}
  - pipeline: {{name: inner, steps: [toy]}}
"""
    )
    pipeline = load_recipe(tmp_path / "main.yaml", registry=Registry([tmp_path]))
    made = Registry([tmp_path]).get("toy")
    assert pipeline == Pipeline(
        label="main",
        steps=(
            made(),
            made(count=2),  # type: ignore[call-arg]
            Pipeline(label="own", steps=(made(count=3),)),  # type: ignore[call-arg]
            Pipeline(label="own", steps=(made(count=1),)),  # type: ignore[call-arg]
            Pipeline(label="until-stable", until_stable=True, steps=(made(), made(count=4))),  # type: ignore[call-arg]
            IrPass(target="onnx_ir.passes.common.RemoveUnusedNodesPass"),
            IrPass(target="onnx_ir.passes.common:DeduplicateInitializersPass", options=(("size_limit", 7),)),
            ProtoPass(function=set_doc, options=(("text", "hello"), ("times", 2))),
            Pipeline(label="inner", steps=(made(),)),
        ),
    )
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="g"), ir_version=10)
    assert pipeline.run(model, Context())
    assert model.doc_string == "hellohello"


PARAMETERS = f"""\
name: p
parameters:
  count: {{default: 2, description: How many., choices: [2, 4]}}
  names: {{default: [a]}}
  on: {{default: false}}
  must: {{description: No default.}}
steps:
  - {TOY}: {{count: $count, names: $names}}
  - {TOY}: {{text: $must}}
    when: $on
"""


def test_parameters_have_defaults_and_types_of_their_destination() -> None:
    assert parse_recipe(PARAMETERS, {"must": "x"}).steps == (Toy(count=2, names=("a",)),)
    given = {"must": "yes", "count": 4, "names": ("b", "c"), "on": True}
    assert parse_recipe(PARAMETERS, given).steps == (Toy(count=4, names=("b", "c")), Toy(text="yes"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "^p.yaml: recipe p needs parameter 'must' .No default.."),
        ({"must": "", "count": 3}, "^parameter count: parameter 'count': expected one of 2, 4, got '3'"),
        ({"must": "", "cuont": 3}, "^parameter cuont: recipe p has no parameter 'cuont'; did you mean count"),
        ({"must": 3, "on": True}, "^parameter must: option 'text' of .*: expected text, got '3'"),
        ({"must": "", "on": "yes"}, "^parameter on: when: expected true or false, got 'yes'"),
        ({"must": "", "names": "a"}, "^parameter names: option 'names' of .*: expected a list"),
    ],
)
def test_a_wrong_parameter_is_blamed_where_it_was_given(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(PARAMETERS, parameters, file="p.yaml")


def test_python_objects_pass_as_parameters() -> None:
    text = f"parameters: {{level: {{}}, skip: {{}}}}\nsteps:\n  - {TOY}: {{level: $level, skip: $skip}}"
    given = {"level": Level.FULL, "skip": [Selector.parse("op:Conv")]}
    assert parse_recipe(text, given).steps == (Toy(level=Level.FULL, skip=(Selector.parse("op:Conv"),)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.yaml: a recipe needs 'steps'"),
        ("steps: [", "r.yaml:1: not YAML"),
        ("steps: []\n---\nsteps: []", "r.yaml:2: not YAML: but found another document"),
        ("- a", "r.yaml:1: a recipe: expected a mapping"),
        ("nmae: x\nsteps: []", "r.yaml:1: a recipe has no key 'nmae'; did you mean name"),
        ("steps: {}", "r.yaml:1: steps: expected a list, got a mapping"),
        ("steps:\n  - 3\n  - [a]", "r.yaml:2: unknown pass or recipe '3'"),
        ("steps:\n  - [a]", "r.yaml:2: a step: expected text, got a list"),
        ("steps:\n  - {a: {}, b: {}}", "r.yaml:2: a step is one name with its options; got a, b"),
        ("steps:\n  - {when: true}", "r.yaml:2: a step is one name with its options; got none"),
        ("steps:\n  - pln", "r.yaml:2: unknown pass or recipe 'pln'; did you mean plan"),
        ("steps:\n  - no_such.thing:f", "r.yaml:2: cannot import no_such.thing:f"),
        ("steps:\n  - ./none.yaml", "none.yaml: cannot be read: No such file"),
        ("name: a\nname: b\nsteps: []", "r.yaml:2: 'name' stands here twice .first in line 1."),
        (f"steps:\n  - {TOY}:\n      count: 1\n      count: 2", "r.yaml:4: 'count' stands here twice"),
        (f"steps:\n  - {TOY}: {{count: $n}}", "r.yaml:2: no parameter is called 'n'"),
        (f"parameters:\n  num: {{}}\nsteps:\n  - {TOY}: {{count: $nmu}}", "needs parameter 'num'"),
        ("parameters:\n  n: {default: 1}\nsteps:\n  - plan", "no step of recipe uses parameter 'n' .write .n."),
        (
            "parameters:\n  n: {defualt: 1}\nsteps: []",
            "r.yaml:2: parameter 'n' has no key 'defualt'; did you mean def",
        ),
        ("parameters:\n  n: {default: 1, choices: [2]}\nsteps: []", "r.yaml:2: parameter 'n': expected one of 2"),
        ("parameters:\n  n: 3\nsteps: []", "r.yaml:2: parameter 'n': expected a mapping"),
        ("until-stable: 3\nsteps: []", "r.yaml:1: until-stable: expected true or false"),
        ("steps:\n  - plan\n    when: yes please", "r.yaml:3: not YAML"),
        ("steps: &a\n  - until-stable: *a", "r.yaml:1: an alias stands inside its own anchor"),
        ("steps:\n  - pipeline: {steps: [], parameters: {a: {}}}", "r.yaml:2: .*no parameters of its own"),
        ("? [a]\n: 1", "r.yaml:1: a key must be a word"),
        ("<<: {}\nsteps: []", "r.yaml:1: a key must be a word"),
        ("steps: [!!python/name:os.system '']", "r.yaml:1: .*could not determine a constructor"),
    ],
)
def test_a_recipe_that_does_not_hold_together_names_file_and_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(text, file="r.yaml")


def test_recipes_that_contain_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("steps: [b]")
    (tmp_path / "b.yaml").write_text("steps:\n  - ./a.yaml\n")
    with pytest.raises(RecipeError, match=r"recipe a contains itself: a > b > a"):
        load_recipe("a", registry=Registry([tmp_path]))


def test_a_recipe_may_be_used_twice(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"steps: ['{TOY}']")
    (tmp_path / "b.yaml").write_text("steps: [a, a]")
    assert len(load_recipe("b", registry=Registry([tmp_path])).steps) == 2


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"steps: [\xff\xfe]")
    with pytest.raises(RecipeError, match=r"a\.yaml: not UTF-8 text"):
        load_recipe(tmp_path / "a.yaml")


def test_the_name_of_a_pass_is_a_recipe_of_one_step() -> None:
    assert load_recipe(TOY, {"count": 3}) == Pipeline(label="toy", steps=(Toy(count=3),))
    with pytest.raises(RecipeError, match=r"parameter cuont: .*Toy has no option 'cuont'; did you mean count"):
        load_recipe(TOY, {"cuont": 3})
    with pytest.raises(RecipeError, match="unknown pass or recipe 'pln'; did you mean plan"):
        load_recipe("pln")


def test_overrides_reach_every_step_of_a_name_also_inside_recipes() -> None:
    text = f"steps:\n  - {TOY}: {{count: 1, text: kept}}\n  - until-stable: ['{TOY}', '{NEEDY}']"
    steps = parse_recipe(text, overrides={f"{TOY}.count": 5, f"{NEEDY}.must": 6}).steps
    group = Pipeline(label="until-stable", until_stable=True, steps=(Toy(count=5), Needy(must=6)))
    assert steps == (Toy(count=5, text="kept"), group)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({f"{TOY}.cuont": 1}, "^--set .*Toy.cuont: .*has no option 'cuont'; did you mean count"),
        ({f"{TOY}.count": "x"}, "^--set .*Toy.count: option 'count' of .*: expected an integer, got 'x'"),
        ({f"{HERE}:Tooy.count": 1}, "no step of recipe is called so; did you mean .*Toy"),
        ({"count": 1}, "--set count: expected step.option=value"),
    ],
)
def test_an_override_that_does_not_fit_is_blamed_by_name(override: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError if "Tooy" in str(override) or "count" in override else RecipeError, match=message):
        parse_recipe(f"steps:\n  - {TOY}\n", overrides=override)
