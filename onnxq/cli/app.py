"""The frame of the command line: which commands there are, and the one place where errors are printed.

A command is a function in a module of the same name in this package; it is imported when it is called. Its help line is
read from its docstring without importing it, so ``onnxq --help`` costs no more than typer.
"""

from __future__ import annotations

import ast
import errno
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onnxq import __version__
from onnxq.docstrings import summary
from onnxq.errors import OnnxqError, near

# In the order of the help.
COMMANDS = (
    "quantize",
    "tune",
    "train",
    "compare",
    "debug",
    "lint",
    "rule",
    "verify",
    "plan",
    "inspect",
    "run",
    "passes",
    "show",
    "schema",
    "targets",
)

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class Commands(TyperGroup):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of the help."""
        return [name for name in COMMANDS if _file(name).is_file()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None if there is none of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"onnxq.cli.{cmd_name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=SETTINGS)
        single.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; an unknown one is bad usage."""
        known = self.list_commands(ctx)
        if args[0] not in known:
            ctx.fail(f"no such command '{args[0]}'{near(args[0], known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _help_line(name)) for name in self.list_commands(ctx)])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error raised on purpose is one line on stderr and exit code 2."""
        try:
            return super().invoke(ctx)
        except OnnxqError as error:
            _fail(str(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=SETTINGS,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"onnxq {__version__}")
        raise typer.Exit


@app.callback()
def onnxq(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Quantize, compare and transform ONNX models.

    Results go to stdout, log and progress to stderr. Exit code 0: all well; 1: findings (a bound is missed); 2: bad
    usage or input, and nothing was written. A MODEL or OUT of - is stdin or stdout.
    """


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2) from None


def _file(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.py")


def _help_line(name: str) -> str:
    for node in ast.parse(_file(name).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return summary(ast.get_docstring(node))
    return ""
