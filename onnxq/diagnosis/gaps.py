"""Why onnxruntime's default session computes something else than a quantized model says.

Each cause is a row of `CAUSES`: a test on the quantized graph and on the graph that onnxruntime makes of it when it
loads, what happens, and what to do. All of them were measured with onnxruntime 1.32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.border.part import reads
from onnxq.diagnosis.optimized import Graphs, bias_of, dequantizer, scale_of
from onnxq.look import attr_int, bodies, constant, constant_tensor, dims_of, nested_graphs
from onnxq.session import Runtime, open_session
from onnxq.states import QUANTIZE, is_q

FUSED = frozenset({"QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat"})
_INT32_MAX = 2**31 - 1
SAME_SCALE = 1e-3
"""Relative distance from input scale times weight scale up to which a bias scale counts as that product."""


@dataclass(frozen=True)
class Cause:
    """What is known to change the meaning.

    Attributes:
        code: Kebab-case name.
        finds: The nodes of the quantized graph that it happened to.
        why: What onnxruntime does.
        remedy: What to do about it.
    """

    code: str
    finds: Callable[[Graphs], Iterable[ir.Node]]
    why: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """A cause at work.

    Attributes:
        code: Code of the cause.
        nodes: Names of the nodes, or of what they make where they have none; in graph order.
        why: What onnxruntime does.
        remedy: What to do about it.
    """

    code: str
    nodes: tuple[str, ...]
    why: str
    remedy: str


def explain(model: ir.Model, source: Path | None, runtime: Runtime) -> dict[str, list[Finding]]:
    """Find the causes in front of each output of a quantized model.

    Args:
        model: The quantized model; stays as it is.
        source: Its file, if it came from one.
        runtime: How the default session runs.

    Returns:
        Findings by the name of the output; an output without one is missing.

    Raises:
        InputError: onnxruntime cannot load the model.
    """
    with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
        path = Path(folder) / "optimized.onnx"
        # Everything that changes numbers happens below the last level, which only changes layouts (and names).
        with open_session(source or model, replace(runtime, optimization="extended", optimized=path)):
            pass
        graphs = Graphs(model.graph, ir.load(path).graph)
        found = {cause: list(cause.finds(graphs)) for cause in CAUSES}
    out: dict[str, list[Finding]] = {}
    for output in model.graph.outputs:
        before = _nodes_before(output)
        for cause, nodes in found.items():
            names = tuple(node.name or node.outputs[0].name or "" for node in nodes if node in before)
            if names:
                out.setdefault(output.name or "", []).append(Finding(cause.code, names, cause.why, cause.remedy))
    return out


def _nodes_before(output: ir.Value) -> set[ir.Node]:
    """The nodes an output depends on, with all that their bodies hold."""
    nodes: set[ir.Node] = set()
    todo = [output]
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in nodes:
            nodes.add(node)
            todo.extend(reads(node))
            nodes.update(inner for body in bodies(node) for scope in nested_graphs(body) for inner in scope)
    return nodes


def _rounded_to_int8(graphs: Graphs) -> Iterator[ir.Node]:
    for node in graphs.layers:
        made = graphs.becomes(node)
        if made is not None and made.op_type == "MatMulNBits" and attr_int(made, "accuracy_level", 0) == 4:
            yield node


def _float_bias(graphs: Graphs) -> Iterator[ir.Node]:
    for node in graphs.layers:
        bias, x = constant_tensor(bias_of(node)), dequantizer(node.inputs[0])
        if bias is None or not bias.dtype.is_floating_point() or x is None:
            continue
        made = graphs.becomes(node)
        if made is None or not any(_is_int32(value) for value in made.inputs):
            continue
        sx, sw = scale_of(x), scale_of(dequantizer(node.inputs[1]))
        if sx is None or sw is None or (np.abs(bias.numpy().astype(np.float64)) > _INT32_MAX * sx * sw).any():
            yield node


def _is_int32(value: ir.Value | None) -> bool:
    dq = dequantizer(value)
    tensor = constant_tensor(dq.inputs[0] if dq is not None else value)
    return tensor is not None and tensor.dtype == ir.DataType.INT32


def _float_weight(graphs: Graphs) -> Iterator[ir.Node]:
    for node in graphs.layers:
        weight = constant_tensor(node.inputs[1])
        if weight is None or not weight.dtype.is_floating_point():
            continue
        made = graphs.becomes(node)
        if made is None or made.op_type == "MatMulNBits":
            continue
        row = ops.info(made)
        weights = [made.inputs[slot.index] for slot in row.weights if slot.index < len(made.inputs)] if row else []
        if made.op_type in FUSED or any(dequantizer(v) is not None and _is_int8(v) for v in weights):
            yield node


def _is_int8(value: ir.Value | None) -> bool:
    dq = dequantizer(value)
    tensor = constant_tensor(dq.inputs[0]) if dq is not None else None
    return tensor is not None and tensor.dtype in (ir.DataType.INT8, ir.DataType.UINT8)


def _double_pairs(graphs: Graphs) -> Iterator[ir.Node]:
    for node in graphs.nodes:
        dq = dequantizer(node.inputs[0]) if is_q(node, QUANTIZE) else None
        q = dq.inputs[0].producer() if dq is not None and dq.inputs[0] is not None else None
        if dq is None or q is None or not is_q(q, QUANTIZE) or graphs.maker(dq.outputs[0].name) is not None:
            continue
        if not _same(q, node):
            yield node


def _same(one: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes have the same scale and zero point."""
    for a, b in zip(one.inputs[1:3], other.inputs[1:3], strict=False):
        left, right = constant(a), constant(b)
        if left is None or right is None or left.dtype != right.dtype or not np.array_equal(left, right):
            return False
    return True


