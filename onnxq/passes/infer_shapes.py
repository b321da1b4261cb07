"""infer-shapes: types and shapes of all values, as far as they can be known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx_ir as ir

from onnxq.chosen import Chosen
from onnxq.diagnostics import Severity
from onnxq.edit import constant_tensor, nested_graphs, onnx_op
from onnxq.facts import Fact
from onnxq.passbase import Context, Pass
from onnxq.skeleton import Skeleton
from onnxq.wording import plural

Dims = tuple[int | str | None, ...]

_SHAPED = ("Reshape", "Expand", "ConstantOfShape")
_ROUNDS = 8  # each round of inference may tell the length of one more computed shape


@dataclass(frozen=True, kw_only=True)
class InferShapes(Pass):
    """Values without type or shape -> values with them, in all scopes.

    Wraps `onnx.shape_inference` with data propagation, on a message without weights. What cannot be inferred stays as
    the file has it; an inference that fails is a warning, not a stop. Where the file contradicts the operators, the
    operators win, with a warning. Some ops of onnxruntime's own domain are known by the standard op they follow.

    Negative dims mean "unknown" and become that. A dim of 0 is an empty tensor, as onnxruntime reads it.

    Attributes:
        if_missing: Do nothing when every value has a type and a shape without unknown dims.
    """

    name: ClassVar[str] = "infer-shapes"
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Chosen})

    if_missing: bool = False

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Infer, merge, and say how many values stay without a shape."""
        chosen = ctx.maybe(Chosen)
        if chosen is not None:
            return _restate(model, chosen.values, ctx)
        made = [v for graph in nested_graphs(model.graph) for node in graph for v in node.outputs if v.name or v.uses()]
        if self.if_missing and all(v.type is not None and _complete(v.shape) for v in made):
            return False
        changed = _unknown_for_negative([*model.graph.inputs, *made], ctx)
        changed = _describe_constants(made) or changed
        try:
            skeleton = Skeleton(model)
            found = skeleton.infer()
            hints = [v for v in made if v.shape is not None and not _has_shape(found.get(v))]
            for _ in range(_ROUNDS):
                ranks = _ranks(made, found)
                if not (hints or ranks):
                    break
                found = skeleton.infer([*hints, *ranks])
                hints, changed = [], changed or bool(ranks)
        except Exception as error:  # onnx raises errors of its own and of C++; the model stays as it is
            text = str(error).strip().splitlines()
            why = text[0] if text else type(error).__name__
            ctx.note("shapes-not-inferred", None, f"onnx shape inference failed: {why}", Severity.WARNING)
            return changed
        shapes: dict[Dims, ir.Shape] = {}
        for value, info in found.items():
            changed = _merge(value, info, shapes, ctx) or changed
        unknown = [v for v in made if v.shape is None and (v.type is None or isinstance(v.type, ir.TensorType))]
        if unknown:
            names = ", ".join(f"'{v.name}'" for v in unknown[:3]) + (", …" if len(unknown) > 3 else "")
            ctx.note(
                "shape-unknown", None, f"{plural(len(unknown), 'value')} without a shape: {names}", count=len(unknown)
            )
        return changed


def _restate(model: ir.Model, values: Collection[ir.Value], ctx: Context) -> bool:
    """Let the operators say the types and shapes of some values, whose declarations are wrong."""
    try:
        found = Skeleton(model).infer() if values else {}
    except Exception:  # onnx raises errors of its own and of C++
        return False
    changed = [_merge(value, found[value], {}, ctx) for value in values if value in found]
    return any(changed)


def _complete(shape: ir.Shape | None) -> bool:
    return shape is not None and all(isinstance(d, int) or _symbol(d.value) for d in shape.dims)


def _describe_constants(values: list[ir.Value]) -> bool:
    changed = False
    for value in values:
        tensor = constant_tensor(value) if value.type is None or value.shape is None else None
        if tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            changed = True
    return changed


