"""Pipelines written as recipes: with every default, and equal when read back."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.context import Context
from onnxq.errors import OptionError
from onnxq.foreign import IrPass, ProtoPass
from onnxq.numerics.spec import QTYPES, QType
from onnxq.passbase import Pass, Pipeline
from onnxq.recipe import dump, load_recipe, parse_recipe
from onnxq.registry import Registry
from onnxq.selectors import Selector

HERE = __name__
NAMES = Registry()


class Level(enum.Enum):
    OFF = "off"
    FULL = "full-range"


class Bits(enum.IntEnum):
    FOUR = 4
    EIGHT = 8


@dataclass(frozen=True)
class Window:
    low: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wide(Pass):
    """One field of every kind."""

    name = "wide"

    flag: bool = False
    count: int = 1
    rate: float = 0.5
    text: str = "x"
    level: Level = Level.OFF
    bits: Bits = Bits.EIGHT
    kind: QType = QTYPES["int8"]
    mode: Literal["auto", "never", "on"] = "auto"
    names: tuple[str, ...] = ()
    skip: tuple[Selector, ...] = ()
    words: frozenset[str] = frozenset()
    limit: float | None = None
    size: Level | str | int = 3
    where: Path | None = None
    per_op: dict[str, tuple[int, ...]] | None = None
    window: Window | None = None

    def run(self, model: ir.Model, ctx: Context) -> bool:
        return False


def set_doc(model: onnx.ModelProto, *, text: str = "hello", factor: float | None = None) -> None:
    model.doc_string = text


floats = st.floats(allow_nan=False)
texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["$a", "$$", "no", "1e3", "~", "0x1f", "<<"]
)
words = st.text("abcxyz-", min_size=1, max_size=5)
selectors = st.sampled_from(["op:Conv", "/a/**", "name:re:x", "re:a$", "$x", "*"]).map(Selector.parse)
wides = st.builds(
    Wide,
    flag=st.booleans(),
    count=st.integers(),
    rate=floats,
    text=texts,
    level=st.sampled_from(Level),
    bits=st.sampled_from(Bits),
    kind=st.sampled_from(list(QTYPES.values())),
    mode=st.sampled_from(["auto", "never", "on"]),
    names=st.lists(texts, max_size=3).map(tuple),
    skip=st.lists(selectors, max_size=3).map(tuple),
    words=st.frozensets(texts, max_size=3),
    limit=st.none() | floats,
    size=st.integers() | st.sampled_from(Level) | texts.filter(lambda t: t != "off"),
    where=st.none() | words.map(Path),
    per_op=st.none() | st.dictionaries(words, st.lists(st.integers(), max_size=2).map(tuple), max_size=2),
    window=st.none() | st.builds(Window, low=floats, names=st.lists(texts, max_size=2).map(tuple)),
)
functions = st.builds(
    lambda text, factor: ProtoPass(function=set_doc, options=(("text", text), ("factor", factor))),
    texts,
    st.none() | floats,
)
foreign = st.builds(
    lambda n: IrPass(target="onnx_ir.passes.common.DeduplicateInitializersPass", options=(("size_limit", n),)),
    st.integers(),
)
steps = st.recursive(
    wides | functions | foreign,
    lambda inner: st.builds(
        Pipeline,
        steps=st.lists(inner, max_size=3).map(tuple),
        label=st.sampled_from(["until-stable", "pipeline"]) | texts,
        until_stable=st.booleans(),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.builds(Pipeline, steps=st.lists(steps, max_size=3).map(tuple), label=texts, until_stable=st.booleans()))
def test_a_dump_reads_back_equal(pipeline: Pipeline) -> None:
    text = dump(pipeline, registry=NAMES)
    again = parse_recipe(text, registry=NAMES)
    assert again == pipeline
    assert dump(again, registry=NAMES) == text


@pytest.mark.parametrize("name", sorted(n for n, e in Registry().entries.items() if e.kind == "recipe"))
def test_shipped_recipes_read_back_equal(name: str) -> None:
    pipeline = load_recipe(name)
    assert parse_recipe(dump(pipeline)) == pipeline


def test_every_pass_with_defaults_reads_back_equal() -> None:
    registry = Registry()
    for name, entry in registry.entries.items():
        if entry.kind == "pass":
            pipeline = load_recipe(name, registry=registry)
            assert parse_recipe(dump(pipeline, registry=registry), registry=registry) == pipeline, name


def test_passes_of_a_folder_are_written_by_name(tmp_path: Path) -> None:
    (tmp_path / "stamp.py").write_text(
        "def stamp(model, *, text: str = 'x', hook=print):\n    model.doc_string = text\n"
    )
    registry = Registry([tmp_path])
    pipeline = load_recipe("stamp", registry=registry)
    text = dump(pipeline, registry=registry)
    assert text == "name: stamp\nsteps:\n- stamp: {text: x}\n", "what YAML cannot hold keeps the function's default"
    assert parse_recipe(text, registry=registry) == pipeline


def test_what_has_no_name_cannot_be_written() -> None:
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    with pytest.raises(OptionError, match="RemoveUnusedNodesPass was made in Python"):
        dump(Pipeline(steps=(RemoveUnusedNodesPass(),)))
    with pytest.raises(OptionError, match="cannot be imported, so a recipe cannot name it"):
        dump(Pipeline(steps=(ProtoPass(function=lambda m: m),)))


def test_a_value_without_yaml_form_is_an_error() -> None:
    odd: Any = object()
    with pytest.raises(OptionError, match="cannot be written as YAML"):
        dump(Pipeline(steps=(Wide(text=odd),)))


def test_a_dump_shows_every_default() -> None:
    assert (
        dump(Pipeline(steps=(Wide(names=("$a",), window=Window(0.0)),), label="t"))
        == f"""\
name: t
steps:
- {HERE}:Wide:
    flag: false
    count: 1
    rate: 0.5
    text: x
    level: 'off'
    bits: 8
    kind: int8
    mode: auto
    names: [$$a]
    skip: []
    words: []
    limit: null
    size: 3
    where: null
    per-op: null
    window:
      low: 0.0
      names: []
"""
    )
