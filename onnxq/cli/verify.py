"""`onnxq verify`: does a model load and compute the same in every session?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def verify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or - for stdin.")],
    data: Annotated[
        str | None, typer.Option(metavar="SRC", help="Samples: folder, module:function; default: random numbers.")
    ] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many.")] = None,
    min_sqnr: Annotated[float, typer.Option(help="Sessions that are nearer than this agree, in dB.")] = 30.0,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Load and run a model in onnxruntime's default session, with true Q/DQ semantics, and without integer kernels.

    Exit code 1 if a session does not load or run, or computes something else than the file says.
    """
    import json

    from onnxq.cli._common import progress, source
    from onnxq.diagnosis.sessions import verify as run
    from onnxq.report.tables import show, stdout
    from onnxq.report.verify import parts

    with progress() as bars:
        found = run(
            source(model),
            data,
            preprocessing=preprocessing,
            samples=samples,
            min_sqnr=min_sqnr,
            custom_op_library=custom_op_library,
            progress=bars,
        )
    if format == "json":
        print(json.dumps(found.to_json(), indent=2))
    else:
        show(stdout(), parts(found))
    if not found.clean:
        raise typer.Exit(1)
