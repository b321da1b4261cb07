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

    from onnxq.cli._common import open_model
    from onnxq.inspection import inspect_crossing
    from onnxq.report.inspect import parts
    from onnxq.report.tables import show, stdout
    from onnxq.targets import load_target

    rules = load_target(target)
    found = inspect_crossing(open_model(model), rules)
    if format == "json":
        print(json.dumps(found.to_json(), indent=2))
    else:
        show(stdout(), parts(found))
