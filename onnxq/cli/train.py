"""`onnxq train`: a float or Q/DQ model and samples in, a trained Q/DQ model and report out."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from onnxq.cli import _options as o


def train(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A float or a Q/DQ model; - is stdin.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="SRC", help="Folder of .npz/.npy or images, a file, or module:function; see docs/data.md."
        ),
    ],
    out: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="Where to write; - is stdout.")],
    loss: Annotated[
        Literal["distill", "mse", "cross-entropy"],
        typer.Option(help="As the float model, or to targets or labels in the data."),
    ] = "distill",
    mode: Annotated[
        Literal["whole", "blocks"], typer.Option(help="All layers together, or one block after the other.")
    ] = "whole",
    block_layers: Annotated[int, typer.Option(min=1, help="Layers that a block has at least.")] = 1,
    teacher: Annotated[
        str | None, typer.Option(metavar="FLOAT", help="Float model to learn from; a float MODEL is its own.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How many times to go through the samples.")] = 10,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples in a batch (32, fewer if there are few).")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate, as a share of what is trained (the optimizer's own).")
    ] = None,
    optimizer: Annotated[Literal["adam", "sgd"], typer.Option(help="sgd has momentum.")] = "adam",
    schedule: Annotated[
        Literal["cosine", "constant", "step"], typer.Option(help="Course of the learning rate.")
    ] = "cosine",
    warmup: Annotated[float, typer.Option(help="Share of the steps in which the learning rate rises.")] = 0.05,
    weight_decay: Annotated[float, typer.Option(help="Decoupled weight decay.")] = 0.0,
    lr_factor: Annotated[
        list[str] | None, typer.Option(metavar="KIND=FACTOR", help="Other rates of weight, bias or scale.")
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="SEL", help="Leave weights and biases of these nodes as they are.")
    ] = None,
    scales: Annotated[
        bool, typer.Option("--scales", help="Learn scales of weights and activations, too (LSQ).")
    ] = False,
    held_out: Annotated[float, typer.Option(metavar="SHARE", help="Share of the samples that only judge.")] = 0.1,
    checkpoint: Annotated[str | None, typer.Option(metavar="DIR", help="Keep the state of the training here.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from the checkpoint, or start over.")
    ] = True,
    samples: Annotated[int | None, typer.Option(min=1, help="Take at most this many samples.")] = None,
    preprocessing: Annotated[str | None, typer.Option(metavar="YAML", help="How images become inputs.")] = None,
    calibration: Annotated[
        str | None, typer.Option(metavar="SRC", help="Samples for ranges (some of those trained on).")
    ] = None,
    recipe: o.Recipe = "int8",
    target: o.Target = None,
    activations: o.Activations = None,
    weights: o.Weights = None,
    block_size: o.BlockSize = None,
    symmetric: o.Symmetric = None,
    weight_method: o.WeightMethod = None,
    method: o.Method = None,
    exclude: o.Exclude = None,
    include: o.Include = None,
    override: o.Overrides = None,
    search: o.Search = None,
    rounding: o.Rounding = None,
    form: o.Form = None,
    set_: o.Set = None,
    plan: o.Plan = None,
    ranges: o.Ranges = None,
    report: Annotated[str | None, typer.Option(metavar="JSON", help="Write the report.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0 is all cores.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    custom_op_library: Annotated[str | None, typer.Option(help="Shared library with kernels of custom ops.")] = None,
) -> None:
    """Train a quantized model on onnxruntime, weights and activations rounded as the result rounds them.

    A float model is quantized by --recipe first. The best parameters by the loss on held-out samples are written; if
    none is better than the start, that is what is written. Needs `pip install 'onnxq[qat]'`.
    """
    import sys
    from pathlib import Path
    from typing import Any, cast

    from rich.console import Console
    from rich.text import Text

    from onnxq.cli import _common
    from onnxq.errors import OptionError
    from onnxq.report import run as report_of
    from onnxq.report.tables import human_bytes, show, stdout
    from onnxq.report.train import parts as parts_of
    from onnxq.training.api import train as run

    _common.check_out(out, report)
    if model == teacher == "-":
        raise OptionError("MODEL and --teacher are both -: only one model comes in on stdin")
    parameters = o.given(
        set_, symmetric=symmetric, activations=activations, weights=weights, block_size=block_size, method=method,
        weight_method=weight_method, exclude=exclude, include=include, override=override, search=search,
        rounding=rounding, form=form, plan=plan, ranges=ranges,
    )  # fmt: skip
    factors = {name: item.plain() for name, item in _common.settings(lr_factor, "--lr-factor").items()}
    with _common.progress() as progress:
        result = run(
            _common.source(model), data, loss=loss, mode=mode, block_layers=block_layers, recipe=recipe, target=target,
            teacher=None if teacher is None else _common.source(teacher), output=None if out == "-" else out,
            epochs=epochs, batch=batch, lr=lr, optimizer=optimizer, schedule=schedule, warmup=warmup,
            weight_decay=weight_decay, lr_factors=cast("Any", factors), freeze=freeze or (), scales=scales,
            held_out=held_out, samples=samples, calibration=calibration, preprocessing=preprocessing,
            checkpoint=checkpoint, resume=resume, threads=threads, progress=progress, seed=seed,
            custom_op_library=custom_op_library, **parameters,
        )  # fmt: skip
    if out == "-":
        _common.send(result.model)
    if report is not None:
        _common.save_json(report_of.to_json(result.report), report)
    parts = parts_of(result.report)
    if out != "-":
        parts.append(Text(f"Written  {out} ({human_bytes(Path(out).stat().st_size)})"))
    show(Console(file=sys.stderr, highlight=False) if out == "-" else stdout(), parts)
