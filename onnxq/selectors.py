"""Selectors: how a user says which nodes are meant, in every option that includes, excludes or overrides.

    /layer1/conv/Conv     the node of this name
    /layer*/conv/*        glob; with a slash, * and ? stay inside one part and ** crosses parts
    *conv*                glob without a slash: * matches anything
    re:/layer\\d+/.*       regular expression over the whole name
    op:Conv               operator type in any domain; op:com.microsoft:Gelu in one; globs are allowed
    path:/layer1          everything under a scope; /layer1/** means the same
    name:re:odd           the node of exactly this name, whatever characters it has

A name with * or ? in it matches itself, too. A scope is a prefix of the node's name up to a slash, or a module path
(``layer1.0``) that the PyTorch exporter recorded in the node's metadata. A node without a name is matched by ``op:``
and recorded scopes alone. Selectors reach into If/Loop/Scan bodies and local functions.

Precedence: in one list the last selector that matches a node decides. Where a command has both, exclude beats include.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxq.errors import OptionError, near

if TYPE_CHECKING:
    import onnx_ir as ir

KINDS = ("name", "glob", "re", "op", "path")
WILD = re.compile(r"[*?]")
SCOPES_KEY = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Selector:
    """One parsed selector.

    Attributes:
        kind: One of `KINDS`.
        text: What stands behind the prefix.
        pattern: Regular expression over the name, or over ``domain:OpType``; None where plain comparison does.
    """

    kind: str
    text: str
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read a selector; see `parse`."""
        return parse(text)

    def __str__(self) -> str:
        bare = self.kind == "glob" or (self.kind == "name" and parse(self.text) == self)
        return self.text if bare else f"{self.kind}:{self.text}"


def parse(text: str) -> Selector:
    """Read a selector.

    Raises:
        OptionError: Empty, or a regular expression that does not compile.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in ("name", "re", "op", "path"):
        kind, rest = _bare(text)
    if kind == "path":
        rest = rest.removesuffix("/**").rstrip("/")
    if not rest:
        raise OptionError(f"empty selector '{text}': it would match nothing" if text else "empty selector")
    if kind == "re":
        try:
            return Selector(kind, rest, re.compile(rest))
        except re.error as error:
            raise OptionError(f"selector '{text}' is no regular expression: {error}") from error
    if kind == "glob":
        return Selector(kind, rest, _glob(rest))
    if kind == "op":
        domain, colon, op_type = rest.rpartition(":")
        return Selector(kind, rest, _glob(f"{domain.rstrip(':')}:{op_type}" if colon else f"*:{rest}"))
    return Selector(kind, rest)


def match(selector: Selector, node: ir.Node) -> bool:
    """Whether a selector means this node."""
    if selector.kind == "op":
        assert selector.pattern is not None
        return selector.pattern.fullmatch(f"{node.domain}:{node.op_type}") is not None
    if selector.kind == "path":
        scope, name = selector.text.strip("/"), (node.name or "").lstrip("/")
        return name == scope or name.startswith(f"{scope}/") or scope.replace("/", ".") in _scopes(node)
    if not node.name:
        return False
    if node.name == selector.text and selector.kind != "re":
        return True
    return selector.pattern is not None and selector.pattern.fullmatch(node.name) is not None


def resolve(selectors: Iterable[str | Selector], model: ir.Model) -> dict[ir.Node, Selector]:
    """The nodes that a list of selectors means, in graph order, each with the last selector that matches it.

    Args:
        selectors: Selectors, parsed or as text.
        model: Main graph, subgraphs and local functions are searched.

    Raises:
        OptionError: A selector that does not parse, or matches no node; names the nearest names or operator types.
    """
    given = list(selectors)
    parsed = [parse(s) if isinstance(s, str) else s for s in given]
    found = _hits(given, parsed, model)
    return {node: parsed[hits[-1]] for node, hits in found.items()}


def resolve_each(selectors: Iterable[str | Selector], model: ir.Model) -> list[list[ir.Node]]:
    """The nodes that each of several selectors means, in graph order.

    Raises:
        OptionError: As for `resolve`.
    """
    given = list(selectors)
    out: list[list[ir.Node]] = [[] for _ in given]
    for node, hits in _hits(given, [parse(s) if isinstance(s, str) else s for s in given], model).items():
        for i in hits:
            out[i].append(node)
    return out


def _hits(given: list[str | Selector], parsed: list[Selector], model: ir.Model) -> dict[ir.Node, list[int]]:
    """The numbers of the selectors that match each node, ascending; nodes without any are left out."""
    from onnxq.look import all_nodes

    exact: dict[str, list[int]] = {}
    for i, selector in enumerate(parsed):
        if selector.kind == "name":
            exact.setdefault(selector.text, []).append(i)
    others = [(i, s) for i, s in enumerate(parsed) if s.kind != "name"]
    out: dict[ir.Node, list[int]] = {}
    for node in all_nodes(model) if parsed else ():
        hits = [i for i, s in others if match(s, node)]
        if node.name:
            hits += exact.get(node.name, ())
        if hits:
            out[node] = sorted(hits)
    met = {i for hits in out.values() for i in hits}
    for i, selector in enumerate(parsed):
        if i not in met:
            raise OptionError(f"selector '{given[i]}' matches no node{_hint(selector, model)}")
    return out


def _bare(text: str) -> tuple[str, str]:
    if not WILD.search(text):
        return "name", text
    scope = text.removesuffix("/**")
    return ("path", text) if scope.strip("/") and scope != text and not WILD.search(scope) else ("glob", text)


def _glob(text: str) -> re.Pattern[str]:
    """A glob as a regular expression: ``**`` crosses slashes; ``*`` and ``?`` do so only if the glob has no slash."""
    one = "[^/]" if "/" in text else "."
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": f"{one}*", "?": one}
    tokens = re.findall(r"\*\*/?|[*?]|[^*?]+", text)
    return re.compile("".join(wild.get(token) or re.escape(token) for token in tokens), re.DOTALL)


def _scopes(node: ir.Node) -> list[str]:
    """Module paths that the PyTorch exporter recorded: a list as text, root first, the node's own name last."""
    text = node.metadata_props.get(SCOPES_KEY)
    if not text:
        return []
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [s for s in scopes[:-1] if isinstance(s, str) and s] if isinstance(scopes, list) else []


def _hint(selector: Selector, model: ir.Model) -> str:
    from onnxq.look import all_nodes

    nodes = list(all_nodes(model))
    if selector.kind == "op":
        return near(selector.text, {f"{n.domain}:{n.op_type}".lstrip(":") for n in nodes})
    names = {n.name for n in nodes if n.name}
    if selector.kind == "path":
        names = {name.rpartition("/")[0] for name in names} | {scope for n in nodes for scope in _scopes(n)}
    return near(selector.text, names - {""})
