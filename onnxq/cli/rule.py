"""`onnxq rule`: what a lint rule looks for, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from onnxq.linting.catalog import Entry


def rule(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Code or name of a rule.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every rule.")] = False,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print.")] = "text",
) -> None:
    """Explain a rule: what it does, why that is bad, what to use instead. Without CODE: one line for each rule."""
    import json
    from dataclasses import asdict

    from onnxq.errors import OptionError
    from onnxq.linting.catalog import entries, entry

    if code is not None and all_:
        raise OptionError("give CODE or --all, not both")
    chosen = [entry(code)] if code is not None else list(entries().values())
    if format == "json":
        typer.echo(json.dumps([asdict(one) for one in chosen] if code is None else asdict(chosen[0]), indent=2))
    elif code is None and not all_:
        for one in chosen:
            targets = f"  [{', '.join(one.targets)}]" if one.targets else ""
            typer.echo(f"{one.code}  {one.severity:<7}  {one.name}{targets}")
    else:
        typer.echo("\n\n".join(map(_page, chosen)))


def _page(entry: Entry) -> str:
    """A rule as text: a headline, what can be known at a glance, the page."""
    fix = f"{entry.fix} ({'safe' if entry.safe else 'unsafe'})" if entry.fix else "none"
    targets = ", ".join(entry.targets) or "all"
    reads = "weights, too" if entry.weights else "no weights"
    head = f"{entry.code} {entry.name}\n\nSeverity: {entry.severity}. Targets: {targets}. Fix: {fix}. Reads {reads}."
    return f"{head}\n\n{entry.page}"
