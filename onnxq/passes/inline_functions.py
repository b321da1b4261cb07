"""inline-functions: calls of local functions become the nodes they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.edit import Fresh, Namer, copy_metadata, nested_graphs, rename, replace_uses, uses
from onnxq.errors import UnsupportedError
from onnxq.opsets import upgrade as opsets
from onnxq.passbase import Context, Pass
from onnxq.passes.infer_shapes import InferShapes
from onnxq.wording import plural

Key = ir.OperatorIdentifier


@dataclass(frozen=True, kw_only=True)
class InlineFunctions(Pass):
    """Call of a local function -> the nodes of its body, in all scopes; afterwards the model has no functions.

    Names are ``<call>/<inner name>``, unique in the model; the values a call makes keep their names. Attribute
    references take the call's value, else the function's default, else the operator's own. Nested calls are resolved
    from the inside out, so the cost is that of the resulting model. Metadata of the call goes to every node made from
    it. A function may use another version of the standard operators: then all nodes are brought to the newest in use.
    """

    name: ClassVar[str] = "inline-functions"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Inline every call.

        Raises:
            UnsupportedError: Functions that call each other in a circle, a call with more inputs than the function has,
                or a body whose operators have no equal at the model's opset.
        """
        if not model.functions:
            return False
        functions = dict(model.functions)
        model.functions.clear()
        for key in _innermost_first(functions):
            _mark_versions(functions[key], model, ctx)
            # Names inside a function stay relative until they land in the main graph.
            _inline_calls(functions[key].graph, functions, str)
        counts = _inline_calls(model.graph, functions, Namer(model))
        nodes = [node for graph in nested_graphs(model.graph) for node in graph]
        for domain in {key[0] for key in functions} - {node.domain for node in nodes} - {""}:
            model.opset_imports.pop(domain, None)
        _to_one_opset(nodes, model, self.name, ctx)
        listed = ", ".join(f"{name} ({n})" for name, n in sorted(counts.items())) or "none was called"
        ctx.note("functions-inlined", None, f"calls of local functions inlined: {listed}", calls=sum(counts.values()))
        return True


def _innermost_first(functions: dict[Key, ir.Function]) -> list[Key]:
    order: list[Key] = []
    state: dict[Key, bool] = {}  # False while a function's own calls are being looked at, True when done

    def visit(key: Key, path: tuple[Key, ...]) -> None:
        if state.get(key):
            return
        if key in state:
            circle = " -> ".join(_label(k) for k in (*path[path.index(key) :], key))
            raise UnsupportedError(f"local functions call each other in a circle: {circle}")
        state[key] = False
        for graph in nested_graphs(functions[key].graph):
            for node in graph:
                if node.op_identifier() in functions:
                    visit(node.op_identifier(), (*path, key))
        state[key] = True
        order.append(key)

    for key in functions:
        visit(key, ())
    return order


def _label(key: Key) -> str:
    domain, name, overload = key
    return f"{domain}.{name}" + (f":{overload}" if overload else "")


def _mark_versions(function: ir.Function, model: ir.Model, ctx: Context) -> None:
    """Give the nodes whose operator differs between the function's opset and the model's a version of their own."""
    for domain, version in function.opset_imports.items():
        outer = model.opset_imports.setdefault(domain, version)
        if domain and outer != version:
            who = _label(function.identifier())
            text = f"{who} imports '{domain}' at version {version}, the model at {outer}; {outer} counts"
            ctx.note("function-opset", None, text, Severity.WARNING)
    own, outer = function.opset_imports.get("", 0), model.opset_imports.get("", 0)
    for graph in nested_graphs(function.graph):
        for node in graph:
            if own == outer or node.domain != "":
                continue
            here, there = opsets.schema(node.op_type, own), opsets.schema(node.op_type, outer)
            if here is None or there is None or here.since_version != there.since_version:
                node.version = own


def _to_one_opset(nodes: list[ir.Node], model: ir.Model, name: str, ctx: Context) -> None:
    marked = [node.version for node in nodes if node.version is not None]
    if not marked:
        return
    to = max(*marked, model.opset_imports[""])
    InferShapes().run(model, ctx)
    try:
        opsets.upgrade(model, to, name, inferred=True)
    except opsets.Obstacle as obstacle:
        node = obstacle.node
        raise UnsupportedError(
            f"node '{node.name}': {node.op_type} from a local function of opset {node.version} cannot be brought to "
            f"opset {to}: {obstacle.why}"
        ) from None
    ctx.note("function-opset", None, f"local functions used another opset; all nodes are now at opset {to}", opset=to)


def _inline_calls(root: ir.Graph, functions: dict[Key, ir.Function], fresh: Fresh) -> dict[str, int]:
    counts: dict[str, int] = {}
    for graph in tuple(nested_graphs(root)):
        for node in tuple(graph):
            function = functions.get(node.op_identifier())
            if function is not None:
                _inline(graph, node, function, fresh)
                counts[function.name] = counts.get(function.name, 0) + 1
    return counts


def _inline(graph: ir.Graph, call: ir.Node, function: ir.Function, fresh: Fresh) -> None:
    """Put a copy of the body in place of the call."""
    if len(call.inputs) > len(function.inputs):
        raise UnsupportedError(
            f"call '{call.name}' of local function {_label(function.identifier())} has "
            f"{plural(len(call.inputs), 'input')}, the function takes {len(function.inputs)}"
        )
    body = function.clone().graph
    formals, results = list(body.inputs), list(body.outputs)
    body.inputs.clear()
    body.outputs.clear()
    actuals = {formal: call.inputs[i] if i < len(call.inputs) else None for i, formal in enumerate(formals)}
    for formal, actual in actuals.items():
        for node, index in formal.uses():
            node.replace_input_with(index, actual)
    prefix = call.name or function.name
    for scope in nested_graphs(body):
        for value in (*scope.inputs, *scope.initializers.values(), *(v for node in scope for v in node.outputs)):
            if value.name:
                rename(value, fresh(f"{prefix}/{value.name}"))
        for node in scope:
            _resolve_attributes(node, call, function)
            node.name = fresh(f"{prefix}/{node.name or node.op_type}")
            copy_metadata(node, call, InlineFunctions.name)
    nodes = tuple(body)
    body.remove(nodes)
    graph.insert_before(call, nodes)
    named = set(actuals.values())
    for result, output in zip(results, call.outputs, strict=False):
        stand_in = actuals.get(result, result)
        if stand_in is None:
            for edge in uses(output):
                edge.node.replace_input_with(edge.index, None)
            continue
        name = output.name
        replace_uses(output, stand_in, fresh)
        if name and stand_in not in named:
            rename(stand_in, name)
            named.add(stand_in)
    graph.remove(call, safe=True)


def _resolve_attributes(node: ir.Node, call: ir.Node, function: ir.Function) -> None:
    """Fill attribute references from the call, else from the function's defaults; drop those that neither sets."""
    for name, attr in tuple(node.attributes.items()):
        if not attr.is_ref():
            continue
        wanted = str(attr.ref_attr_name)
        given = call.attributes.get(wanted) or function.attributes.get(wanted)
        if given is not None and given.is_ref():
            node.attributes[name] = ir.RefAttr(name, str(given.ref_attr_name), given.type)
        elif given is not None and given.value is not None:
            node.attributes[name] = ir.Attr(name, given.type, given.value)
        else:
            del node.attributes[name]
