"""Options that several commands share; a value that is not given leaves the recipe's default alone."""

from __future__ import annotations

from collections.abc import Sequence
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
Plan = Annotated[str | None, typer.Option(metavar="JSON", help="A plan file, perhaps edited: statuses, types, ranges.")]
Ranges = Annotated[str | None, typer.Option(metavar="JSON", help="Calibrated ranges to use instead of samples.")]


Recipe = Annotated[
    str, typer.Option(help="Recipe: int8, a8w4, or without data w4-blocked, w8, dynamic; or a YAML file.")
]
Target = Annotated[str | None, typer.Option(help="Runtime to write for (onnxq targets); the recipe's own by default.")]
BlockSize = Annotated[int | None, typer.Option(min=0, help="Weights: values that share a scale; 0 is one a channel.")]
Symmetric = Annotated[
    bool | None, typer.Option("--symmetric/--asymmetric", help="Weights: zero point at the middle of the type or free.")
]
WeightMethod = Annotated[str | None, typer.Option(help="Scales of weights: minmax, mse or hqq.")]
OnOdd = Annotated[str | None, typer.Option(help="Layers with an odd pack axis: skip, error or pad.")]
Form = Annotated[str | None, typer.Option(help="Weights: deploy (integers -> DQ) or fake-quant (float -> Q -> DQ).")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override", metavar="SEL:KEY=VALUE,…",
        help="Wanted otherwise of these nodes, or of tensor:NAME: activations, weights, granularity, range, float, …",
    ),
]  # fmt: skip
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any parameter of the recipe (onnxq passes).")
]


def given(
    set_: Sequence[str] | None = None,
    *,
    symmetric: bool | None = None,
    override: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The options that were given, as parameters of a recipe; messages name them as the user did.

    Args:
        set_: Parameters as ``NAME=VALUE``.
        symmetric: What ``--symmetric`` says.
        override: What ``--override`` says, once each.
        **options: Other options by parameter name; None is one that was not given.

    Raises:
        OptionError: A parameter that is given twice.
    """
    from onnxq.cli._common import override_of, settings
    from onnxq.errors import OptionError
    from onnxq.yamltree import value_of

    out = {}
    if symmetric is not None:
        out["symmetric"] = value_of("yes" if symmetric else "no", "--symmetric" if symmetric else "--asymmetric")
    if override:
        out["overrides"] = value_of([override_of(text) for text in override], "--override")
    for option, value in options.items():
        name = option.replace("_", "-")
        if value is not None:
            out[name] = value_of(value, f"--{name}")
    for name, value in settings(set_, "--set").items():
        if name in out:
            raise OptionError(f"--set {name}: {out[name].file} says the same parameter")
        out[name] = value
    return out
