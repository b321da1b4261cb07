"""What the wheel is made of: every package and every data file that is on disk, one version, one command."""

from __future__ import annotations

import ast
import importlib
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import onnxq

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def folders() -> dict[str, Path]:
    """Package name -> folder, for all that belongs into the wheel."""
    code = {p.parent for p in (ROOT / "onnxq").rglob("*") if p.suffix in (".py", ".yaml") and p.is_file()}
    named = {".".join(folder.relative_to(ROOT).parts): folder for folder in code}
    return {**named, "onnxq.pipelines": ROOT / "passes"}


def test_every_folder_is_a_listed_package(pyproject: dict[str, Any]) -> None:
    setuptools = pyproject["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(folders())
    assert setuptools["package-dir"] == {"onnxq.pipelines": "passes"}
    assert all((folder / "__init__.py").is_file() for name, folder in folders().items() if name != "onnxq.pipelines")


def test_every_data_file_is_taken_along(pyproject: dict[str, Any]) -> None:
    data = pyproject["tool"]["setuptools"]["package-data"]
    for name, folder in folders().items():
        files = {p.name for p in folder.iterdir() if p.is_file() and p.suffix not in (".py", ".pyc")}
        taken = {file for file in files for pattern in data.get(name, ()) if fnmatch(file, pattern)}
        assert files == taken, f"{name}: {files - taken} would not be in the wheel"
    assert (ROOT / "onnxq" / "py.typed").is_file()


def test_version_and_command(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    assert project["version"] == onnxq.__version__
    module, _, function = project["scripts"]["onnxq"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_each_third_party_import_is_a_dependency(pyproject: dict[str, Any]) -> None:
    """Imports found by name in the source, so that a lazy one is not forgotten."""
    named = {"yaml": "PyYAML", "onnx_ir": "onnx-ir", "PIL": "pillow", "google": "onnx"}
    project = pyproject["project"]
    listed = project["dependencies"] + [r for rs in project["optional-dependencies"].values() for r in rs]
    known = {r.split(">")[0].split(";")[0].strip().lower() for r in listed}
    imported: set[str] = set()
    for file in (ROOT / "onnxq").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            imported |= {name.split(".")[0] for name in names}
    foreign = imported - set(sys.stdlib_module_names) - {"onnxq", "tomllib"}
    assert {named.get(name, name).lower() for name in foreign} <= known
