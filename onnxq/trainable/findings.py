"""What onnxruntime's training build will not do with a model, place by place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.border.tensors import is_typed
from onnxq.context import place_of
from onnxq.diagnostics import Diagnostic, Severity
from onnxq.look import all_graphs, constant_tensor, onnx_op
from onnxq.pairs import integer_type, parameter
from onnxq.states import DEQUANTIZE, INTEGER_OPS, QUANTIZE, is_q
from onnxq.targets import Target, load_target
from onnxq.trainable.unique_pairs import equal_quantizers
from onnxq.wording import plural

_EIGHT = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True, eq=False)
class Finding:
    """One obstacle.

    Attributes:
        code: Kebab-case; what kind it is.
        at: The QuantizeLinear, or another node; None for the whole model.
        why: One sentence: the reader of the pair and the reason.
        stops: Whether making artifacts, or the first step, fails; else something is only not trained.
    """

    code: str
    at: ir.Node | None
    why: str
    stops: bool = True


def trainable_findings(model: ir.Model) -> Iterator[Diagnostic]:
    """All obstacles as diagnostics: errors stop the training build, warnings say what it leaves as it is.

    Whether a zero point lies in the field that the training build reads is told of models that came over the border
    (`onnxq.border`), and of those made by `onnx_ir` itself from a message.
    """
    for found in obstacles(model):
        severity = Severity.ERROR if found.stops else Severity.WARNING
        yield Diagnostic(found.code, found.why, severity, place_of(found.at, model.graph), {}, "trainable")


def obstacles(model: ir.Model) -> Iterator[Finding]:
    """All obstacles: the model's first, then node by node."""
    target = load_target("ort-training")
    opset = model.opset_imports.get("", 0)
    yield from _versions(model, target, opset)
    sharers: dict[ir.Value, list[ir.Node]] = {}
    for graph in all_graphs(model):
        for first, *copies in equal_quantizers(graph):
            for node in copies:
                text = f"rounds the same value as {_name(first)} alike: the training build merges them, and fails"
                yield Finding("equal-pairs", node, text)
        for node in graph:
            if is_q(node, QUANTIZE):
                yield from _quantizer(node, graph is model.graph, opset, sharers)
            elif is_q(node, DEQUANTIZE):
                yield from _dequantizer(node)
            else:
                yield from _other(node)


def _versions(model: ir.Model, target: Target, opset: int) -> Iterator[Finding]:
    newest, oldest = target.opset.max, target.opset.min
    if opset > newest:
        text = f"the training build knows pairs up to opset {newest}, the model has {opset}"
        yield Finding("opset", None, text)
    elif opset < oldest:
        yield Finding("opset", None, f"the training build knows pairs from opset {oldest} on, the model has {opset}")
    if target.newest_ir_version and model.ir_version > target.newest_ir_version:
        text = (
            f"the training build loads models up to IR version {target.newest_ir_version}, this has {model.ir_version}"
        )
        yield Finding("ir-version", None, text)


def _quantizer(q: ir.Node, main: bool, opset: int, sharers: dict[ir.Value, list[ir.Node]]) -> Iterator[Finding]:
    readers = [(node, index) for node, index in q.outputs[0].uses()]
    behind = [node for node, index in readers if index == 0 and is_q(node, DEQUANTIZE)]
    after = _readers(behind)
    if not main:
        yield Finding("pair-in-body", q, f"no gradient for a pair in a body or local function{after}")
        return
    odd = [node for node, index in readers if index or not is_q(node, DEQUANTIZE)]
    if q.domain:
        yield Finding("pair-domain", q, f"the training build knows no {q.domain} pairs{after}")
    if q.outputs[0].is_graph_output():
        yield Finding("shared-integers", q, f"its integers are the graph output '{q.outputs[0].name}'{after}")
    elif odd:
        yield Finding("shared-integers", q, f"{_name(odd[0])} reads its integers, which no DequantizeLinear is")
    elif len(behind) != 1:
        names = ", ".join(map(_name, behind)) or "none"
        yield Finding("shared-integers", q, f"needs exactly one DequantizeLinear behind it, has {len(behind)}: {names}")
    scale = parameter(q, 1)
    tensor = constant_tensor(scale)
    if tensor is None:
        yield Finding("computed-scale", q, f"its scale is computed at run time{after}")
    elif tensor.size != 1:
        yield Finding(
            "several-scales", q, f"has {plural(tensor.size, 'scale')}, the training build computes with one{after}"
        )
    dtype = integer_type(q)
    if dtype not in _EIGHT:
        text = f"rounds to {dtype.name.lower() if dtype else 'an unknown type'}, the training build to 8 bits{after}"
        yield Finding("other-width", q, text)
    zero_value = parameter(q, 2)
    if zero_value is not None and zero_value not in sharers:
        sharing = {node for node, index in zero_value.uses() if index == 2 and is_q(node, QUANTIZE)}
        sharers[zero_value] = sorted(sharing, key=_name)[:2]
    other = next((node for node in sharers[zero_value] if node is not q), None) if zero_value is not None else None
    if other is not None:
        text = f"shares its zero point with {_name(other)}: the training build takes it away with the first pair{after}"
        yield Finding("shared-zero-point", q, text)
    for node in (q, *behind):
        zero = constant_tensor(parameter(node, 2))
        if zero is not None and zero.dtype in _EIGHT and not is_typed(zero):
            text = f"the zero point of {_name(node)} is stored as raw_data, the training build reads int32_data{after}"
            yield Finding("raw-zero-point", q, text)
            break


def _dequantizer(dq: ir.Node) -> Iterator[Finding]:
    data = dq.inputs[0] if dq.inputs else None
    maker = data.producer() if data is not None else None
    if onnx_op(maker, "DynamicQuantizeLinear"):
        yield Finding("computed-scale", maker, f"has no gradient{_readers([dq])}")
    elif not is_q(maker, QUANTIZE):
        text = f"{_name(dq)} reads stored integers: they stay as they are{_readers([dq])}"
        yield Finding("frozen-weight", dq, text, stops=False)


def _other(node: ir.Node) -> Iterator[Finding]:
    key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    if key in INTEGER_OPS or node.op_type.startswith("QLinear"):
        yield Finding("integer-operator", node, f"{node.op_type} computes on integers and has no gradient")
    elif onnx_op(node, "ConvTranspose"):
        yield Finding("no-gradient", node, "the training build has no CPU kernel for the gradient of ConvTranspose")


def _readers(behind: list[ir.Node]) -> str:
    """Who reads what DequantizeLinear nodes make, as the end of a sentence."""
    names = [_name(node) for dq in behind for node, _ in dq.outputs[0].uses()]
    names += ["the graph output" for dq in behind if dq.outputs[0].is_graph_output()]
    more = ", ..." if len(names) > 3 else ""
    return f" (read by {', '.join(names[:3])}{more})" if names else ""


def _name(node: ir.Node) -> str:
    return f"'{node.name}' ({node.op_type})" if node.name else node.op_type
