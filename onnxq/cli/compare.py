"""`onnxq compare`: is the quantized model still the model?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def compare(
    float_model: Annotated[str, typer.Argument(metavar="FLOAT", help="The reference; - is stdin.")],
    quant_model: Annotated[str, typer.Argument(metavar="QUANT", help="The model to judge; - is stdin.")],
    data: Annotated[
        str,
        typer.Option(metavar="SRC", help="Folder of .npz/.npy, images or test_data_set_*; module:function; or random."),
    ],
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many.")] = None,
    min_cosine: Annotated[float | None, typer.Option(help="Exit with 1 if any output's cosine is below.")] = None,
    min_sqnr: Annotated[float | None, typer.Option(help="Exit with 1 if any output's SQNR is below, in dB.")] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
    latency: Annotated[bool, typer.Option("--latency/--no-latency", help="Measure latency, too.")] = True,
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Run both models on the same samples: cosine, SQNR, largest error, same answer, size and latency.

    The quantized model runs on onnxruntime's default session and with the semantics the file spells out. Exit code 1
    if an output misses a bound.
    """
    import json

    from onnxq.cli._common import log, progress, sources
    from onnxq.diagnosis.comparing import compare as run
    from onnxq.report.compare import parts
    from onnxq.report.tables import show, stdout

    models = sources(float_model, quant_model)
    with progress() as bars:
        found = run(
            models[0],
            models[1],
            data,
            preprocessing=preprocessing,
            samples=samples,
            latency=latency,
            custom_op_library=custom_op_library,
            progress=bars,
        )
    missed = found.beyond(min_cosine, min_sqnr)
    if format == "json":
        print(json.dumps({**found.to_json(), "missed": missed}, indent=2))
    else:
        show(stdout(), parts(found))
    for line in missed:
        log(line)
    if missed:
        raise typer.Exit(1)
