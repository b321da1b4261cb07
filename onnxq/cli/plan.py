"""`onnxq plan`: what would be quantized, and why or why not."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from onnxq.cli import _options as o


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or - for stdin.")],
    out: Annotated[
        str | None, typer.Option("-o", "--output", metavar="JSON", help="Write the plan, to edit it.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="SRC", help="Samples; with them, layers that suffer are found, too.")
    ] = None,
    recipe: o.Recipe = "int8",
    target: o.Target = None,
    activations: o.Activations = None,
    weights: o.Weights = None,
    block_size: o.BlockSize = None,
    symmetric: o.Symmetric = None,
    method: o.Method = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many samples.")] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    exclude: o.Exclude = None,
    include: o.Include = None,
    force: o.Force = None,
    dynamic: o.Dynamic = None,
    override: o.Overrides = None,
    search: o.Search = None,
    on_odd: o.OnOdd = None,
    set_: o.Set = None,
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
    from onnxq.report.run import layer_table, plan_table, quantized_text, reason_tables
    from onnxq.report.tables import show, stdout

    if out is not None:
        _common.check_out(out)
    parameters = o.given(
        set_, symmetric=symmetric, activations=activations, weights=weights, block_size=block_size, method=method,
        exclude=exclude, include=include, force=force, dynamic=dynamic, override=override, search=search, on_odd=on_odd,
    )  # fmt: skip
    with _common.progress() as progress:
        result = api.make_plan(
            _common.source(model), data, target=target, recipe=recipe, parameters=parameters, samples=samples,
            preprocessing=preprocessing, progress=progress, custom_op_library=custom_op_library,
        )  # fmt: skip
    if out is not None:
        _common.save_json(result.plan, out)
    if format == "json":
        print(json.dumps(result.plan, indent=2))
        return
    nodes = result.plan["nodes"]
    summary = Text(quantized_text(nodes))
    parts = [plan_table(nodes), summary, *reason_tables(nodes), layer_table(nodes)]
    if data is None:
        parts.append(Text("Planned without samples: with --data, layers that suffer are found and left float, too."))
    show(stdout(), parts)
