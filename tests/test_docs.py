"""README and docs: every example runs, every link leads somewhere, every code and class is listed."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import onnxq.errors
from onnxq.cli.app import COMMANDS, app
from onnxq.passes.gptq import Gptq
from onnxq.recipe import parse_recipe
from onnxq.targets import list_targets, load_target
from onnxq.tuning import tuner

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
# passes.md and rules.md are generated; the recipes and rules in them have tests of their own.
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in ("passes.md", "rules.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
# Why a line of a shell block is not run here.
NOT_RUN = {
    "make": "the targets set up environments and download models; tests/test_makefile.py looks after them",
    "pip install": "needs an environment of its own; .ci/run installs the wheel in one",
    "python train.py": "needs onnxruntime's training build; tests/training_build/test_page.py runs it",
    "onnxq run from-trainable trainable.onnx": "reads what train.py wrote; runs there, too",
}


def name_of(page: Path) -> str:
    return page.name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader has: the checkout's LeNet, and a few images."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "lenet").symlink_to(ROOT / "models" / "lenet")
    (tmp_path / "images").mkdir()
    with np.load(ROOT / "models" / "lenet" / "digits.npz") as digits:
        for i, pixels in enumerate(digits["pixels"][:3]):
            Image.fromarray(pixels).resize((40, 32)).save(tmp_path / "images" / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tuner, "RACE_SECONDS", 0.0)
    monkeypatch.setattr(Gptq, "run", lambda *_: False)  # most of the time, and not what the examples are about
    return tmp_path


def call(arguments: list[str]) -> int:
    code: Any = 0
    try:
        app(args=arguments, prog_name="onnxq")
    except SystemExit as stop:
        code = stop.code or 0
    return int(code)


def console(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Run the ``$`` lines; the lines below one are what it prints, up to ``...`` and spaces."""
    code, shown = 0, ""
    said: bool | None = None
    for line in text.splitlines():
        if line == "$ echo $?":
            shown, said, code = f"{code}\n", None, 0
        elif line.startswith("$ "):
            assert code == 0 or said, f"exit code {code}, which the page does not show: {shown}"
            words = shlex.split(line[2:], comments=True)
            assert words[0] == "onnxq", line
            target = words[-1] if words[-2] == ">" else None
            code = call(words[1:-2] if target else words[1:])
            out, err = capfd.readouterr()
            if target:
                Path(target).write_text(out, encoding="utf-8")
            shown, said = " ".join((out + err).split()), False
        elif line != "...":
            expected = " ".join(line.split())
            assert expected in shown, f"expected {line!r}, got {shown}"
            said = True
    assert code == 0 or said, f"exit code {code}: {shown}"


def file_of(text: str) -> str | None:
    """The file that a block is: a first line that is nothing but a comment with its name."""
    found = re.match(r"# ([\w./-]+\.(?:py|ya?ml|toml))$", text.partition("\n")[0])
    return found[1] if found else None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_run(page: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    names: dict[str, Any] = {"__name__": "page"}
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        file = file_of(text)
        if file:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        elif kind == "console":
            console(text, capfd)
        elif kind == "python":
            exec(compile(text, f"{page.name}, python", "exec"), names)
        elif kind == "yaml":
            parse_recipe(text)
        elif kind == "toml":
            tomllib.loads(text)
        elif kind == "sh":
            for line in text.splitlines():
                assert line.startswith(tuple(NOT_RUN)), f"{line}: make it a console block, or say in NOT_RUN why not"
        else:
            pytest.fail(f"{page.name}: a block of unknown kind '{kind}'")
    for module in set(sys.modules) - before:
        if module.startswith(("my_", "onnxq_pass_")):
            del sys.modules[module]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "docs" / "passes.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`onnxq ([a-z]+)", text)) <= set(COMMANDS)
    known = set(options())
    for span in re.findall(r"`([^`\n]*)`", FENCE.sub("", text)):
        words = [word for word in span.split() if word.startswith("--")]
        if span.startswith(("onnxq", "--")):
            assert set(words) <= known, span


def options() -> Iterator[str]:
    """Every option of every command, as its help lists it."""
    for command in COMMANDS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            call([command, "--help"])
        yield from re.findall(r"(--[a-z-]+)", out.getvalue())


def codes() -> Iterator[str]:
    """Codes of notes and decisions in the source: kebab-case texts in the place where a code stands."""
    places = {"note": (0,), "_note": (0,), "Decision": (1,), "decide": (2,), "dynamic": (2,), "_leave": (1,)}
    for file in (ROOT / "onnxq").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for place in places.get(called, ()):
                for part in ast.walk(node.args[place]) if len(node.args) > place else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value
    for target in list_targets():
        kinds = {rule.kind for rule in load_target(target).integer_ops.values()}
        yield from kinds - {"matmul-like", "recurrent"}


def test_each_code_is_on_the_page() -> None:
    text = (ROOT / "docs" / "how-it-decides.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", text[text.index("## Codes of decisions") :], re.M)
    listed = {code for row in rows for code in re.findall(r"`([\w-]+)`", row)}
    found = set(codes())
    assert found - listed == set()
    # These two are chosen by a condition on another value than the place itself.
    assert listed - found <= {"infinite-range", "no-range"}


def test_each_error_class_is_on_the_page() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    classes = {k for k, v in vars(onnxq.errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert classes == set(re.findall(r"^\| `(\w+)` \|", text, re.M))


def test_the_readme_has_a_place_for_each_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("accuracy", "speed"):
        assert text.count(f"<!-- {name} -->\n") == text.count(f"<!-- /{name} -->\n") == 1


def test_the_picture_is_described() -> None:
    title = re.search(r"<title>(.*)</title>", (ROOT / "docs" / "flow.svg").read_text(encoding="utf-8"))
    assert title is not None
    assert f"![{title[1]}](docs/flow.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_preprocessing_example_names_every_key() -> None:
    from dataclasses import fields

    from onnxq.calibration.images import Preprocessing

    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (block,) = (b for kind, b in FENCE.findall(text) if kind == "yaml")
    assert {*yaml.safe_load(block), "input"} == {f.name for f in fields(Preprocessing)}
