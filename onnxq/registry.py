"""Names of passes and recipes, and where they live. Nothing is imported or executed until it is asked for by name.

Four sources, one name space: `onnxq/passes/<snake_name>.py`, entry points of the group ``onnxq.passes``, the recipes
shipped with onnxq, and pass folders (single-file passes ``*.py`` and recipes ``*.yaml``). A module or file whose name
starts with an underscore is no pass. A name that two sources claim is an error that names both.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onnxq.docstrings import summary
from onnxq.errors import OptionError, RecipeError, near

if TYPE_CHECKING:
    from onnxq.passbase import Pass

GROUP = "onnxq.passes"
HERE = Path(__file__).parent
_LOADING = threading.RLock()


@dataclass(frozen=True)
class Entry:
    """One name.

    Attributes:
        name: Kebab-case name.
        kind: ``pass`` or ``recipe``.
        origin: Who provides it, for people: ``onnxq``, a package with version, or a folder.
        path: The file; None for an entry point.
        load: Imports and returns what the name stands for: a `Pass` class, an ``onnx_ir`` pass class or a function;
            for a recipe its file.
    """

    name: str
    kind: str
    origin: str
    path: Path | None
    load: Callable[[], Any]

    @property
    def summary(self) -> str | None:
        """First paragraph of its documentation, read without running it; None if the file holds no such pass."""
        if self.path is None:
            return f"(from {self.origin})"
        if self.kind == "recipe":
            from onnxq import yamltree

            about = yamltree.read_file(self.path).mapping("a recipe").get("description")
            return summary(about.string("description")) if about else ""
        try:
            body = ast.parse(self.path.read_bytes(), str(self.path)).body
        except SyntaxError as error:
            raise RecipeError(f"not Python: {error.msg}", file=str(self.path), line=error.lineno) from error
        for node in body:
            if _defines(node, self.name):
                return summary(ast.get_docstring(node))  # type: ignore[arg-type]
        return None


class Registry:
    """All names, for one run.

    Args:
        pass_dirs: Folders with single-file passes and recipes, beyond what onnxq and installed packages bring.

    Raises:
        OptionError: A folder that does not exist.
    """

    def __init__(self, pass_dirs: Iterable[str | Path] = ()) -> None:
        self.pass_dirs = tuple(Path(folder) for folder in pass_dirs)
        for folder in self.pass_dirs:
            if not folder.is_dir():
                raise OptionError(f"pass folder {folder} does not exist")

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All names, sorted.

        Raises:
            OptionError: Two sources claim one name.
        """
        out: dict[str, Entry] = {}
        for entry in (*_modules(), *_shipped(), *_entry_points(), *self._folders()):
            if entry.name in out:
                both = " and ".join(f"{e.origin} ({e.path or e.kind})" for e in (out[entry.name], entry))
                raise OptionError(f"two passes are called '{entry.name}': {both}; rename or remove one of them")
            out[entry.name] = entry
        return dict(sorted(out.items()))

    def find(self, name: str) -> Entry:
        """The entry of a name.

        Raises:
            OptionError: Unknown; names the nearest ones.
        """
        try:
            return self.entries[name]
        except KeyError:
            hint = near(name, self.entries) or " (onnxq passes lists them)"
            raise OptionError(f"unknown pass or recipe '{name}'{hint}") from None

    def get(self, name: str) -> type[Pass]:
        """Import the pass class of a name.

        Raises:
            OptionError: Unknown name, a recipe, or somebody else's kind of pass.
        """
        from onnxq.passbase import Pass

        found = self.find(name).load()
        if not (isinstance(found, type) and issubclass(found, Pass)):
            raise OptionError(f"'{name}' is not an onnxq pass class")
        return found

    def _folders(self) -> Iterator[Entry]:
        for folder in self.pass_dirs:
            yield from _python_files(folder)
            yield from _recipes(folder, str(folder))


def kebab(stem: str) -> str:
    """The name a file of this stem stands for."""
    return stem.replace("_", "-")


def shipped_recipes() -> Path:
    """The folder of onnxq's own recipes: inside the installed package, else beside it in a checkout."""
    inside = HERE / "pipelines"
    return inside if inside.is_dir() else HERE.parent / "passes"


def _modules() -> Iterator[Entry]:
    for path in sorted((HERE / "passes").glob("[!_]*.py")):
        name = kebab(path.stem)
        yield Entry(name, "pass", "onnxq", path, _loader(f"onnxq.passes.{path.stem}", None, name))


def _shipped() -> Iterator[Entry]:
    yield from _recipes(shipped_recipes(), "onnxq")


def _recipes(folder: Path, origin: str) -> Iterator[Entry]:
    for path in sorted((*folder.glob("[!_.]*.yaml"), *folder.glob("[!_.]*.yml"))):
        yield Entry(kebab(path.stem), "recipe", origin, path, lambda path=path: path)  # type: ignore[misc]


def _entry_points() -> Iterator[Entry]:
    seen = set()
    for point in importlib.metadata.entry_points(group=GROUP):
        origin = f"package {point.dist.name} {point.dist.version}" if point.dist else f"entry point {point.value}"
        if (point.name, point.value, origin) not in seen:
            seen.add((point.name, point.value, origin))
            yield Entry(point.name, "pass", origin, None, _point_loader(point, origin))


def _python_files(folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("[!_.]*.py")):
        name = kebab(path.stem)
        digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
        yield Entry(name, "pass", str(folder), path, _loader(f"onnxq_pass_{digest}_{path.stem}", path, name))


def _point_loader(point: importlib.metadata.EntryPoint, origin: str) -> Callable[[], Any]:
    def load() -> Any:
        try:
            return point.load()
        except Exception as error:
            raise OptionError(f"pass '{point.name}' of {origin} cannot be imported: {error}") from error

    return load


def _loader(module: str, path: Path | None, name: str) -> Callable[[], Any]:
    def load() -> Any:
        loaded = importlib.import_module(module) if path is None else _run_file(module, path)
        return _pick(loaded, name)

    return load


def _run_file(module: str, path: Path) -> ModuleType:
    """Import a file under a name of its own, once per process, like any module."""
    with _LOADING:
        return sys.modules.get(module) or _execute(module, path)


def _execute(module: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        del sys.modules[module]
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise RecipeError(f"cannot be loaded: {type(error).__name__}: {error}", file=str(path), line=line) from error
    return loaded


def _pick(module: ModuleType, name: str) -> Any:
    """The pass class, or plain function, that a module holds under a name."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__ and getattr(value, "name", None) == name:
            options = [k for k, kind in inspect.get_annotations(value).items() if "ClassVar" not in str(kind)]
            if options and "__dataclass_params__" not in vars(value):
                raise OptionError(
                    f"pass '{name}': class {value.__name__} is not a frozen dataclass, so it has no options"
                )
            return value
    function = vars(module).get(name.replace("-", "_"))
    if inspect.isfunction(function):
        return function
    raise OptionError(f'{module.__file__} defines no pass with name = "{name}" and no function of that name')


def _defines(node: ast.stmt, name: str) -> bool:
    """Whether a statement defines the pass class, or the function, of this name."""
    if isinstance(node, ast.FunctionDef):
        return kebab(node.name) == name
    if not isinstance(node, ast.ClassDef):
        return False
    for line in node.body:
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        named = any(isinstance(t, ast.Name) and t.id == "name" for t in targets)
        if named and isinstance(line.value, ast.Constant) and line.value.value == name:  # type: ignore[attr-defined]
            return True
    return False
