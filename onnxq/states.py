"""What a finished file says about its own quantization: Q/DQ pairs, and what each weight-bearing node computes on.

Nothing here reads weights; only scales and zero points of pairs are looked at, and of those only the small ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.look import attr_int, constant_tensor, onnx_op
from onnxq.targets import IntegerOp, Target

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
CARRIERS = frozenset(
    {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Split", QUANTIZE, DEQUANTIZE}
)
"""Ops that hand a constant on to the node that uses it."""

INTEGER_OPS = {
    "QLinearConv": "integer",
    "QLinearMatMul": "integer",
    "ConvInteger": "dynamic",
    "MatMulInteger": "dynamic",
    "com.microsoft::QGemm": "integer",
    "com.microsoft::QAttention": "integer",
    "com.microsoft::MatMulIntegerToFloat": "integer",
    "com.microsoft::DynamicQuantizeMatMul": "dynamic",
    "com.microsoft::DynamicQuantizeLSTM": "dynamic",
    "com.microsoft::MatMulNBits": "weight-only",
    "com.microsoft::GatherBlockQuantized": "weight-only",
    "com.microsoft::QMoE": "weight-only",
}
"""Ops that take integer tensors themselves, and how they compute; any other ``QLinear*`` is integer."""

_Q_DOMAINS = ("", "com.microsoft")
_SMALL = 4096  # zero points up to this size are read to tell symmetric from asymmetric


def is_q(node: ir.Node | None, op_type: str) -> bool:
    """Whether this is a QuantizeLinear / DequantizeLinear of the standard or onnxruntime's domain."""
    return node is not None and node.op_type == op_type and node.domain in _Q_DOMAINS


def source_of(value: ir.Value | None) -> tuple[ir.TensorProtocol | None, list[ir.Node]]:
    """The constant behind a value looked through `CARRIERS`, and the carriers on the way (nearest first)."""
    path: list[ir.Node] = []
    while value is not None:
        tensor = constant_tensor(value)
        if tensor is not None:
            return tensor, path
        node = value.producer()
        if node is None or node.op_type not in CARRIERS or node.domain not in _Q_DOMAINS or not node.inputs:
            return None, path
        path.append(node)
        value = node.inputs[0]
    return None, path


@dataclass(frozen=True)
class State:
    """How one node computes.

    Attributes:
        status: ``integer``, ``dynamic``, ``weight-only`` or ``float``, as in a plan.
        reason: Why it is float, in words; empty otherwise.
    """

    status: str
    reason: str = ""


def state_of(node: ir.Node, target: Target) -> State | None:
    """The state of a node that has weights or stands between Q/DQ pairs; None for any other node."""
    key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    if key in INTEGER_OPS or node.op_type.startswith("QLinear"):
        return State(INTEGER_OPS.get(key, "integer"))
    if node.op_type in CARRIERS or node.op_type == "Constant":
        return None
    float_weight = integer_weight = False
    activations: list[ir.Node | None] = []
    rule = _rule(node, target)
    for value in node.inputs[
        : 1 if rule is not None and rule.kind == "moves" else None
    ]:  # its others are indexes, sizes
        tensor, path = source_of(value)
        if tensor is not None:
            quantized = any(is_q(n, DEQUANTIZE) for n in path)
            integer_weight |= quantized and tensor.dtype != ir.DataType.INT32  # a bias belongs to its MatMul
            float_weight |= not quantized and tensor.dtype.is_floating_point() and tensor.size > 1
        elif value is not None and (value.dtype is None or value.dtype.is_floating_point()):
            activations.append(value.producer())
    pairs = [n for n in activations if n is not None and is_q(n, DEQUANTIZE)]
    if pairs and len(pairs) == len(activations) and (integer_weight or not float_weight):
        return _between_pairs(node, target, pairs, integer_weight)
    if integer_weight and not float_weight:
        return State("weight-only")
    if not float_weight:
        return None
    odd = "its input is quantized, its weight is not" if pairs else "no Q/DQ pair on input or weight"
    return State("float", no_kernel(node, target) or odd)


def _between_pairs(node: ir.Node, target: Target, pairs: list[ir.Node], has_weight: bool) -> State | None:
    """The state of a node all of whose float inputs come from DequantizeLinear."""
    if any(onnx_op(_producer(n.inputs[0]), "DynamicQuantizeLinear") for n in pairs):
        return State("dynamic")
    quantized_output = feeds_q(node, target)
    if not (has_weight or quantized_output):
        rule = _rule(node, target)
        if rule is None or rule.needs_output_q:
            return None  # a float op behind the last pair of an island
    reason = no_kernel(node, target)
    if not reason and not quantized_output and target.integer_ops[node.op_type].needs_output_q:
        reason = "no QuantizeLinear behind it"
    return State("float", reason) if reason else State("integer")


