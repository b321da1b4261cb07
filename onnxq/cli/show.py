"""`onnxq show`: a recipe with every default filled in."""

from __future__ import annotations

from typing import Annotated

import typer


def show(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or YAML file of a recipe, or name of a pass.")],
    param: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Parameter of the recipe.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="STEP.OPTION=VALUE", help="Option of a step.")
    ] = None,
    pass_dir: Annotated[list[str] | None, typer.Option(metavar="DIR", help="Folder with own passes.")] = None,
) -> None:
    """Print a recipe with every default filled in, as a recipe."""
    from onnxq.cli._common import registry, settings
    from onnxq.recipe import dump, load_recipe

    names = registry(pass_dir or ())
    pipeline = load_recipe(recipe, settings(param, "--param"), overrides=settings(set_, "--set"), registry=names)
    print(dump(pipeline, registry=names), end="")
