"""`onnxq lint`: may this file ship?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from onnxq.linting.files import FileReport
    from onnxq.linting.settings import LintSettings


def lint(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders, patterns; - is stdin.")],
    select: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Codes or prefixes instead of the default; ALL.")
    ] = None,
    extend_select: Annotated[list[str] | None, typer.Option(metavar="CODES", help="Added to them.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="CODES", help="Taken out.")] = None,
    target: Annotated[str | None, typer.Option(help="Add the rules of this target (onnxq targets).")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended safely, in the files.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also what may change results.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what --fix would change, and change nothing.")] = False,
    fail_on: Annotated[
        Literal["error", "warning", "info", "never"] | None, typer.Option(help="Least severity for exit code 1.")
    ] = None,
    max_warnings: Annotated[int | None, typer.Option(min=0, help="Exit code 1 for more warnings than this.")] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit code 0 whatever is found.")] = False,
    statistics: Annotated[bool, typer.Option("--statistics", help="Only how often each rule fired.")] = False,
    baseline: Annotated[str | None, typer.Option(metavar="JSON", help="Known findings do not count.")] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write what is found now as known findings.")
    ] = False,
    format: Annotated[
        Literal["text", "concise", "json", "json-lines", "github", "gitlab", "junit", "sarif"],
        typer.Option("--format", help="How to print."),
    ] = "text",
    output_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write findings there, not to stdout.")
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="TOML", help="Settings instead of the project's.")] = None,
    isolated: Annotated[bool, typer.Option("--isolated", help="Read no settings of the project.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Files at a time; default: one a core.")] = None,
) -> None:
    """Find what would make a model fail, compute something else, or run slowly; files are only read unless --fix is on.

    With --fix files are replaced as a whole, and only if something changes; a model from stdin goes to stdout, mended
    or not, and findings to stderr. --diff compares the models written as text; what would be left goes to stderr.

    Exit code 0: nothing at or above --fail-on (default: error); 1: findings, or differences; 2: bad usage, or a fix
    that failed.
    """
    from onnxq.cli import _common
    from onnxq.errors import OptionError
    from onnxq.linting.files import STDIN, check_files, expand, merged
    from onnxq.linting.selection import split
    from onnxq.report.lint import FORMATS
    from onnxq.report.lint.text import statistics as statistics_text

    if update_baseline and (fix or diff):
        raise OptionError("--update-baseline writes down what is found; it does not go with --fix or --diff")
    settings = merged(
        _settings(config, isolated),
        select=split(select or ()),
        extend_select=split(extend_select or ()),
        ignore=split(ignore or ()),
        target=target,
        fail_on=fail_on,
        max_warnings=max_warnings,
        baseline=Path(baseline) if baseline else None,
    )
    if update_baseline and settings.baseline is None:
        raise OptionError("--update-baseline needs --baseline FILE, or lint.baseline in the settings")
    files = expand(paths)
    data = _common.source(STDIN) if STDIN in files else None
    assert not isinstance(data, str)
    changed, errors, taken = False, {}, False
    if fix or diff:
        from onnxq.linting.fixing import fix_files

        fixed = fix_files(files, settings, data, unsafe=unsafe_fixes, write=not diff)
        reports, changed, errors = fixed.reports, bool(fixed.diff), fixed.errors
        taken = diff or fixed.stdin is not None
        typer.echo(fixed.diff, nl=False)
        if fixed.stdin is not None:
            sys.stdout.buffer.write(fixed.stdin)
            sys.stdout.buffer.flush()
    else:
        reports = list(check_files(files, settings, data, jobs))
    if update_baseline:
        _write_baseline(reports, settings)
        return
    _take_known_out(reports, settings)
    _print(reports, statistics_text if statistics else FORMATS[format], output_file, err=taken)
    for file, why in errors.items():
        _common.log(f"onnxq: {file}: not mended, and left as it was: {why}")
    if errors:
        raise typer.Exit(2)
    found = [d for report in reports for d in report.diagnostics]
    if not exit_zero and (changed or settings.fails(found)):
        raise typer.Exit(1)


def _settings(config: str | None, isolated: bool) -> LintSettings:
    from onnxq.config import Config, read_config, read_config_file

    if config is not None:
        return read_config_file(Path(config)).lint
    return (Config() if isolated else read_config(Path.cwd())).lint


def _take_known_out(reports: list[FileReport], settings: LintSettings) -> None:
    """Leave only new findings, if there is a baseline."""
    from collections import Counter

    from onnxq.linting import baseline

    if settings.baseline is None:
        return
    known = baseline.read(settings.baseline)
    for report in reports:
        new = baseline.new_ones(report.diagnostics, known.get(Path(report.file).as_posix(), Counter()))
        report.suppressed += len(report.diagnostics) - len(new)
        report.diagnostics = new


def _write_baseline(reports: Sequence[FileReport], settings: LintSettings) -> None:
    from onnxq.cli import _common
    from onnxq.linting import baseline
    from onnxq.wording import plural

    assert settings.baseline is not None
    found = {Path(report.file).as_posix(): report.diagnostics for report in reports}
    _common.save_json(baseline.content(found), settings.baseline)
    count = sum(len(report.diagnostics) for report in reports)
    _common.log(f"{settings.baseline}: {plural(count, 'known finding')}")


def _print(
    reports: Sequence[FileReport], form: Callable[[Sequence[FileReport]], str], out: str | None, *, err: bool
) -> None:
    """Write findings to a file, to stdout, or to stderr where stdout has the differences or a model."""
    from onnxq.errors import OptionError

    text = form(reports)
    if out is None:
        typer.echo(text, nl=False, err=err)
        return
    try:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {out}: {error.strerror}") from error
