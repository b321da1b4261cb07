"""Many files: what paths stand for, and checking them side by side."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnxq.diagnostics import Diagnostic
from onnxq.errors import OptionError
from onnxq.linting.engine import check
from onnxq.linting.settings import LintSettings

STDIN = "-"
_WORTH_BYTES = 4 << 20  # a second process takes half a second to start


@dataclass
class FileReport:
    """What was found in one file.

    Attributes:
        file: As given, or below the folder that was given; ``-`` is stdin.
        diagnostics: By code, then by place in the graph.
        suppressed: Findings not reported because metadata, settings or the baseline say so.
        fixed: Findings that were mended, by code.
    """

    file: str
    diagnostics: list[Diagnostic] = field(default_factory=list)
    suppressed: int = 0
    fixed: dict[str, int] = field(default_factory=dict)


def expand(paths: Sequence[str]) -> list[str]:
    """Files, folders (all ``*.onnx`` below) and glob patterns as files, sorted within each; each file once.

    Raises:
        OptionError: A path or pattern that stands for no file.
    """
    found: dict[str, None] = {}
    for path in paths:
        if path == STDIN:
            files = [STDIN]
        elif Path(path).is_dir():
            files = sorted(str(f) for f in Path(path).rglob("*.onnx") if f.is_file())
        elif glob.has_magic(path) and not Path(path).exists():
            files = sorted(f for f in glob.iglob(path, recursive=True) if Path(f).is_file())  # noqa: PTH207
        elif not Path(path).exists():
            raise OptionError(f"'{path}': no such file or folder")
        else:
            files = [path]
        if not files:
            raise OptionError(f"'{path}' holds no .onnx file" if Path(path).is_dir() else f"'{path}' matches no file")
        found.update(dict.fromkeys(files))
    return list(found)


def check_file(file: str, settings: LintSettings, data: bytes | None = None) -> FileReport:
    """Check one file; ``data`` is what came in on stdin."""
    outcome = check(data if data is not None else file, settings.selection())
    path = None if data is not None else Path(file)
    kept = [d for d in outcome.diagnostics if not settings.ignores(d, path)]
    return FileReport(file, kept, outcome.suppressed + len(outcome.diagnostics) - len(kept))


def check_files(
    files: Sequence[str], settings: LintSettings, data: bytes | None = None, jobs: int | None = None
) -> Iterator[FileReport]:
    """Check files, several at a time where that is worth it; reports come in the order of the files.

    Args:
        files: What `expand` made.
        settings: Which rules, and what to ignore.
        data: What came in on stdin.
        jobs: Processes; None for one a core.
    """
    settings.selection().rules()  # a bad selection is an error before anything runs
    work: Callable[[str], FileReport] = _Work(settings, data)
    jobs = min(jobs or os.cpu_count() or 1, len(files))
    if jobs > 1 and sum(_size(f) for f in files) > _WORTH_BYTES:
        with ProcessPoolExecutor(jobs) as pool:
            yield from pool.map(work, files)
    else:
        yield from map(work, files)


@dataclass(frozen=True)
class _Work:
    """`check_file` that travels to another process."""

    settings: LintSettings
    data: bytes | None

    def __call__(self, file: str) -> FileReport:
        return check_file(file, self.settings, self.data if file == STDIN else None)


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size if file != STDIN else 0
    except OSError:
        return 0


def merged(settings: LintSettings, **given: object) -> LintSettings:
    """Settings with what the command line gives on top; None and empty lists leave them be."""
    return replace(settings, **{k: v for k, v in given.items() if v not in (None, ())})  # type: ignore[arg-type]
