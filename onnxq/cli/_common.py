"""What commands share: models from a file or stdin, results to a file or stdout, progress, names of passes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxq.errors import InputError, OptionError, RecipeError
from onnxq.registry import Registry

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.border import Crossing
    from onnxq.context import Progress
    from onnxq.yamltree import Item


_OVERRIDE = re.compile(r"(?P<select>.+?):(?P<settings>[a-z-]+=.*)", re.DOTALL)
_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*((?P<unit>[kKmMgG])?[bB])?")
_NEXT_KEY = re.compile(r",(?=\s*[a-z-]+=)")


def source(model: str) -> str | bytes:
    """What to open for a MODEL argument; ``-`` is stdin.

    Raises:
        InputError: stdin is a terminal, or empty.
    """
    if model != "-":
        return model
    if sys.stdin.isatty():
        raise InputError("MODEL is -, but no model comes in on stdin")
    data = sys.stdin.buffer.read()
    if not data:
        raise InputError("MODEL is -, but stdin is empty")
    return data


def sources(float_model: str, quant_model: str) -> tuple[str | bytes, str | bytes]:
    """What to open for the arguments FLOAT and QUANT.

    Raises:
        OptionError: Both are stdin.
        InputError: stdin is a terminal, or empty.
    """
    if float_model == quant_model == "-":
        raise OptionError("FLOAT and QUANT are both -: only one model comes in on stdin")
    return source(float_model), source(quant_model)


def open_model(model: str) -> Crossing:
    """Open a MODEL argument.

    Raises:
        InputError: It cannot be read.
    """
    from onnxq import border

    return border.open_model(source(model))


def check_out(out: str, *files: str | None) -> None:
    """Refuse early what would only fail after the work: OUT, and the other files a command writes.

    Raises:
        OptionError: A model to a terminal, or something onto a folder.
    """
    if out == "-" and sys.stdout.isatty():
        raise OptionError("OUT is -, but stdout is a terminal: redirect it, or name a file")
    if out != "-" and Path(out).is_dir():
        raise OptionError(f"OUT {out} is a folder: name a file")
    for file in files:
        if file is not None and Path(file).is_dir():
            raise OptionError(f"{file} is a folder: name a file")


def send(model: ModelProto) -> None:
    """Write a model to stdout.

    Raises:
        OptionError: More than the 2 GiB that a message can have.
    """
    from onnxq.border import open_model

    sys.stdout.buffer.write(open_model(model).to_bytes())
    sys.stdout.buffer.flush()


def save_json(data: Any, out: str | Path) -> None:
    """Write JSON whole or not at all; missing folders are made.

    Raises:
        OptionError: The file cannot be written.
    """
    path = Path(out)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        why = "its folder is a file" if path.parent.is_file() else error.strerror
        raise OptionError(f"cannot write {out}: {why}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def log(message: str) -> None:
    """One line for people, on stderr."""
    print(message, file=sys.stderr)


def registry(pass_dirs: Sequence[str | Path] = ()) -> Registry:
    """Names of passes and recipes: onnxq's, installed packages', the project's ``[tool.onnxq]``, and given folders'."""
    from onnxq.config import read_config

    folders = dict.fromkeys(Path(d).resolve() for d in (*read_config(Path.cwd()).pass_dirs, *pass_dirs))
    return Registry(folders)


def settings(texts: Sequence[str] | None, option: str) -> dict[str, Item]:
    """``key=value`` options of the command line; the value is YAML.

    Raises:
        RecipeError: Not ``key=value``, or a key given twice.
    """
    from onnxq.yamltree import setting

    out: dict[str, Item] = {}
    for text in texts or ():
        key, item = setting(text, option)
        if key in out:
            raise item.error(f"'{key}' is given twice")
        out[key] = item
    return out


def override_of(text: str) -> dict[str, Any]:
    """``SEL:key=value[,key=value]`` of the command line as an override; values are YAML.

    Raises:
        RecipeError: Of another form, or a key given twice.
    """
    found = _OVERRIDE.fullmatch(text)
    if found is None:
        raise RecipeError(f"expected SELECTOR:key=value[,key=value], got '{text}'", file="--override")
    return {"select": found["select"], **settings(_NEXT_KEY.split(found["settings"]), f"--override {found['select']}")}


def size_in_bytes(text: str) -> float:
    """``5MB`` as bytes; units are B, kB, MB, GB in powers of 1000, and none is bytes.

    Raises:
        OptionError: Something else.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise OptionError(f"'{text}' is no size: a number with B, kB, MB or GB")
    power = "bkmg".index((found["unit"] or "b").lower())
    return float(found["number"]) * float(1000**power)


@contextmanager
def progress() -> Iterator[Progress]:
    """Something to hang on ``Context.progress``: bars on stderr if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(label: str, done: int, total: int) -> None:
            name = label.partition(":")[0]  # what follows a colon changes
            if name not in tasks:
                tasks[name] = bars.add_task(label, total=total or None)
            bars.update(tasks[name], description=label, completed=done, total=total or None)

        yield show