def _unknown_for_negative(values: list[ir.Value], ctx: Context) -> bool:
    changed = False
    for value in values:
        if value.shape is None or not any(isinstance(d, int) and d < 0 for d in value.shape):
            continue
        if value.is_graph_input() or value.is_graph_output():
            ctx.note("negative-dim", value, f"shape {value.shape}: a negative dim means unknown")
        value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in value.shape])
        changed = True
    return changed


def _has_shape(info: onnx.TypeProto | None) -> bool:
    return info is not None and (not info.HasField("tensor_type") or info.tensor_type.HasField("shape"))


def _ranks(values: list[ir.Value], found: dict[ir.Value, onnx.TypeProto]) -> list[ir.Value]:
    """Give what Reshape and its like make, if nothing else is known, as many dims as their shape input has numbers."""
    changed = []
    for value in values:
        node = value.producer()
        if value.shape is not None or _has_shape(found.get(value)) or not onnx_op(node, *_SHAPED):
            continue
        assert node is not None
        length = _dims(found.get(node.inputs[-1])) if node.inputs[-1] is not None else None
        source = found.get(node.inputs[0]) if node.inputs[0] is not None else None
        if length is None or len(length) != 1 or not isinstance(length[0], int):
            continue
        if node.op_type == "Expand" and len(_dims(source) or [0] * length[0]) > length[0]:
            continue
        value.shape = ir.Shape([None] * length[0])
        data = node.inputs[0]
        if value.type is None and node.op_type != "ConstantOfShape" and data is not None:
            elem_type = source.tensor_type.elem_type if source is not None else int(data.dtype or 0)
            value.type = ir.TensorType(ir.DataType(elem_type)) if elem_type else None
        changed.append(value)
    return changed


def _dims(info: onnx.TypeProto | None) -> Dims | None:
    if info is None or not info.HasField("tensor_type") or not info.tensor_type.HasField("shape"):
        return None
    return tuple([d.dim_value if d.HasField("dim_value") else _symbol(d.dim_param) for d in info.tensor_type.shape.dim])


def _merge(value: ir.Value, info: onnx.TypeProto, shapes: dict[Dims, ir.Shape], ctx: Context) -> bool:
    """Take over what inference knows; True if that changed the value."""
    if not info.HasField("tensor_type"):
        if value.type is not None or info.WhichOneof("value") is None:
            return False
        value.type = ir.serde.deserialize_type_proto_for_type(info)
        return True
    tensor = info.tensor_type
    changed = False
    if tensor.elem_type and value.dtype != tensor.elem_type:
        dtype = ir.DataType(tensor.elem_type)
        if value.dtype is not None:
            text = f"declared {value.dtype.name}, but its node makes {dtype.name}"
            ctx.note("stale-type", value, text, Severity.WARNING)
        value.type = ir.TensorType(dtype)
        changed = True
    inferred = _dims(info)
    if inferred is None:
        return changed
    known = (
        None
        if value.shape is None
        else tuple([d if isinstance(d, int) else _symbol(d.value) for d in value.shape.dims])
    )
    if known == inferred:
        return changed
    merged = inferred
    if known is not None and len(known) == len(inferred):
        # A number is worth more than a symbol, and the file's symbol more than an inferred one.
        merged = tuple([n if isinstance(n, int) or k is None else k for k, n in zip(known, inferred, strict=True)])
    if known == merged:
        return changed
    if known is not None and not _agree(known, inferred):
        text = f"declared {list(known)}, but its node makes {list(inferred)}"
        ctx.note("stale-shape", value, text, Severity.WARNING)
    if merged not in shapes:
        shapes[merged] = ir.Shape(merged, frozen=True)
    value.shape = shapes[merged]
    return True


def _symbol(name: str | None) -> str | None:
    """The name of an unknown dim; names like unk__3 are onnx's own for "some number", not worth keeping."""
    return name if name and not name.startswith("unk__") else None


def _agree(known: Dims, inferred: Dims) -> bool:
    if len(known) != len(inferred):
        return False
    return all(k == n or not (isinstance(k, int) and isinstance(n, int)) for k, n in zip(known, inferred, strict=True))
