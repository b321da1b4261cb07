"""`onnxq plan`: what would be quantized, and why or why not."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from onnxq.cli._options import Activations, Dynamic, Exclude, Force, Include, Method, Search, Weights


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or - for stdin.")],
    out: Annotated[
        str | None, typer.Option("-o", "--output", metavar="JSON", help="Write the plan, to edit it.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="SRC", help="Samples; with them, layers that suffer are found, too.")
    ] = None,
    target: Annotated[str, typer.Option(help="Runtime to plan for (onnxq targets).")] = "ort-cpu",
    activations: Activations = None,
    weights: Weights = None,
    method: Method = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many samples.")] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    exclude: Exclude = None,
    include: Include = None,
    force: Force = None,
    dynamic: Dynamic = None,
    search: Search = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Show the decision for every layer with its reason; nothing is quantized.

    The written plan goes back in with `onnxq quantize --plan`.
    """
    import json

    from rich.text import Text

    from onnxq import api
    from onnxq.cli import _common
    from onnxq.cli._options import given
    from onnxq.report.run import layer_table, plan_table, reason_tables
    from onnxq.report.tables import show, stdout

    parameters = given(
        activations=activations, weights=weights, method=method, exclude=exclude, include=include, force=force,
        dynamic=dynamic, search=search,
    )  # fmt: skip
    with _common.progress() as progress:
        result = api.make_plan(
            _common.source(model), data, target=target, parameters=parameters, samples=samples,
            preprocessing=preprocessing, progress=progress, custom_op_library=custom_op_library,
        )  # fmt: skip
    if out is not None:
        _common.save_json(result.plan, out)
    if format == "json":
        print(json.dumps(result.plan, indent=2))
        return
    nodes = result.plan["nodes"]
    parts = [plan_table(nodes), *reason_tables(nodes), layer_table(nodes)]
    if data is None:
        parts.append(Text("Planned without samples: with --data, layers that suffer are found and left float, too."))
    show(stdout(), parts)
