"""Run one node whose inputs are constants, in onnxruntime without optimisation: the numbers the runtime itself gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import defs, shape_inference

from onnxq.look import Array, attr_ints, constant_tensor

Kind = tuple[ir.DataType, tuple[int, ...]]

_SHAPE_DATA = 8192  # bytes; inputs up to this size are shown to shape inference with their data
_SMALL = 256  # bytes; starts, axes and the like
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def signature(node: ir.Node) -> tuple[object, list[ir.Value]]:
    """What a node computes, and the constants it is bound to.

    The first part is equal for two nodes that compute the same: small constants, of which exporters write one for each
    node, count by content, all others as the value they are. The second part lists those others.
    """
    inputs: list[object] = []
    for value in node.inputs:
        tensor = constant_tensor(value)
        small = tensor is not None and tensor.nbytes <= _SMALL
        inputs.append((tensor.dtype, *tensor.shape.numpy(), tensor.tobytes()) if tensor and small else value)
    key = (_proto_of(node).SerializeToString(deterministic=True), *inputs)
    return key, [v for v in inputs if isinstance(v, ir.Value)]


def output_kinds(node: ir.Node, opset: int) -> list[Kind] | None:
    """Type and shape of each output of a standard node with constant inputs; None if only running it would tell."""
    proto, types, data = _proto_of(node), {}, {}
    for name, value in zip(proto.input, node.inputs, strict=True):
        tensor = constant_tensor(value)
        if tensor is None:
            continue
        types[name] = onnx.helper.make_tensor_type_proto(int(tensor.dtype), tensor.shape.numpy())
        if tensor.nbytes <= _SHAPE_DATA:
            data[name] = onnx.numpy_helper.from_array(np.asarray(tensor.numpy()), name)
    try:
        found = shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, opset, ""),
            proto,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )
    except (defs.SchemaError, shape_inference.InferenceError, onnx.checker.ValidationError):
        return None
    kinds = []
    for name in proto.output:
        if name not in found or not found[name].tensor_type.HasField("shape"):
            return None
        tensor_type = found[name].tensor_type
        if any(not d.HasField("dim_value") for d in tensor_type.shape.dim):
            return None
        kinds.append((ir.DataType(tensor_type.elem_type), tuple(d.dim_value for d in tensor_type.shape.dim)))
    return kinds


def function_of(node: ir.Node, opset: int, kind: Kind | None) -> Callable[[], list[Array]]:
    """What computes the outputs of a node from its constant inputs, later and without the node.

    Pure data movement and float casts are NumPy (views where possible, every type); all else is onnxruntime.

    Args:
        node: A node without bodies, all inputs constant.
        opset: The standard opset the node is written for.
        kind: Type and shape of its first output where known.
    """
    tensors = [constant_tensor(v) for v in node.inputs]
    first = tensors[0]
    assert first is not None
    if node.op_type in _RESHAPES and kind is not None:
        return lambda: [first.numpy().reshape(kind[1])]
    if node.op_type == "Transpose":
        perm = attr_ints(node, "perm")
        return lambda: [first.numpy().transpose(perm)]
    if node.op_type == "Cast" and kind is not None and first.dtype in _FLOATS and kind[0] in _FLOATS:
        return lambda: [first.numpy().astype(kind[0].numpy())]
    given = [t for t in tensors if t is not None]
    model = _model_of(node, opset)
    return lambda: _run(model, [t.numpy() for t in given])


def _proto_of(node: ir.Node) -> onnx.NodeProto:
    """The node with nothing but op and attributes, and plain names: v0, v1, … in and o0, o1, … out."""
    proto = ir.serde.serialize_node(node)
    for field in ("name", "doc_string", "metadata_props", "input", "output"):
        proto.ClearField(field)
    proto.input.extend("" if v is None else f"v{i}" for i, v in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return proto


def _model_of(node: ir.Node, opset: int) -> bytes:
    proto = onnx.ModelProto(ir_version=10)
    proto.opset_import.add(version=opset)
    proto.graph.name = "constant"
    new = proto.graph.node.add()
    new.CopyFrom(_proto_of(node))
    for name, value in zip(new.input, node.inputs, strict=True):
        tensor = constant_tensor(value)
        if tensor is not None:
            info = onnx.helper.make_tensor_value_info(name, int(tensor.dtype), tensor.shape.numpy())
            proto.graph.input.append(info)
    for name in new.output:
        proto.graph.output.add(name=name)
    return bytes(proto.SerializeToString())


def _run(model: bytes, arrays: list[Array]) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # the caller reports what went wrong
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)}))