def no_kernel(node: ir.Node, target: Target) -> str:
    """Why the target would not run this node on integers whatever stands around it; ``""`` if it would."""
    rule = _rule(node, target)
    if rule is None:
        return f"{target.name} has no integer kernel for {node.op_type}"
    misfit = rule.misfit({name: attr.value for name, attr in node.attributes.items()})
    if misfit:
        return misfit
    dtype = next((v.dtype for v in node.outputs if v.dtype is not None), None)
    if dtype is not None and dtype.is_floating_point() and dtype_name(dtype) not in target.float_types:
        return f"{target.name} has no integer kernels for {dtype_name(dtype)}"
    return ""


def _producer(value: ir.Value | None) -> ir.Node | None:
    return value.producer() if value is not None else None


def feeds_q(node: ir.Node, target: Target) -> bool:
    """Whether a QuantizeLinear follows, looked through the activations and data movement the target folds away."""
    looks_on = _rule(node, target) is not None
    while True:
        users = [user for out in node.outputs for user in out.consumers()]
        if any(is_q(user, QUANTIZE) for user in users):
            return True
        rule = _rule(users[0], target) if len(users) == 1 and looks_on else None
        if rule is None or rule.kind not in ("folds", "moves"):
            return False
        node = users[0]


def _rule(node: ir.Node, target: Target) -> IntegerOp | None:
    return target.integer_ops.get(node.op_type) if node.domain == "" else None


def dtype_name(dtype: ir.DataType | None) -> str:
    """NumPy-like spelling of a type: ``float32``, ``int8``, ``bool``; ``?`` when unknown."""
    if dtype is None:
        return "?"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


@dataclass(frozen=True)
class Pair:
    """The kind of one DequantizeLinear, or of a QuantizeLinear that no DequantizeLinear follows.

    Attributes:
        role: ``activation``, ``weight``, ``bias``, ``dynamic``, or what is odd about it.
        spec: Type, symmetry and granularity in words.
    """

    role: str
    spec: str


def pairs_of(graph: ir.Graph) -> Iterator[Pair]:
    """One `Pair` for each Q/DQ pair, lone DequantizeLinear of a constant, and orphan in this graph (no subgraphs)."""
    for node in graph:
        if is_q(node, QUANTIZE):
            users = [u for out in node.outputs for u in out.consumers()]
            if not any(is_q(user, DEQUANTIZE) for user in users):
                yield Pair("Q without DQ", _spec(node))
        elif is_q(node, DEQUANTIZE):
            yield Pair(_role(node), _spec(node))


def _role(node: ir.Node) -> str:
    tensor, path = source_of(node.inputs[0])
    if tensor is not None:
        if any(is_q(n, QUANTIZE) for n in path):
            return "weight (float, Q, DQ)"
        return "bias" if tensor.dtype == ir.DataType.INT32 else "weight"
    before = _producer(node.inputs[0])
    if onnx_op(before, "DynamicQuantizeLinear"):
        return "dynamic"
    return "activation" if is_q(before, QUANTIZE) else "DQ without Q"


def _spec(node: ir.Node) -> str:
    scale = constant_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return f"{_type(node, zero)} {_symmetry(node, zero)} {_granularity(node, scale)}".replace("  ", " ").strip()


def _type(node: ir.Node, zero: ir.Value | None) -> str:
    """The integer type: of the zero point, else of the data, else what the Q before it writes."""
    tensor = constant_tensor(zero)
    if tensor is not None:
        return dtype_name(tensor.dtype)
    if is_q(node, QUANTIZE):
        asked = ir.DataType(attr_int(node, "output_dtype", 0))
        return dtype_name(asked if asked != ir.DataType.UNDEFINED else ir.DataType.UINT8)
    data = node.inputs[0]
    source, before = constant_tensor(data), _producer(data)
    if source is not None:
        return dtype_name(source.dtype)
    if onnx_op(before, "DynamicQuantizeLinear"):
        return "uint8"
    if before is not None and is_q(before, QUANTIZE):
        return _type(before, before.inputs[2] if len(before.inputs) > 2 else None)
    return dtype_name(data.dtype if data is not None else None)


def _symmetry(node: ir.Node, zero: ir.Value | None) -> str:
    if onnx_op(_producer(zero), "DynamicQuantizeLinear"):
        return "dynamic"
    tensor = constant_tensor(zero)
    if zero is None:
        return "symmetric" if not _type(node, zero).startswith("uint") else "asymmetric"
    if tensor is None or tensor.size > _SMALL:
        return ""
    unsigned = tensor.dtype.name.startswith("UINT")
    middle = 1 << (round(tensor.dtype.itemsize * 8) - 1) if unsigned else 0
    return "symmetric" if (tensor.numpy() == middle).all() else "asymmetric"


def _granularity(node: ir.Node, scale: ir.TensorProtocol | None) -> str:
    block = attr_int(node, "block_size", 0)
    if block:
        return f"blocked({block})"
    if scale is None:
        return "per-tensor" if node.inputs[1] is not None and node.inputs[1].shape is None else ""
    return "per-tensor" if scale.size == 1 else f"per-channel(axis={attr_int(node, 'axis', 1)})"
