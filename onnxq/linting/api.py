"""The Python door: `onnxq.lint`."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

from onnxq.diagnostics import Diagnostic
from onnxq.linting.engine import Source, check
from onnxq.linting.selection import Selection, split


def lint(
    model: Source,
    *,
    select: str | Iterable[str] = (),
    extend_select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    target: str | None = None,
    base_dir: str | PathLike[str] | None = None,
) -> list[Diagnostic]:
    """Find what would make a model fail, compute something else, or run slowly.

    Broken files are findings, not errors. The model is only read; weights are read only by rules that need them.

    Args:
        model: A message, a serialized model, or the path of one.
        select: Codes or prefixes (``OQ1``, ``OQ303``, ``ALL``) that replace the default set.
        extend_select: Codes or prefixes added to it.
        ignore: Codes or prefixes taken out.
        target: Name or file of a target whose rules are added (``onnxq targets``).
        base_dir: Folder of the external data of a message or of bytes.

    Returns:
        The findings, by code and place. ``severity`` tells harm, ``help`` what to do, ``fix`` the pass that mends it.

    Raises:
        OptionError: A code, prefix or target that does not exist.
    """
    selection = Selection(_codes(select), _codes(extend_select), _codes(ignore), target)
    return check(model, selection, base_dir=base_dir).diagnostics


def _codes(given: str | Iterable[str]) -> tuple[str, ...]:
    return split([given] if isinstance(given, str) else given)
