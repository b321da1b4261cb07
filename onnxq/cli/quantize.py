"""`onnxq quantize`: float model and samples in, quantized model and report out."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxq.cli import _options as o


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or - for stdin.")],
    out: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="Where to write; - is stdout.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SRC", help="Samples: folder of .npz/.npy, images or test_data_set_*, module:function, or random."
        ),
    ] = None,
    recipe: o.Recipe = "int8",
    target: o.Target = None,
    activations: o.Activations = None,
    weights: o.Weights = None,
    block_size: o.BlockSize = None,
    symmetric: o.Symmetric = None,
    weight_method: o.WeightMethod = None,
    method: o.Method = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many samples.")] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    exclude: o.Exclude = None,
    include: o.Include = None,
    force: o.Force = None,
    dynamic: o.Dynamic = None,
    override: o.Overrides = None,
    search: o.Search = None,
    rounding: o.Rounding = None,
    on_odd: o.OnOdd = None,
    form: o.Form = None,
    set_: o.Set = None,
    plan: o.Plan = None,
    ranges: o.Ranges = None,
    save_ranges: Annotated[str | None, typer.Option(metavar="JSON", help="Write the calibrated ranges.")] = None,
    save_plan: Annotated[str | None, typer.Option(metavar="JSON", help="Write the plan that was carried out.")] = None,
    report: Annotated[str | None, typer.Option(metavar="JSON", help="Write the report.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Quantize a float model: integers where the runtime is fast on them, float where they would hurt.

    Nothing is written unless all went well. `onnxq plan` shows the decisions beforehand, `onnxq compare` judges the
    result.
    """
    import sys
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

    from onnxq import api
    from onnxq.cli import _common
    from onnxq.report import run as report_of
    from onnxq.report.tables import human_bytes, show, stdout

    _common.check_out(out, save_ranges, save_plan, report)
    parameters = o.given(
        set_, symmetric=symmetric, activations=activations, weights=weights, block_size=block_size, method=method,
        weight_method=weight_method, exclude=exclude, include=include, force=force, dynamic=dynamic, override=override,
        search=search, rounding=rounding, on_odd=on_odd, form=form, plan=plan, ranges=ranges,
    )  # fmt: skip
    with _common.progress() as progress:
        result = api.run(
            recipe, _common.source(model), data, target=target, output=None if out == "-" else out,
            parameters=parameters, samples=samples, preprocessing=preprocessing, progress=progress, seed=seed,
            custom_op_library=custom_op_library,
        )  # fmt: skip
    if out == "-":
        _common.send(result.model)
    for path, content in ((save_ranges, result.ranges), (save_plan, result.plan)):
        if path is not None:
            _common.save_json(content, path)
    if report is not None:
        _common.save_json(report_of.to_json(result.report), report)
    parts = report_of.parts(result.report)
    if out != "-":
        parts.append(Text(f"Written  {out} ({human_bytes(Path(out).stat().st_size)})"))
    show(Console(file=sys.stderr, highlight=False) if out == "-" else stdout(), parts)
