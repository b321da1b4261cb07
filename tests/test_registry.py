"""Where names of passes and recipes come from, and what happens when two sources claim one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from onnxq.errors import OptionError, RecipeError
from onnxq.passbase import Pass
from onnxq.recipe import load_recipe
from onnxq.registry import HERE, Registry, kebab, shipped_recipes

PASS = '''"""A file with one pass."""
from dataclasses import dataclass
from typing import ClassVar
from onnxq.passbase import Pass

print("executed")

@dataclass(frozen=True, kw_only=True)
class Mine(Pass):
    """A -> B.

    Attributes:
        level: How much.
    """

    name: ClassVar[str] = "my-pass"
    level: int = 1

    def run(self, model, ctx):
        model.doc_string = f"level {self.level}"
        return True
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "passes"
    folder.mkdir()
    (folder / "my_pass.py").write_text(PASS)
    (folder / "_helper.py").write_text("raise RuntimeError('never imported')")
    (folder / "other.py").write_text("x = 1")
    (folder / "touch.py").write_text('def touch(model, *, text: str = "x"):\n    "Sets the doc string."\n')
    (folder / "both.yaml").write_text("description: >\n  Does\n  both.\nsteps: [my-pass, touch]\n")
    return folder


class Point:
    """A stand-in for an entry point of an installed package."""

    def __init__(self, name: str, value: object, package: str) -> None:
        self.name, self.value, self._loaded = name, str(value), value
        self.dist = type("Dist", (), {"name": package, "version": "1.0"})

    def load(self) -> object:
        if isinstance(self._loaded, Exception):
            raise self._loaded
        return self._loaded


def install(monkeypatch: pytest.MonkeyPatch, *points: Point) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


class Stranger(Pass):
    name = "stranger"


def test_every_module_of_the_package_holds_the_pass_it_is_named_after() -> None:
    registry = Registry()
    files = sorted((HERE / "passes").glob("[!_]*.py"))
    assert files
    for path in files:
        found = registry.get(kebab(path.stem))
        assert (found.name, found.__module__) == (kebab(path.stem), f"onnxq.passes.{path.stem}")
        assert registry.find(found.name).summary, f"{path.stem} has no docstring"


def test_every_shipped_recipe_builds_under_its_file_name() -> None:
    for path in sorted(shipped_recipes().glob("*.yaml")):
        pipeline = load_recipe(path.stem)
        assert pipeline.label == path.stem and pipeline.steps
        assert Registry().find(path.stem).summary


def test_listing_runs_nothing(folder: Path) -> None:
    code = (
        "import sys\nfrom onnxq.registry import Registry\n"
        f"for e in Registry([{str(folder)!r}]).entries.values(): e.summary\n"
        "print([m for m in sys.modules if m.startswith(('onnxq.passes', 'onnx_ir', 'numpy', 'onnxruntime'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_a_folder_brings_passes_functions_and_recipes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry([folder])
    mine = {name: e.summary for name, e in registry.entries.items() if e.origin == str(folder)}
    assert mine == {"my-pass": "A -> B.", "other": None, "touch": "Sets the doc string.", "both": "Does both."}
    assert capsys.readouterr().out == ""
    found = registry.get("my-pass")
    assert found(level=3).level == 3  # type: ignore[call-arg]
    assert Registry([folder]).get("my-pass") is found, "loaded once a process, so that pipelines compare equal"
    assert capsys.readouterr().out == "executed\n"
    assert [str(s) for s in load_recipe("both", registry=registry).steps] == ["my-pass", "touch"]


def test_a_file_without_the_pass_says_what_it_lacks(folder: Path) -> None:
    with pytest.raises(OptionError, match=r'other.py defines no pass with name = "other"'):
        Registry([folder]).get("other")


def test_a_function_is_no_pass_class(folder: Path) -> None:
    with pytest.raises(OptionError, match="'touch' is not an onnxq pass class"):
        Registry([folder]).get("touch")


def test_a_class_that_forgot_the_decorator_is_refused(folder: Path) -> None:
    (folder / "bare.py").write_text(
        PASS.replace("my-pass", "bare").replace("@dataclass(frozen=True, kw_only=True)", "")
    )
    with pytest.raises(OptionError, match="class Mine is not a frozen dataclass, so it has no options"):
        Registry([folder]).get("bare")


@pytest.mark.parametrize(
    ("text", "message"),
    [("def f(:\n", r"broken.py:1: "), ("import no_such_thing\n", r"broken.py: cannot be loaded: ModuleNotFoundError")],
)
def test_a_file_that_cannot_be_loaded_names_file_and_line(folder: Path, text: str, message: str) -> None:
    (folder / "broken.py").write_text(text)
    with pytest.raises(RecipeError, match=message):
        Registry([folder]).get("broken")


def test_a_syntax_error_in_a_folder_names_the_file(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(RecipeError, match=r"broken.py:2: not Python"):
        _ = Registry([folder]).find("broken").summary


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"pass folder .*nowhere does not exist"):
        Registry([tmp_path / "nowhere"])


def test_an_unknown_name_is_an_error_with_near_names(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown pass or recipe 'zzz' \(onnxq passes lists them\)"):
        Registry().find("zzz")
    with pytest.raises(OptionError, match="unknown pass or recipe 'my_pas'; did you mean my-pass"):
        Registry([folder]).find("my_pas")


def test_passes_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Point("stranger", Stranger, "strange-passes"))
    entry = Registry().find("stranger")
    assert (entry.origin, entry.summary) == ("package strange-passes 1.0", "(from package strange-passes 1.0)")
    assert load_recipe("stranger").steps == (Stranger(),)


def test_two_packages_that_claim_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Point("stranger", Stranger, "one"), Point("stranger", Pass, "two"))
    with pytest.raises(OptionError, match=r"two passes are called 'stranger': package one 1.0 .* and package two 1.0"):
        Registry().find("stranger")


def test_a_name_onnxq_has_cannot_be_taken(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "plan.yaml").write_text("steps: []")
    with pytest.raises(OptionError, match=r"two passes are called 'plan': onnxq .*plan.py.* and .*plan.yaml"):
        Registry([folder]).find("my-pass")
    install(monkeypatch, Point("plan", Stranger, "greedy"))
    with pytest.raises(OptionError, match=r"onnxq .* and package greedy 1.0"):
        Registry().get("plan")


def test_the_same_entry_point_seen_twice_is_no_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Point("stranger", Stranger, "one"), Point("stranger", Stranger, "one"))
    assert Registry().get("stranger") is Stranger


def test_an_entry_point_that_cannot_be_imported_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Point("broken", ImportError("no torch"), "heavy"))
    with pytest.raises(OptionError, match=r"pass 'broken' of package heavy 1.0 cannot be imported: no torch"):
        Registry().get("broken")
