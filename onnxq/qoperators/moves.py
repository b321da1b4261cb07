"""Data movement on integers: MaxPool, Reshape, Transpose and the like between a QuantizeLinear and its readers."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.edit import copy_metadata
from onnxq.look import onnx_op
from onnxq.lookups import insert_behind
from onnxq.provenance import changed
from onnxq.qoperators.movement import moved
from onnxq.qoperators.parameters import is_single
from onnxq.qoperators.raising import Raiser
from onnxq.states import QUANTIZE, is_q


def moves_integers(node: ir.Node) -> bool:
    """Whether a node only moves what a QuantizeLinear with a single scale, or a DynamicQuantizeLinear, has made."""
    if moved(node) != (0,) or node.inputs[0] is None:
        return False
    maker = node.inputs[0].producer()
    if onnx_op(maker, "DynamicQuantizeLinear"):
        return maker is not None and node.inputs[0] is maker.outputs[0]
    scale = maker.inputs[1] if maker is not None and is_q(maker, QUANTIZE) else None
    return scale is not None and is_single(scale)


def raise_movement(node: ir.Node, raiser: Raiser) -> str:
    """``Q(op(DQ(x)))`` with the parameters of ``x``: exact, as quantizing gives the integers back."""
    x, graph = node.inputs[0], node.graph
    maker = x.producer() if x is not None else None
    assert x is not None and maker is not None and isinstance(graph, ir.Graph)
    scale, zero = maker.outputs[1:] if maker.op_type != QUANTIZE else (*maker.inputs[1:], None)[:2]
    assert scale is not None
    dtype = x.dtype
    read = raiser.dequantized(node, x, scale, zero)
    parameters = [scale] if zero is None else [scale, zero]
    kept = [attr for name, attr in maker.attributes.items() if name == "output_dtype"]
    node.replace_input_with(0, read)
    for out in node.outputs if node.op_type == "Split" else node.outputs[:1]:
        domain = maker.domain if maker.op_type == QUANTIZE else ""
        new = ir.Node(domain, QUANTIZE, [out, *parameters], kept, name=raiser.namer(f"{out.name}_{QUANTIZE}"))
        copy_metadata(new, node, raiser.maker)
        made = new.outputs[0]
        made.name, made.shape = raiser.namer(f"{out.name}_quantized"), out.shape
        made.type = out.type if dtype is None else ir.TensorType(dtype)
        insert_behind(node, new, raiser.namer, f"{out.name}_float")
        changed(out)
        out.type = read.type
    return ""
