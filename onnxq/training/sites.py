"""Where a Q/DQ model can be trained: its pairs, and the constants that are parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.carry import CARRIERS, constant_behind
from onnxq.context import Context
from onnxq.look import attr_int, constant_tensor, dims_of, nested_graphs, onnx_op
from onnxq.numerics.spec import Encoding
from onnxq.pairs import read_encoding
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q

Kind = Literal["weight", "bias", "scale"]
Train = Callable[[ir.Value], bool]

MOVERS = frozenset(
    {*CARRIERS, "MaxPool", "Slice", "Split", "Gather", "GatherElements", "Expand", "Tile", "DepthToSpace"}
    | {"SpaceToDepth"}
) - {"Cast"}
"""Ops that hand the numbers of their first input on, which may stand between the two halves of a pair."""

_NORMS = {"LayerNormalization": (1, 2), "RMSNormalization": (1,), "BatchNormalization": (1, 2)}
_NORMS |= {"InstanceNormalization": (1, 2), "GroupNormalization": (1, 2), "SkipLayerNormalization": (2, 3, 4)}


@dataclass(frozen=True, eq=False)
class Pair:
    """A QuantizeLinear with the DequantizeLinear nodes behind it.

    Attributes:
        q: The QuantizeLinear, in the main graph.
        encoding: What both halves store.
        movers: Nodes between the halves.
        dqs: The DequantizeLinear nodes, in all scopes.
        outer: Their encodings: the same numbers, perhaps along another axis.
        weight: The trained constant in front of it, None for an activation.
    """

    q: ir.Node
    encoding: Encoding
    movers: tuple[ir.Node, ...]
    dqs: tuple[ir.Node, ...]
    outer: tuple[Encoding, ...]
    weight: ir.Value | None

    @property
    def data(self) -> ir.Value:
        """What is quantized."""
        value = self.q.inputs[0]
        assert value is not None
        return value

    @property
    def scales(self) -> list[ir.Value]:
        """The values that hold its scale."""
        found = dict.fromkeys(node.inputs[1] for node in (self.q, *self.dqs))
        return [value for value in found if value is not None]


@dataclass
class Sites:
    """All that can be trained in a model.

    Attributes:
        pairs: Pairs to make differentiable.
        constants: Float initializers that are parameters, with their kind.
        biases: DequantizeLinear nodes of int32 constants, whose outputs become parameters.
    """

    pairs: list[Pair]
    constants: dict[ir.Value, Kind]
    biases: list[ir.Node]


def find_sites(model: ir.Model, train: Train, ctx: Context) -> Sites:
    """Read a model whose weights are float in front of pairs; each place left out is a note.

    Pairs in If, Loop and Scan bodies stay as they are: computed, not trained. A DequantizeLinear in a body belongs to
    the pair whose QuantizeLinear is outside.
    """
    constants = {value: kind for value, kind in _constants(model.graph) if _trained(value, kind, train, ctx)}
    found = [pair for node in model.graph if is_q(node, QUANTIZE) for pair in _pair(node, constants, ctx)]
    biases = [node for node in model.graph if is_q(node, DEQUANTIZE) and _is_bias(node, train, ctx)]
    known = {dq for pair in found for dq in pair.dqs}
    for node in (node for graph in nested_graphs(model.graph) for node in graph):
        inside = node.graph is not model.graph
        made = node.inputs[0].producer() if is_q(node, DEQUANTIZE) and node.inputs[0] is not None else None
        if inside and (is_q(node, QUANTIZE) or (is_q(node, DEQUANTIZE) and node not in known)):
            ctx.note("not-trained", node, "it is in a body: computed, but without a gradient")
        elif made is not None and node not in known and not is_q(made, QUANTIZE):
            why = f"no gradient goes through it: {made.op_type} '{made.name}' makes its integers"
            ctx.note("not-trained", node, why)
    return Sites(found, constants, biases)


def _trained(value: ir.Value, kind: Kind, train: Train, ctx: Context) -> bool:
    if value.is_graph_output():
        ctx.note("not-trained", value, f"this {kind} is a graph output")
        return False
    return train(value)


def _constants(graph: ir.Graph) -> Iterator[tuple[ir.Value, Kind]]:
    """Float32 initializers of the main graph that are weights (also behind pairs), biases or of a normalization."""
    seen: set[ir.Value] = set()
    for node in graph:
        for index, kind in _slots(node):
            value = _source(node.inputs[index]) if index < len(node.inputs) else None
            if value is not None and value not in seen:
                seen.add(value)
                yield value, kind


def _slots(node: ir.Node) -> Iterator[tuple[int, Kind]]:
    row = ops.info(node)
    if is_q(node, QUANTIZE):
        yield 0, "weight"
    elif row is not None and not is_q(node, DEQUANTIZE):
        yield from ((slot.index, "weight") for slot in row.weights)
        if row.bias is not None:
            yield row.bias, "bias"
    elif onnx_op(node, "Add"):
        for index, value in enumerate(node.inputs):
            if value is not None and onnx_op(value.producer(), "MatMul"):
                yield 1 - index, "bias"
    else:
        yield from ((index, "bias") for index in _NORMS.get(node.op_type, ()))


def _source(value: ir.Value | None) -> ir.Value | None:
    """The float32 initializer that a use reads through carriers, if it is one."""
    found = constant_behind(value)
    if isinstance(found, str) or found.tensor.dtype != ir.DataType.FLOAT or not found.source.is_initializer():
        return None
    return found.source if all(step.dtype in (None, ir.DataType.FLOAT) for step in found.steps) else None


def _is_bias(node: ir.Node, train: Train, ctx: Context) -> bool:
    data, scale = constant_tensor(node.inputs[0]), constant_tensor(node.inputs[1])
    if data is None or data.dtype != ir.DataType.INT32 or node.inputs[0] is None or not train(node.inputs[0]):
        return False
    read = read_encoding(node, tuple(data.shape.numpy()))
    if isinstance(read, str) or scale is None or read.zero_point.any():
        ctx.note("not-trained", node, f"this bias is not trained: {read if isinstance(read, str) else 'zero point'}")
        return False
    if scale.dtype != ir.DataType.FLOAT or node.outputs[0].is_graph_output():
        ctx.note("not-trained", node, "this bias is not float32, or a graph output")
        return False
    return True


def _pair(q: ir.Node, constants: dict[ir.Value, Kind], ctx: Context) -> Iterator[Pair]:
    """The pair behind a QuantizeLinear; none if its data is a constant that is not trained."""
    source = constant_behind(q.inputs[0])
    weight = None if isinstance(source, str) or source.source not in constants else source.source
    if not isinstance(source, str) and weight is None:
        return
    behind = _behind(q)
    encoding = read_encoding(q, _dims(q)) if not isinstance(behind, str) else behind
    if isinstance(behind, str) or isinstance(encoding, str):
        ctx.note("not-trained", q, f"no gradient goes through it: {encoding}")
        return
    movers, dqs = behind
    outer = [read_encoding(dq, _dims(dq)) for dq in dqs]
    why = _why_not(q, encoding, dqs, outer)
    if why:
        ctx.note("not-trained", q, f"no gradient goes through it: {why}")
        return
    yield Pair(q, encoding, movers, dqs, tuple(e for e in outer if isinstance(e, Encoding)), weight)


def _dims(node: ir.Node) -> tuple[int, ...]:
    """Shape of what a pair node reads, 0 where a dim is not known (only quantized axes matter)."""
    return tuple(d or 0 for d in dims_of(node.inputs[0]) or ())


def _behind(q: ir.Node) -> tuple[tuple[ir.Node, ...], tuple[ir.Node, ...]] | str:
    """Movers and DequantizeLinear nodes behind a QuantizeLinear, or in words what else reads the integers.

    Where the integers are a graph output, the QuantizeLinear stays for it beside the arithmetic.
    """
    movers: dict[ir.Node, None] = {}
    dqs: dict[ir.Node, None] = {}
    values = list(q.outputs)
    for value in values:
        for user, index in value.uses():
            if is_q(user, DEQUANTIZE) and index == 0:
                dqs[user] = None
            elif index == 0 and onnx_op(user, *MOVERS) and user.graph is q.graph:
                if any(out.is_graph_output() for out in user.outputs):
                    return f"its integers leave the graph behind {user.op_type} '{user.name}'"
                movers[user] = None
                values.extend(user.outputs)
            else:
                return f"{user.op_type} '{user.name}' reads its integers"
    return (tuple(movers), tuple(dqs)) if dqs else "no DequantizeLinear follows"


def _why_not(q: ir.Node, encoding: Encoding, dqs: tuple[ir.Node, ...], outer: Sequence[Encoding | str]) -> str:
    """Why arithmetic in float32 would not be what the pair computes; ``""`` if it is."""
    qtype = encoding.spec.qtype
    if qtype.is_float or qtype.bits > 16:
        return f"its numbers are {qtype}"
    if encoding.scale.dtype != np.float32:
        return f"its scale is {encoding.scale.dtype.name}, not float32"
    for node, name in ((q, "precision"), *((dq, "output_dtype") for dq in dqs)):
        if attr_int(node, name, 0) not in (0, ir.DataType.FLOAT.value):
            return f"{node.op_type} '{node.name}' computes in another type than float32"
    for dq, other in zip(dqs, outer, strict=True):
        if isinstance(other, str):
            return other
        if not (np.array_equal(other.scale, encoding.scale) and np.array_equal(other.zero_point, encoding.zero_point)):
            return f"DequantizeLinear '{dq.name}' has another scale or zero point"
    return ""
