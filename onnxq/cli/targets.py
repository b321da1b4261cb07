"""`onnxq targets`: the runtimes onnxq knows, and their rules."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def targets(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this one in full; may be a YAML file.")
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
) -> None:
    """List the targets, or print the rules of one."""
    import json

    from onnxq.report.tables import show, stdout
    from onnxq.report.targets import list_parts, target_json, target_parts
    from onnxq.targets import list_targets, load_target

    chosen = [load_target(n) for n in (list_targets() if name is None else [name])]
    if format == "json":
        data = [target_json(t) for t in chosen]
        print(json.dumps(data if name is None else data[0], indent=2))
        return
    show(stdout(), list_parts(chosen) if name is None else target_parts(chosen[0]))
