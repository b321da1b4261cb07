"""What nothing reads goes away: nodes, in all scopes, and initializers."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxq.look import all_graphs, bodies, nested_graphs


def detach(node: ir.Node) -> None:
    """Take away every use a node makes, also those by nodes in its bodies."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for body in bodies(node):
        for inner in body:
            detach(inner)


def remove_dead(model: ir.Model) -> int:
    """Remove nodes whose outputs nobody reads, and unused initializers that are not graph inputs, in all scopes.

    Returns:
        How many nodes and initializers went.
    """
    roots = [model.graph, *(f.graph for f in model.functions.values())]
    count = sum(_remove_dead_nodes(graph) for graph in roots)
    for graph in all_graphs(model):
        for name, value in tuple(graph.initializers.items()):
            if not (value.uses() or value.is_graph_input() or value.is_graph_output()):
                del graph.initializers[name]
                count += 1
    return count


def remove_unread(values: Iterable[ir.Value | None]) -> int:
    """Remove these values where nobody reads them any more, with what only they needed; all else stays.

    Args:
        values: Initializers and outputs of nodes, in any scope.

    Returns:
        How many nodes and initializers went.
    """
    count, pending = 0, [value for value in values if value is not None]
    while pending:
        value = pending.pop()
        node, graph = value.producer(), value.graph
        if value.uses() or value.is_graph_input() or value.is_graph_output():
            continue
        if node is None:
            if isinstance(graph, ir.Graph) and graph.initializers.get(value.name or "") is value:
                del graph.initializers[value.name or ""]
                count += 1
        elif node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            inside = [inner for body in bodies(node) for part in nested_graphs(body) for inner in part]
            pending += [v for reader in (node, *inside) for v in reader.inputs if v is not None]
            detach(node)
            node.graph.remove(node)
            count += 1
    return count


def _remove_dead_nodes(graph: ir.Graph) -> int:
    dead = []
    count = 0
    for node in reversed(graph):
        if any(v.uses() or v.is_graph_output() for v in node.outputs):
            count += sum(_remove_dead_nodes(body) for body in bodies(node))
        elif node.outputs:
            detach(node)
            dead.append(node)
    graph.remove(dead)
    return count + len(dead)
