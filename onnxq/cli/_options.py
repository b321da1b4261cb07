"""Options that several commands share; a value that is not given leaves the recipe's default alone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Activations = Annotated[str | None, typer.Option(metavar="TYPE", help="Integer type of activations (the target's).")]
Weights = Annotated[str | None, typer.Option(metavar="TYPE", help="Integer type of weights (the target's).")]
Method = Annotated[
    str | None, typer.Option(help="Ranges from samples: auto, minmax, average, percentile, entropy or mse.")
]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="SEL", help="Leave these nodes float: name, glob, re:…, op:…, path:….")
]
Include = Annotated[list[str] | None, typer.Option(metavar="SEL", help="Quantize only these nodes.")]
Force = Annotated[
    list[str] | None, typer.Option(metavar="SEL", help="Quantize these though the runtime has no integer kernel.")
]
Dynamic = Annotated[
    str | None, typer.Option(help="MatMul between float ops: auto (input quantized at run time) or never.")
]
Search = Annotated[
    bool | None, typer.Option("--search/--no-search", help="Measure, and leave float what costs most accuracy (on).")
]
Rounding = Annotated[str | None, typer.Option(help="Weights: gptq (keeps each layer's output) or nearest (quick).")]
Plan = Annotated[str | None, typer.Option(metavar="JSON", help="A plan file: its float nodes stay float.")]
Ranges = Annotated[str | None, typer.Option(metavar="JSON", help="Calibrated ranges to use instead of samples.")]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, as parameters of a recipe; messages name them as the user did."""
    from onnxq.yamltree import value_of

    return {name: value_of(value, f"--{name}") for name, value in options.items() if value is not None}
