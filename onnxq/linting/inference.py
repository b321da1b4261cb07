"""Types and shapes that follow from the operators; in local functions, from what these are called with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxq.look import constant_tensor, nested_graphs
from onnxq.skeleton import Skeleton

Found = dict[ir.Value, onnx.TypeProto]


def infer(model: ir.Model) -> Found:
    """Each value whose type onnx's inference finds, whatever the file declares.

    A function's inputs have what all its calls agree on. Not looked into: functions with attributes that a call fills
    in, since types may depend on them, and functions of other opsets than the model's.

    Raises:
        onnx.shape_inference.InferenceError: The main graph contradicts itself.
        UnsupportedError: It would take far more steps than the model has nodes.
    """
    found = Skeleton(model).infer()
    calls = _calls(model.graph, model)
    while calls:  # callers before those they call: each round is one call deeper
        called = [model.functions[key] for key in calls]
        open_ = [f for f in called if _is_alike(f, model) and not _has_references(f)]
        given: Found = {}
        for function in open_:
            rows = calls[function.identifier()]
            for index, value in enumerate(function.inputs):
                kind = _agreed(
                    [_known(node.inputs[index], found) if index < len(node.inputs) else None for node in rows]
                )
                if kind is not None:
                    given[value] = kind
        found |= given
        try:
            found |= Skeleton(model, open_, given).infer()
        except onnx.shape_inference.InferenceError:
            return found  # what contradicts itself has no types
        deeper: dict[ir.OperatorIdentifier, list[ir.Node]] = defaultdict(list)
        for function in called:
            for key, rows in _calls(function.graph, model).items():
                deeper[key] += rows
        calls = deeper
    return found


def _calls(graph: ir.Graph, model: ir.Model) -> dict[ir.OperatorIdentifier, list[ir.Node]]:
    """The calls of functions in a graph and those inside it."""
    found: dict[ir.OperatorIdentifier, list[ir.Node]] = defaultdict(list)
    for one in nested_graphs(graph) if model.functions else ():
        for node in one:
            if node.op_identifier() in model.functions:
                found[node.op_identifier()].append(node)
    return found


def _is_alike(function: ir.Function, model: ir.Model) -> bool:
    imports = model.opset_imports
    return all(imports.get(domain, version) == version for domain, version in function.opset_imports.items())


def _has_references(function: ir.Function) -> bool:
    nodes = (node for graph in nested_graphs(function.graph) for node in graph)
    return any(attr.is_ref() for node in nodes for attr in node.attributes.values())


def _known(value: ir.Value | None, found: Found) -> onnx.TypeProto | None:
    if value is None:
        return None
    if value in found:
        return found[value]
    tensor = constant_tensor(value)
    if tensor is not None:
        return onnx.helper.make_tensor_type_proto(int(tensor.dtype), tensor.shape.numpy())
    return ir.serde.serialize_value(value).type if value.type is not None else None


def _agreed(types: Sequence[onnx.TypeProto | None]) -> onnx.TypeProto | None:
    """What all types have in common; None where one is unknown, or they are of different kinds."""
    first = types[0]
    if first is None or any(t is None or not _is_tensor(t) for t in types):
        return None
    kinds = [t.tensor_type for t in types if t is not None]
    if len({k.elem_type for k in kinds}) > 1:
        return None
    made = onnx.TypeProto()
    made.tensor_type.elem_type = kinds[0].elem_type
    if all(k.HasField("shape") for k in kinds) and len({len(k.shape.dim) for k in kinds}) == 1:
        made.tensor_type.shape.SetInParent()
        for dims in zip(*(k.shape.dim for k in kinds), strict=True):
            dim, sizes = (
                made.tensor_type.shape.dim.add(),
                {d.dim_value if d.HasField("dim_value") else None for d in dims},
            )
            size = sizes.pop()
            if not sizes and size is not None:
                dim.dim_value = size
    return made


def _is_tensor(kind: onnx.TypeProto) -> bool:
    return bool(kind.HasField("tensor_type"))
