"""`onnxq run`: a recipe, or a single pass, on a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from onnxq.api import Result


def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or YAML file of a recipe, or name of a pass.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or - for stdin.")],
    out: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="Where to write; - is stdout.")],
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Parameter of the recipe.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="STEP.OPTION=VALUE", help="Option of a step.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="SRC", help="Samples: folder, module:function or random.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many samples.")] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    target: Annotated[str | None, typer.Option(help="Runtime to write for (onnxq targets).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    report: Annotated[str | None, typer.Option(metavar="JSON", help="Write the report as JSON.")] = None,
    timing: Annotated[bool, typer.Option("--timing", help="Print seconds per step.")] = False,
    verify_each: Annotated[bool, typer.Option("--verify-each", help="Check the model after each step.")] = False,
    compare_each: Annotated[
        bool, typer.Option("--compare-each", help="Run the model before and after each step, on DATA or random inputs.")
    ] = False,
    dump_after: Annotated[
        list[str] | None, typer.Option(metavar="STEP", help="Write the model after it; or all.")
    ] = None,
    dump_dir: Annotated[str, typer.Option(metavar="DIR", help="Where --dump-after writes.")] = "onnxq-dump",
    reproducer: Annotated[
        str | None, typer.Option(metavar="DIR", help="If a step fails, write what is needed to see it again.")
    ] = None,
    pass_dir: Annotated[list[str] | None, typer.Option(metavar="DIR", help="Folder with own passes.")] = None,
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Run a recipe, or a single pass, on a model."""
    import sys
    from dataclasses import replace

    from rich.console import Console

    from onnxq import api, instruments
    from onnxq.cli import _common
    from onnxq.errors import PassFailed
    from onnxq.passbase import Instrument
    from onnxq.recipe import load_recipe
    from onnxq.report import run as report_of
    from onnxq.report.tables import show, stdout

    _common.check_out(out, report)
    names = _common.registry(pass_dir or ())
    overrides = _common.settings(set_, "--set")
    pipeline = load_recipe(recipe, _common.settings(param, "--param"), overrides=overrides, registry=names)
    hooks: list[Instrument] = []
    if dump_after:
        hooks.append(instruments.DumpAfter(dump_dir, dump_after, pipeline))
    if verify_each:
        hooks.append(instruments.VerifyEach())
    if compare_each:
        hooks.append(instruments.CompareEach())
    if reproducer is not None:
        given = {"--data": data, "--samples": samples, "--preprocessing": preprocessing, "--target": target}
        again = [str(part) for option, value in given.items() if value is not None for part in (option, value)]
        hooks.append(instruments.Reproducer(reproducer, [*again, "--seed", str(seed)], names))
    try:
        with _common.progress() as progress:
            result = api.run(
                replace(pipeline, instruments=tuple(hooks)), _common.source(model), data, target=target,
                output=None if out == "-" else out, samples=samples, preprocessing=preprocessing, progress=progress,
                custom_op_library=custom_op_library, seed=seed,
            )  # fmt: skip
    except PassFailed as error:
        hint = f"see {reproducer}" if reproducer else "--reproducer DIR keeps what is needed to see it again"
        raise PassFailed(f"{error} ({hint})") from error
    if out == "-":
        _common.send(result.model)
    if report is not None:
        _common.save_json(report_of.to_json(result.report), report)
    parts = [*report_of.parts(result.report), *_extra(result, timing)]
    show(Console(file=sys.stderr, highlight=False) if out == "-" else stdout(), parts)


def _extra(result: Result, timing: bool) -> Iterator[RenderableType]:
    """Tables of instruments."""
    from onnxq.report.tables import table

    compared = result.report.tables.get("compare-each")
    if compared is not None:
        rows = [[_number(value) for value in row.values()] for row in compared]
        columns = ("step", "worst output", "max error", "relative", "relative to the start")
        yield table("Error per step", columns, rows, numbers=[2, 3, 4])
    if timing:
        yield table("Seconds per step", ("step", "s"), [(n, f"{s:.3f}") for n, s in result.report.seconds], numbers=[1])


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
