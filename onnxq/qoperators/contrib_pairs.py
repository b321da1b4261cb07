"""Operators of onnxruntime's domain that hold a pair or are one: MatMulNBits, QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxq.edit import PASS_KEY, add_initializer, copy_metadata, graph_of
from onnxq.look import attr_int, constant_tensor, dims_of
from onnxq.lookups import insert_behind
from onnxq.nbits import DOMAIN, OP, unpacked
from onnxq.numerics.spec import QTYPES
from onnxq.ops import MICROSOFT
from onnxq.pairs import integer_type, parameter
from onnxq.qoperators.parameters import BLOCKS_SINCE, domain_for
from onnxq.qoperators.raising import Raiser, Refused, Rewrite
from onnxq.states import DEQUANTIZE, QUANTIZE

__all__ = ["FORMS", "become", "multiply", "opset_needed", "refuse_opset"]


def opset_needed(node: ir.Node) -> int:
    """The opset that the Q/DQ form of a MatMulNBits or GatherBlockQuantized needs: first with blocks and its type."""
    bits = attr_int(node, "bits", 4) if node.op_type == OP else 8
    qtype = QTYPES.get(f"uint{bits}")
    return max(BLOCKS_SINCE, qtype.since if qtype is not None else 0)


def refuse_opset(node: ir.Node, raiser: Raiser) -> None:
    """Refuse to rewrite such an operator below the opset it needs, or in a local function."""
    needed = opset_needed(node)
    if raiser.opset < needed:
        kind = f"uint{attr_int(node, 'bits', 4)}" if node.op_type == OP else "its"
        why = f"{kind} blocks need opset {needed}, the model has {raiser.opset}"
        raise Refused(f"{why}: run upgrade-opset (to: {needed}) first")
    if raiser.function:
        raise Refused("a local function holds no initializers: run inline-functions first")


def become(
    node: ir.Node, raiser: Raiser, op_type: str, attributes: Mapping[str, int], inputs: Sequence[ir.Value | None]
) -> None:
    """Make a standard operator of a node, which keeps its name, its place and its output."""
    node.domain, node.op_type = "", op_type
    node.attributes.clear()
    for key, value in attributes.items():
        node.attributes.add(ir.AttrInt64(key, value))
    node.resize_inputs(len(inputs))
    for i, each in enumerate(inputs):
        node.replace_input_with(i, each)
    node.metadata_props[PASS_KEY] = raiser.maker


def multiply(node: ir.Node, raiser: Raiser) -> str:
    """MatMulNBits -> ``integer weight [K, N] -> DequantizeLinear -> MatMul (-> Add)``.

    The node becomes the MatMul. It gets a weight of its own, since onnxruntime makes no MatMulNBits of a shared one. An
    accuracy level cannot be said in ONNX and is dropped, with a note.
    """
    _, *parts = unpacked(node)
    refuse_opset(node, raiser)
    packed, graph, size = node.inputs[1], node.graph, attr_int(node, "block_size", 0)
    bias, level = parameter(node, 5), attr_int(node, "accuracy_level", 0)
    assert packed is not None and isinstance(graph, ir.Graph)
    base, home, namer = (packed.name or "weight").removesuffix("_packed"), graph_of(packed), raiser.namer
    names = ("quantized", "scale", "zero_point")
    stored = [add_initializer(home, f"{base}_{what}", part, namer) for what, part in zip(names, parts, strict=True)]
    given = {"axis": 0, "block_size": size} if len(parts[1].shape) > 1 else {"axis": 1}
    dq = ir.node(DEQUANTIZE, stored, given, name=namer(f"{base}_{DEQUANTIZE}"))
    made = dq.outputs[0]
    made.name, made.type, made.shape = namer(f"{base}_dequantized"), stored[1].type, stored[0].shape
    copy_metadata(dq, node, raiser.maker)
    graph.insert_before(node, dq)
    become(node, raiser, "MatMul", {}, [node.inputs[0], made])
    if bias is not None:
        add = ir.node("Add", [node.outputs[0], bias], name=namer(f"{node.name or node.op_type}_Add"))
        made, out = add.outputs[0], node.outputs[0]
        made.name, made.type, made.shape = namer(f"{add.name}_output"), out.type, out.shape
        copy_metadata(add, node, raiser.maker)
        insert_behind(node, add, namer, f"{out.name}_product")
    if level:
        why = f"accuracy level {level} dropped: onnxruntime runs Q/DQ files at level 4 unless "
        why = f"{why}session.qdq_matmulnbits_accuracy_level says otherwise"
        raiser.ctx.note("accuracy-level-dropped", node, why, level=level)
    return ""


def _standard(node: ir.Node, raiser: Raiser) -> str:
    """A pair node of onnxruntime's domain becomes the standard one, where the opset has such a pair.

    Without axis the scale is a single number there, and in ONNX the axis is 1 by default: it gets written.
    """
    x, scale = node.inputs[0], parameter(node, 1)
    assert x is not None and scale is not None
    stored = constant_tensor(scale)
    dims = dims_of(scale) if stored is None else stored.shape.numpy()
    if dims is None:
        raise Refused(f"the shape of scale '{scale.name}' is unknown")
    several = len(dims) == 1 and dims != (1,)
    rank = len(dims_of(x) or dims_of(node.outputs[0]) or ())
    axis = attr_int(node, "axis", 1) if several else None
    if axis is not None and axis < 0:
        if not rank:
            raise Refused(f"it counts axis {axis} from the end of a tensor of unknown rank")
        axis += rank
    kind = integer_type(node)
    if domain_for(raiser.opset, kind, scale.dtype if stored is None else stored.dtype, axis, None) == MICROSOFT:
        raise Refused(f"opset {raiser.opset} has no {node.op_type} for {kind.name.lower() if kind else 'its type'}")
    inputs = [value for value in node.inputs if value is not None]
    become(node, raiser, node.op_type, {} if axis is None else {"axis": axis}, inputs)
    return ""


FORMS: dict[tuple[str, str], Rewrite] = {
    (DOMAIN, OP): multiply,
    (MICROSOFT, QUANTIZE): _standard,
    (MICROSOFT, DEQUANTIZE): _standard,
}
"""(domain, op type) -> its rewrite."""
