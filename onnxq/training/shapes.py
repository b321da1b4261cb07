"""Static shapes of a twin for one batch: gradients need them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper, shape_inference

from onnxq.errors import DataError
from onnxq.look import Array
from onnxq.session import Runtime, Session

Dims = tuple[int, ...]


def fixed_shapes(
    settled: onnx.ModelProto, batch: Mapping[str, Array], parameters: Mapping[str, Array]
) -> dict[str, Dims]:
    """Shapes of the values of the main graph, by name; those that inference does not find are measured by one run.

    Args:
        settled: A twin without residue inputs.
        batch: Feeds of the model.
        parameters: First values of the parameters.

    Raises:
        DataError: The batch lacks an input of the model.
        InputError: The batch does not go through the model.
    """
    model = onnx.ModelProto()
    model.CopyFrom(settled)
    declare(model.graph, {name: array.shape for name, array in batch.items()})
    unfed = [v.name for v in model.graph.input if v.name not in batch and v.name not in parameters]
    if unfed:
        raise DataError(f"the batch has no {', '.join(unfed)}")
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    found = {}
    for value in (*inferred.input, *inferred.output, *inferred.value_info):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[value.name] = tuple(d.dim_value for d in dims)
    missing = {name for node in model.graph.node for name in node.output if name and name not in found}
    return found | _measured(model, inferred, missing, {**batch, **parameters}) if missing else found


def declare(graph: onnx.GraphProto, shapes: Mapping[str, Dims]) -> None:
    """Write shapes into inputs, and forget those of values inside and of outputs, which follow from them."""
    for value in graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    graph.ClearField("value_info")
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")


def _measured(
    model: onnx.ModelProto, inferred: onnx.GraphProto, missing: set[str], feeds: Mapping[str, Array]
) -> dict[str, Dims]:
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.output)}
    names = [name for name in missing if kinds.get(name, TensorProto.UNDEFINED)]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.ClearField("output")
    probe.graph.output.extend(helper.make_tensor_value_info(name, kinds[name], None) for name in sorted(names))
    session = Session(probe.SerializeToString(), {}, Runtime(optimization="none"))
    arrays = session.run({name: array for name, array in feeds.items() if name in session.inputs})
    return {name: array.shape for name, array in zip(session.outputs, arrays, strict=True)}
