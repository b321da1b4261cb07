"""`onnxq passes`: what there is to build recipes from."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def passes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Describe this pass or recipe in full.")] = None,
    pass_dir: Annotated[list[str] | None, typer.Option(metavar="DIR", help="Folder with own passes.")] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
) -> None:
    """List passes and recipes, or describe one with its options."""
    import json

    from onnxq.cli._common import registry

    names = registry(pass_dir or ())
    if name is not None:
        from onnxq.docs import facts, page

        entry = names.find(name)
        print(json.dumps(facts(entry, names), indent=2) if format == "json" else page(entry, names).rstrip())
        return
    found = {key: (entry, text) for key, entry in names.entries.items() if (text := entry.summary) is not None}
    if format == "json":
        rows = [{"name": k, "kind": e.kind, "origin": e.origin, "summary": text} for k, (e, text) in found.items()]
        print(json.dumps(rows, indent=2))
        return
    from onnxq.report.tables import show, stdout, table

    kinds = {"pass": "Passes", "recipe": "Recipes"}
    show(
        stdout(),
        [
            table(title, ("", ""), [(key, text) for key, (entry, text) in found.items() if entry.kind == kind])
            for kind, title in kinds.items()
        ],
    )
