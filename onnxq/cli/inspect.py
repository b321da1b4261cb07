"""`onnxq inspect`: what is in a file."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or - for stdin.")],
    target: Annotated[str, typer.Option(help="Runtime whose rules say what computes on integers.")] = "ort-cpu",
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
) -> None:
    """Show what is in a model: versions, ops, weights by byte share, what is quantized and what is not."""
    import json
    import sys

    from onnxq.inspection import inspect as look_into
    from onnxq.report.inspect import parts
    from onnxq.report.tables import show, stdout

    found = look_into(sys.stdin.buffer.read() if model == "-" else model, target)
    if format == "json":
        print(json.dumps(found.to_json(), indent=2))
    else:
        show(stdout(), parts(found))
