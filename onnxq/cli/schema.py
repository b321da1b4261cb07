"""`onnxq schema`: recipes for editors."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    pass_dir: Annotated[list[str] | None, typer.Option(metavar="DIR", help="Folder with own passes.")] = None,
) -> None:
    """Print the JSON Schema of recipes, for completion and checks in an editor."""
    import json

    from onnxq.cli._common import registry
    from onnxq.schema import recipe_schema

    print(json.dumps(recipe_schema(registry(pass_dir or ())), indent=1))
