"""OQ00x and OQ02x: names. Every value is defined once, before it is used, and seen where it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnxq.diagnostics import Severity
from onnxq.linting.order import unsorted_scopes
from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import Wire
from onnxq.wording import plural


@wire_rule("OQ004", "defined-twice", "error")
def defined_twice(wire: Wire) -> Iterator[Finding]:
    """A value is defined twice in one scope.

    What it does:
        Looks for names that two nodes, inputs or initializers of one graph or function define. An input that has an
        initializer is one value, not two.

    Why is this bad:
        A model is in single-assignment form; which of the two is meant depends on the reader.

    Use instead:
        A name of its own for each value.
    """
    for scope in wire.scopes:
        made = sum(map(len, scope.makes)) - sum(names.count("") for names in scope.makes)
        given = {*scope.inputs, *scope.constants}
        twice = set(scope.inputs).intersection(scope.constants)  # an input with a default
        if made + len(scope.inputs) + len(scope.constants) - len(twice) == len(scope.defined):
            continue
        for what, listed in (("input", scope.inputs), ("initializer", scope.constants)):
            for name, count in _doubled(listed):
                yield Finding(scope.place(value=name), f"{what} '{name}' is there {count} times")
        for index, names in enumerate(scope.makes):
            for name in names:
                if name and name in given:
                    yield Finding(scope.place(index, name), f"it defines '{name}', which is defined already")
                given.add(name)


@wire_rule("OQ005", "node-name", "info", fix="name-nodes")
def node_name(wire: Wire) -> Iterator[Finding]:
    """Nodes have no name, or share one.

    What it does:
        Looks for nodes of one graph with the same name (an error), and counts nodes without a name (an info).

    Why is this bad:
        onnxruntime does not load a model with two nodes of one name, and other tools take one for the other. Reports,
        selectors and overrides speak of nodes by name.

    Use instead:
        A name of its own for each node.

    Fix safety:
        Safe: names mean nothing to the computation. Local functions are left as they are.
    """
    for scope in wire.scopes:
        for name, count in _doubled(scope.names):
            text = f"{plural(count, 'node')} of the name '{name}'"
            place = scope.place(scope.names.index(name))
            yield Finding(place, text, "", {"nodes": count}, Severity.ERROR, fixable=not scope.in_function)
        unnamed = scope.names.count("")
        if unnamed:
            first = scope.names.index("")
            text = f"{plural(unnamed, 'node')} without a name; the first is a {scope.ops[first][1]}"
            yield Finding(scope.place(first), text, numbers={"nodes": unnamed}, fixable=not scope.in_function)


@wire_rule("OQ006", "unsorted", "warning", fix="sort-nodes")
def unsorted(wire: Wire) -> Iterator[Finding]:
    """A node stands before the node whose value it reads.

    What it does:
        Looks for values that are used before they are defined, in each graph and function. In a body or function it is
        an error, and so are nodes that need each other's values in a circle.

    Why is this bad:
        ONNX wants nodes in topological order. onnxruntime sorts those of the main graph itself, and does not load the
        model where it is another one; onnx.checker and other runtimes refuse it in any case. Nothing can sort a circle.

    Use instead:
        The order of the computation.

    Fix safety:
        Safe: the order of the nodes is all that changes.
    """
    scopes = [(found, found.circle()) for found in unsorted_scopes(wire)]
    fixable = not any(circle for _, circle in scopes)
    for found, circle in scopes:
        scope, within = found.scope, set(circle)
        if circle:
            many = f"{plural(len(circle), 'node')} need each other's values in a circle"
            text, numbers = many if len(circle) > 1 else "it reads what it makes", {"nodes": len(circle)}
            yield Finding(scope.place(circle[0]), text, "Break the circle.", numbers, Severity.ERROR, fixable=False)
        for index, late in found.late:
            if index not in within:
                maker = found.made[late]
                text = f"it reads '{late}', which {scope.ops[maker][1]} '{scope.names[maker]}' makes further down"
                numbers = {"position": index, "maker": maker}
                severity = Severity.ERROR if scope.outer is not None or scope.in_function else None
                yield Finding(scope.place(index), text, "", numbers, severity, fixable)


@wire_rule("OQ007", "undefined-value", "error")
def undefined_value(wire: Wire) -> Iterator[Finding]:
    """A node reads, or a graph gives out, a value that nothing defines.

    What it does:
        Looks up each name a node reads, and each output of a graph or function, in its scope and those around it.

    Why is this bad:
        The model does not load.

    Use instead:
        The name of a value that is there.
    """
    for scope in wire.scopes:
        missing = {name for name in scope.read - scope.defined if not scope.sees(name)}
        for index, names in enumerate(scope.reads if missing else ()):
            for name in names:
                if name in missing:
                    yield Finding(scope.place(index, name), f"it reads '{name}', which nothing defines")
        for name in scope.outputs:
            if not scope.sees(name):
                yield Finding(scope.place(value=name), f"nothing defines output '{name}'")


@wire_rule("OQ013", "doubled-entry", "error")
def doubled_entry(wire: Wire) -> Iterator[Finding]:
    """An attribute, a metadata key or a local function is there twice.

    What it does:
        Looks for entries with the same key where only one can count.

    Why is this bad:
        Which of the two counts depends on the reader.

    Use instead:
        One entry.
    """
    for name, count in _doubled([e.key for e in wire.model.metadata_props]):
        yield Finding(None, f"metadata key '{name}' is there {count} times")
    functions = [f"{f.domain}::{f.name}{f':{f.overload}' if f.overload else ''}" for f in wire.model.functions]
    for name, count in _doubled(functions):
        yield Finding(None, f"function '{name}' is there {count} times")
    for scope in wire.scopes:
        found = {row: _doubled([name for name, *_ in kind.attributes]) for row, kind in scope.kinds.items()}
        for index, row in enumerate(scope.signatures if any(found.values()) else ()):
            for name, count in found[row]:
                yield Finding(scope.place(index), f"its attribute '{name}' is there {count} times")


@wire_rule("OQ021", "shadowed-name", "error")
def shadowed_name(wire: Wire) -> Iterator[Finding]:
    """A subgraph defines a name that a graph around it defines, too.

    What it does:
        Compares the names of each If, Loop or Scan body with those of the graphs it sees.

    Why is this bad:
        ONNX forbids it, since a reader inside the body cannot tell which of the two is meant.

    Use instead:
        A name of its own.
    """
    for scope in wire.scopes:
        if scope.outer is None:
            continue
        for name in sorted(scope.defined - {""}):
            if scope.outer.sees(name):
                yield Finding(scope.place(value=name), f"'{name}' is defined here and in a graph around this one")


@wire_rule("OQ012", "unused-constant", "warning", fix="remove-unused")
def unused_constant(wire: Wire) -> Iterator[Finding]:
    """An initializer that nothing reads.

    What it does:
        Looks for initializers that no node of their graph, or of a graph inside it, reads, and that are no output.

    Why is this bad:
        It makes the file larger, and often tells of a rewrite that went half way: float weights beside their integers.

    Use instead:
        Leave it out.

    Fix safety:
        Safe: nothing reads it.
    """
    for scope in wire.scopes:
        unread = set(scope.constants) - wire.wanted[scope] - set(scope.outputs)
        for name in (n for n in scope.constants if n in unread):
            yield Finding(scope.place(value=name), f"nothing reads the initializer '{name}'")


@wire_rule("OQ018", "dead-node", "info", fix="remove-unused")
def dead_node(wire: Wire) -> Iterator[Finding]:
    """A node whose values nobody reads.

    What it does:
        Looks for nodes none of whose outputs is read or is a graph output. Nodes that only feed such nodes are not
        named: they go with them.

    Why is this bad:
        It costs time where the runtime does not remove it, and often tells of a rewrite that went half way.

    Use instead:
        Leave it out.

    Fix safety:
        Safe: nothing reads it.
    """
    for scope in wire.scopes:
        wanted = wire.wanted[scope] | set(scope.outputs)
        for index in [i for i, names in enumerate(scope.makes) if wanted.isdisjoint(names)]:
            yield Finding(scope.place(index), "nothing reads what it makes")


def _doubled(names: list[str]) -> list[tuple[str, int]]:
    """Names that are there more than once, with how often."""
    if len(set(names)) == len(names):
        return []
    return [(name, count) for name, count in Counter(names).items() if name and count > 1]
