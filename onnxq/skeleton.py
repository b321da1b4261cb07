"""A message with the structure of a model but not its weights: what `onnx.shape_inference` needs, and no more.

Built straight from the IR in linear time. Values get short names of their own, so the model's names need not be unique.
Small constants stay, since shape arithmetic needs them; all others are inputs with a type and a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir
from onnx import shape_inference

from onnxq.expansion import refuse_explosion
from onnxq.look import onnx_op, tensor_of_constant

_SMALL = 64  # elements; shapes, axes, pads and scales of real models are shorter
_INT, _GRAPH, _GRAPHS = onnx.AttributeProto.INT, onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS

# Ops of onnxruntime's own domain: the standard op whose type and shape rule they follow, and which inputs it reads.
_STAND_INS = {
    "BiasGelu": ("Identity", (0,)),
    "DequantizeLinear": ("Cast", (0,)),
    "FastGelu": ("Identity", (0,)),
    "FusedConv": ("Conv", (0, 1, 2)),
    "FusedGemm": ("Gemm", (0, 1, 2)),
    "Gelu": ("Identity", (0,)),
    "MatMulNBits": ("MatMul", (0,)),
    "QLinearAdd": ("Max", (0, 3)),
    "QLinearLeakyRelu": ("Identity", (0,)),
    "QLinearMul": ("Max", (0, 3)),
    "QLinearSigmoid": ("Identity", (0,)),
    "QLinearSoftmax": ("Identity", (0,)),
    "QuantizeLinear": ("Cast", (0,)),
    "QuickGelu": ("Identity", (0,)),
    "RotaryEmbedding": ("Identity", (0,)),
    "SkipLayerNormalization": ("Identity", (0,)),
    "SkipSimplifiedLayerNormalization": ("Identity", (0,)),
}


class Skeleton:
    """The message, and what inference finds out about the values of the model it was made from.

    Args:
        model: The model.
        within: Functions whose bodies are looked at in place of the main graph.
        given: Types of inputs of these.
    """

    def __init__(
        self,
        model: ir.Model,
        within: Iterable[ir.Function] | None = None,
        given: Mapping[ir.Value, onnx.TypeProto] | None = None,
    ) -> None:
        self._given = given or {}
        self._names: dict[ir.Value, str] = {}
        self._attributes: dict[object, onnx.AttributeProto] = {}
        self._steering: dict[ir.Value, onnx.TensorProto] = {}
        self._kinds: dict[object, onnx.TypeProto] = {}
        self._copied: set[str] = set()
        self._scopes: dict[ir.Value, onnx.GraphProto] = {}
        self._nested = False
        self._model = model
        self._proto = onnx.ModelProto(ir_version=max(model.ir_version, 4))
        for domain, version in model.opset_imports.items():
            self._proto.opset_import.add(domain=domain, version=version)
        for function in model.functions.values():
            self._proto.functions.append(ir.serde.serialize_function(function))
        self._domains = set(model.opset_imports)
        for graph in [model.graph] if within is None else [function.graph for function in within]:
            self._fill(graph, self._proto.graph)
        for domain in sorted(self._domains - set(model.opset_imports)):
            self._proto.opset_import.add(domain=domain, version=1)

    def infer(self, hints: Iterable[ir.Value] = ()) -> dict[ir.Value, onnx.TypeProto]:
        """Run onnx's inference with data propagation; returns each value of the model whose type it found.

        Args:
            hints: Values whose own type and shape count as known.

        Raises:
            onnx.shape_inference.InferenceError: The graph contradicts itself.
            UnsupportedError: It would take far more steps than the model has nodes.
        """
        refuse_explosion(self._model)
        for value in hints:
            scope = self._scopes.get(value, self._proto.graph)
            _describe(value, scope.value_info.add(name=self._name(value)))
        result = shape_inference.infer_shapes(self._proto.SerializeToString(), data_prop=True)
        values = {name: value for value, name in self._names.items()}
        found: dict[ir.Value, onnx.TypeProto] = {}
        graphs = [result.graph]
        for graph in graphs:
            for info in (*graph.value_info, *graph.output):
                if info.name in values and info.HasField("type"):
                    found[values[info.name]] = info.type
            if self._nested:
                for node in graph.node:
                    for attr in node.attribute:
                        graphs.extend([attr.g] if attr.HasField("g") else attr.graphs)
        return found

    def _name(self, value: ir.Value | None, scope: onnx.GraphProto | None = None) -> str:
        if value is None:
            return ""
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = f"v{len(self._names)}"
        if scope is None or scope is self._proto.graph or value not in self._steering:
            return name
        # Inference in a body sees the types of outer values but not the data of outer constants: it needs its own copy.
        copy = f"{name}_inner"
        if copy not in self._copied:
            self._copied.add(copy)
            scope.initializer.append(self._steering[value])
            scope.initializer[-1].name = copy
        return copy

    def _fill(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        outer, self._copied = self._copied, set()
        for value in graph.inputs:
            info = proto.input.add(name=self._name(value))
            if value in self._given:
                info.type.CopyFrom(self._given[value])
            else:
                _describe(value, info)
        for value in graph.initializers.values():
            if not value.is_graph_input() and value.const_value is not None:
                self._constant(value, value.const_value)
        for node in graph:
            tensor = tensor_of_constant(node) if onnx_op(node, "Constant") else None
            if tensor is not None:
                self._constant(node.outputs[0], tensor)
            else:
                self._node(node, proto)
        for value in graph.outputs:
            proto.output.add(name=self._name(value))
        self._copied = outer

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Declare a constant in the main graph, which inner scopes see; a large one without its data, as an input."""
        name = self._name(value)
        dims = (value.shape or tensor.shape).dims
        if len(dims) < 2 and _steers_shapes(value, tensor.dtype) and tensor.size <= _SMALL:
            self._steering[value] = self._proto.graph.initializer.add(
                name=name, data_type=tensor.dtype, dims=tensor.shape.numpy(), raw_data=tensor.tobytes()
            )
            return
        info, known = self._proto.graph.input.add(name=name), value if value.dtype is not None else tensor
        key = (known.dtype, known.shape.dims if known.shape is not None else None)
        if key in self._kinds:  # weights have few shapes, and copying is four times as fast
            info.type.CopyFrom(self._kinds[key])
        else:
            _describe(value, info, tensor)
            self._kinds[key] = info.type

    def _node(self, node: ir.Node, proto: onnx.GraphProto) -> None:
        new = proto.node.add(op_type=node.op_type)
        if node.domain or node.overload:
            new.domain, new.overload = node.domain, node.overload
        self._domains.add(node.domain)
        if proto is not self._proto.graph:
            self._scopes.update(dict.fromkeys(node.outputs, proto))
        new.output.extend([self._name(v) if v.name or v.uses() else "" for v in node.outputs])
        for attr in node.attributes.data.values():
            self._attribute(attr, new)
        stand_in = _STAND_INS.get(node.op_type) if node.domain == "com.microsoft" else None
        if stand_in is None:
            names = self._names if proto is self._proto.graph else {}
            new.input.extend([names.get(v) or self._name(v, proto) for v in node.inputs])  # type: ignore[arg-type]
            return
        new.domain, new.op_type = "", stand_in[0]
        new.input.extend([self._name(node.inputs[i], proto) for i in stand_in[1] if i < len(node.inputs)])
        del new.output[1:]
        if new.op_type == "Cast":
            index = 2 if node.op_type == "QuantizeLinear" else 1  # its zero point, or DequantizeLinear's scale
            like = node.inputs[index] if index < len(node.inputs) else None
            new.attribute.add(name="to", type=_INT, i=int((like and like.dtype) or ir.DataType.UINT8))
        elif new.op_type == "MatMul":
            weight = self._proto.graph.input.add(name=f"{new.output[0]}_weight").type.tensor_type
            weight.elem_type = int((node.inputs[0] and node.inputs[0].dtype) or ir.DataType.FLOAT)
            for key in ("K", "N"):
                weight.shape.dim.add(dim_value=node.attributes[key].as_int())
            new.input.append(f"{new.output[0]}_weight")

    def _attribute(self, attr: ir.Attr, node: onnx.NodeProto) -> None:
        kind = attr.type
        if kind is ir.AttributeType.GRAPH:
            self._nested = True
            self._fill(attr.as_graph(), node.attribute.add(name=attr.name, type=_GRAPH).g)
        elif kind is ir.AttributeType.GRAPHS:
            self._nested = True
            made = node.attribute.add(name=attr.name, type=_GRAPHS)
            for graph in attr.as_graphs():
                self._fill(graph, made.graphs.add())
        else:
            value = attr.value
            key = (attr.name, int(kind), value if isinstance(value, int | float | str | tuple) else id(value))
            proto = self._attributes.get(key)
            if proto is None:
                proto = self._attributes[key] = ir.serde.serialize_attribute(attr)
            node.attribute.append(proto)


