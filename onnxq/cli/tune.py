"""`onnxq tune`: the cheapest mix of types that is exact enough, or small or fast enough."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from onnxq.cli import _options as o


def tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The float model; - is stdin.")],
    data: Annotated[
        str,
        typer.Option(metavar="SRC", help="Folder of .npz/.npy, images or test_data_set_*; module:function; or random."),
    ],
    out: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="Where to write; - is stdout.")],
    min_sqnr: Annotated[float | None, typer.Option(metavar="DB", help="Least SQNR of every output.")] = None,
    min_cosine: Annotated[float | None, typer.Option(help="Least cosine of every output.")] = None,
    min_agreement: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Least share of samples with the float model's arg max.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most bytes of the model: 5MB, 800kB, 1.5GB.")
    ] = None,
    max_latency_ratio: Annotated[
        float | None, typer.Option(metavar="RATIO", help="Most latency, measured, as a share of the float model's.")
    ] = None,
    target: o.Target = "ort-cpu",
    rounding: Annotated[
        str, typer.Option(help="Weights: gptq (keeps each layer's output) or nearest (quick).")
    ] = "gptq",
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many samples.")] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    save_plan: Annotated[
        str | None, typer.Option(metavar="JSON", help="Write the plan, the nearest one if none meets the bounds.")
    ] = None,
    report: Annotated[str | None, typer.Option(metavar="JSON", help="Write all that was found.")] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Mix types: per layer 8 bits, run-time quantized, 16 bits, integer weights only or float.

    With a bound on accuracy the cheapest plan that meets all bounds is written, else the most exact one. Exit code 1 if
    no plan meets them; then only --save-plan and --report are written.
    """
    import json
    import sys

    from rich.console import Console

    from onnxq.cli import _common
    from onnxq.report.tables import show, stdout
    from onnxq.report.tune import parts
    from onnxq.tuning import tune as run

    _common.check_out(out, save_plan, report)
    with _common.progress() as bars:
        found = run(
            _common.source(model), data, output=None if out == "-" else out, min_sqnr=min_sqnr, min_cosine=min_cosine,
            min_agreement=min_agreement, max_size=None if max_size is None else _common.size_in_bytes(max_size),
            max_latency_ratio=max_latency_ratio, target=target or "ort-cpu", rounding=rounding, samples=samples,
            preprocessing=preprocessing, progress=bars, custom_op_library=custom_op_library, seed=seed,
        )  # fmt: skip
    for path, content in ((save_plan, found.plan), (report, found.to_json())):
        if path is not None:
            _common.save_json(content, path)
    if out == "-" and found.model is not None:
        _common.send(found.model)
    console = Console(file=sys.stderr, highlight=False) if out == "-" else stdout()
    if format == "json":
        console.print_json(json.dumps(found.to_json()), indent=2)
    else:
        show(console, parts(found))
    for line in found.missed():
        _common.log(line)
    if found.chosen is None:
        raise typer.Exit(1)