def _ignored_axis(graphs: Graphs) -> Iterator[ir.Node]:
    for node in graphs.layers:
        dq = dequantizer(node.inputs[1])
        dims = dims_of(dq.inputs[0]) if dq is not None else None
        scale = scale_of(dq)
        if dq is None or dims is None or scale is None or scale.ndim != 1 or scale.size < 2:
            continue
        made = graphs.becomes(node)
        axis = attr_int(dq, "axis", 1) % len(dims)
        wanted = ops.channel_axis(node, 1, len(dims))
        if made is not None and made.op_type in FUSED and wanted is not None and axis != wanted:
            yield node


def _ignored_bias_scale(graphs: Graphs) -> Iterator[ir.Node]:
    for node in graphs.layers:
        dq, made = dequantizer(bias_of(node)), graphs.becomes(node)
        own, x, w = scale_of(dq), scale_of(dequantizer(node.inputs[0])), scale_of(dequantizer(node.inputs[1]))
        if dq is None or made is None or made.op_type not in FUSED or own is None or x is None or w is None:
            continue
        zero = constant(dq.inputs[2]) if len(dq.inputs) > 2 else None
        product = (x * w).reshape(-1)
        fits = own.size == 1 or product.size == 1 or own.size == product.size
        if (
            not fits
            or (np.abs(own.reshape(-1) - product) > SAME_SCALE * product).any()
            or (zero is not None and zero.any())
        ):
            yield node


CAUSES: tuple[Cause, ...] = (
    Cause(
        "activations-rounded",
        _rounded_to_int8,
        "became MatMulNBits of accuracy level 4, which rounds the activations to 8 bits at run time",
        "set session.qdq_matmulnbits_accuracy_level to 0 where the model is served; slower, and as the file says",
    ),
    Cause(
        "float-bias-cast",
        _float_bias,
        "has a float bias between Q/DQ pairs, which is cast to int32 at input scale times weight scale when the model "
        "is loaded, and overflows there",
        "store the bias as int32 with a DequantizeLinear (guard-bias does), or disable the optimizer "
        "WeightBiasQuantization",
    ),
    Cause(
        "float-weight-rounded",
        _float_weight,
        "has a float weight between Q/DQ pairs, which is rounded to int8 with one scale for the whole tensor when the "
        "model is loaded",
        "quantize the layer, or take the pair in front of or behind it away",
    ),
    Cause(
        "double-pair-removed",
        _double_pairs,
        "follows right behind another Q/DQ pair; the two are merged into one",
        "keep one of the pairs, or set session.disable_double_qdq_remover to 1",
    ),
    Cause(
        "weight-axis-ignored",
        _ignored_axis,
        "has its weight scales along another axis than the output channels; the integer kernel takes them for the "
        "channels' all the same",
        "write the scales along the output channels",
    ),
    Cause(
        "bias-scale-ignored",
        _ignored_bias_scale,
        "has an int32 bias whose scale is not input scale times weight scale, or whose zero point is not 0; the "
        "integer kernel takes the product and 0 all the same",
        "write the bias at exactly input scale times weight scale, zero point 0",
    ),
)