def _steers_shapes(value: ir.Value, dtype: ir.DataType) -> bool:
    """Whether a small constant can decide a shape: integers but biases, floats as scales and range ends."""
    if dtype is ir.DataType.INT64:
        return True
    if dtype is ir.DataType.INT32:
        return any(node.op_type != "DequantizeLinear" for node, _ in value.uses())
    return dtype is ir.DataType.FLOAT and any(
        node.op_type in ("Resize", "Upsample", "Range") for node, _ in value.uses()
    )


def _describe(value: ir.Value, info: onnx.ValueInfoProto, tensor: ir.TensorProtocol | None = None) -> None:
    """Write type and shape of a value, or those of its constant; negative dims count as unknown."""
    tensor = tensor if tensor is not None else value.const_value
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        info.type.CopyFrom(ir.serde.serialize_value(value).type)
        return
    known = value if value.dtype is not None or tensor is None else tensor
    if known.dtype is None:
        return
    info.type.tensor_type.elem_type = int(known.dtype)
    if known.shape is None:
        return
    shape = info.type.tensor_type.shape
    shape.SetInParent()
    for dim in known.shape:
        new = shape.dim.add()
        if isinstance(dim, int):
            if dim >= 0:
                new.dim_value = dim
        elif dim.value is not None:
            new.dim_param = dim.value


def inferred_shapes(model: ir.Model) -> dict[ir.Value, tuple[int | None, ...]]:
    """Shapes that follow from the operators, None for each unknown dim; empty where the model contradicts itself."""
    try:
        found = Skeleton(model).infer()
    except Exception:  # onnx raises errors of its own and of C++
        return {}
    shapes = {}
    for value, info in found.items():
        if info.HasField("tensor_type") and info.tensor_type.HasField("shape"):
            dims = info.tensor_type.shape.dim
            shapes[value] = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
    return shapes
