"""`onnxq debug`: which layer goes wrong?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def debug(
    float_model: Annotated[str, typer.Argument(metavar="FLOAT", help="The reference; - is stdin.")],
    quant_model: Annotated[str, typer.Argument(metavar="QUANT", help="The model to judge; - is stdin.")],
    data: Annotated[
        str,
        typer.Option(metavar="SRC", help="Folder of .npz/.npy, images or test_data_set_*; module:function; or random."),
    ],
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Rows of the table; 0 is all of them. JSON has all.")] = 20,
    min_sqnr: Annotated[float | None, typer.Option(help="Exit with 1 if any local SQNR is below, in dB.")] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
    memory: Annotated[int, typer.Option(min=1, metavar="MB", help="For the compared values of one sample.")] = 1024,
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Find the layers that go wrong: SQNR of every value, by itself and with all before it, worst first.

    Local errors take a layer's inputs from the float model, and tell weights, inputs and output apart. Exit code 1 if a
    local error misses the bound.
    """
    import json

    from onnxq.cli._common import log, progress, sources
    from onnxq.diagnosis.debugging import debug as run
    from onnxq.report.debug import parts
    from onnxq.report.tables import show, stdout

    models = sources(float_model, quant_model)
    with progress() as bars:
        found = run(
            models[0],
            models[1],
            data,
            preprocessing=preprocessing,
            samples=samples,
            memory=memory,
            custom_op_library=custom_op_library,
            progress=bars,
        )
    missed = found.below(min_sqnr)
    if format == "json":
        print(json.dumps({**found.to_json(), "missed": missed}, indent=2))
    else:
        show(stdout(), parts(found, top or None))
    for line in missed:
        log(line)
    if missed:
        raise typer.Exit(1)
