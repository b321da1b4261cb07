"""OQ606–OQ610: what the data of a target (`onnxq/targets/*.yaml`, or a user's own) do not allow.

onnxruntime's CPU provider and its training build have rules of their own: what they load is measured, and wider than
what is good to write for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq import ops
from onnxq.carry import constant_behind
from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import onnx_op
from onnxq.numerics.spec import QTYPES
from onnxq.rules._around import MOVERS, dequantizer
from onnxq.states import QUANTIZE, dtype_name, is_q, no_kernel
from onnxq.targets import Target

_MEASURED = ("ort-cpu", "ort-training")


def _target(subject: Subject) -> Target | None:
    return subject.target if subject.target is not None and subject.target.name not in _MEASURED else None


def _pairs(subject: Subject) -> Iterator[tuple[Linear, str]]:
    """Each QuantizeLinear, and each DequantizeLinear that follows none, with what it is for."""
    for one in subject.linears:
        maker = one.data.producer() if one.data is not None else None
        if one.dtype is None or (not one.quantizes and maker is not None and is_q(maker, QUANTIZE)):
            continue
        stored = not isinstance(constant_behind(one.data), str)
        yield one, "bias" if stored and one.dtype == ir.DataType.INT32 else "weight" if stored else "activation"


def _readers(one: Linear) -> Iterator[ir.Node]:
    """The layers that read a weight, behind its pair and data movement."""
    todo = [one.out]
    while todo:
        value = todo.pop()
        for node, index in value.uses() if value is not None else ():
            if not index and (is_q(node, "DequantizeLinear") or onnx_op(node, *MOVERS)):
                todo.append(node.outputs[0])
            elif ops.info(node) is not None:
                yield node


@graph_rule("OQ606", "type-not-of-target", "error")
def type_not_of_target(subject: Subject) -> Iterator[Finding]:
    """A pair has a type that the target does not take.

    What it does:
        With `--target`: compares the types of activations, weights and biases with those of the target
        (`onnxq targets NAME`). A type that only one operator does not take is a warning.

    Why is this bad:
        The target's importer refuses the model, or runs the layer elsewhere. TensorRT takes int8, int4 and 8-bit
        floats, and neither uint8 nor int32 (operator table of onnx-tensorrt: "DequantizeLinear: INT8, FP8, FP4, INT4").

    Use instead:
        `onnxq quantize --target NAME`, which writes what the target takes; a float bias where it takes no int32.
    """
    target = _target(subject)
    for one, role in _pairs(subject) if target is not None else ():
        if target is None or one.dtype is None:
            continue
        name, kind = one.dtype.name.lower(), dtype_name(one.dtype)
        if role == "bias":
            if target.bias.float_bias == "always" or target.bias.type.name != name:
                yield Finding(one.node, f"{target.name} takes no {kind} biases", "Leave the bias float.")
            continue
        rules = target.weights if role == "weight" else target.activations
        if name not in {t.name for t in rules.types}:
            known = ", ".join(t.name for t in rules.types)
            what = "weights" if role == "weight" else "activations"
            yield Finding(one.node, f"{target.name} takes no {kind} {what}", f"It takes {known}.", {"type": kind})
        elif role == "weight":
            for node in _readers(one):
                rule = target.integer_ops.get(node.op_type) if not node.domain else None
                if rule is not None and rule.weight_types and name not in {t.name for t in rule.weight_types}:
                    known = ", ".join(t.name for t in rule.weight_types)
                    text = f"{node.op_type} '{node.name}' of {target.name} takes no {kind} weights"
                    yield Finding(one.node, text, f"It takes {known}.", severity=Severity.WARNING)
                    break


@graph_rule("OQ607", "zero-point-not-of-target", "error")
def zero_point_not_of_target(subject: Subject) -> Iterator[Finding]:
    """A zero point is not the one that the target asks for.

    What it does:
        With `--target`: where activations or weights of a target have to be symmetric, looks for zero points other than
        0, or than the middle of unsigned types.

    Why is this bad:
        TensorRT's importer stops: "Non-zero zero point is not supported". Others take it to be 0.

    Use instead:
        Symmetric quantization (`onnxq quantize --target NAME`).
    """
    target = _target(subject)
    for one, role in _pairs(subject) if target is not None else ():
        spec = QTYPES.get(one.dtype.name.lower()) if one.dtype is not None else None
        if target is None or spec is None or role == "bias" or one.zero is None:
            continue
        rules = target.weights if role == "weight" else target.activations
        middle = 0 if spec.is_float or spec.qmin < 0 else (spec.qmax + 1) // 2
        # What writes no zero point of weights knows none.
        must = rules.always_symmetric or (role == "weight" and rules.symmetric and not target.weight_zero_point)
        if must and (one.zero != middle).any():
            worst = int(one.zero.ravel()[int(abs(one.zero - middle).argmax())])
            text = f"{target.name} takes symmetric {role}s, with zero point {middle}"
            yield Finding(one.node, text, numbers={"zero point": worst})


@graph_rule("OQ608", "granularity-not-of-target", "error")
def granularity_not_of_target(subject: Subject) -> Iterator[Finding]:
    """Scales are finer than the target takes them.

    What it does:
        With `--target`: looks for activations with several scales, for blocks where the target has none, and for
        weights with several scales where it takes one. Where only one operator takes one, it is a warning.

    Why is this bad:
        The target refuses the model or runs the layer elsewhere. onnxruntime's own configuration for QNN leaves MatMul
        per tensor, as one scale a channel is not supported there.

    Use instead:
        One scale; `granularity: per-tensor` for weights.
    """
    target = _target(subject)
    for one, role in _pairs(subject) if target is not None else ():
        dims = subject.dims(one.scale_value)
        if target is None or role == "bias" or dims is None or all(d == 1 for d in dims):
            continue
        if one.block_size and not (role == "weight" and target.weights.blocked):
            yield Finding(one.node, f"{target.name} takes no blocks of {role}s", numbers={"block size": one.block_size})
        elif role == "activation" or target.weights.granularity == "per-tensor":
            yield Finding(one.node, f"{target.name} takes one scale for {role}s", numbers={"scales": dims[0]})
        else:
            for node in _readers(one):
                rule = target.integer_ops.get(node.op_type) if not node.domain else None
                if rule is not None and not rule.per_channel:
                    text = f"{node.op_type} '{node.name}' of {target.name} takes one scale for its weight"
                    yield Finding(one.node, text, numbers={"scales": dims[0]}, severity=Severity.WARNING)
                    break


@graph_rule("OQ609", "combination-not-of-target", "error")
def combination_not_of_target(subject: Subject) -> Iterator[Finding]:
    """A type of weights stands with a type of activations that the target does not pair it with.

    What it does:
        With `--target`: follows each weight to its layer, and compares with the target's combinations.

    Why is this bad:
        The target has no kernel: Ascend takes int4 weights with int8 activations only, TensorRT with float ones only.

    Use instead:
        Another type on one side.
    """
    target = _target(subject)
    for one, role in _pairs(subject) if target is not None and target.combinations else ():
        allowed = target.combinations.get(one.dtype.name.lower()) if target is not None and one.dtype else None
        if target is None or role != "weight" or allowed is None:
            continue
        for node in _readers(one):
            front = dequantizer(subject, node.inputs[0], MOVERS)
            kind = front.dtype.name.lower() if front is not None and front.dtype is not None else "float"
            if kind not in allowed:
                text = f"{target.name} takes {dtype_name(one.dtype)} weights with {' or '.join(allowed)} activations,"
                yield Finding(one.node, f"{text} {node.op_type} '{node.name}' has {kind} ones")
                break


@graph_rule("OQ610", "layer-not-of-target", "warning")
def layer_not_of_target(subject: Subject) -> Iterator[Finding]:
    """A quantized layer has no integer kernel on the target.

    What it does:
        With `--target`: looks for layers between pairs, with a quantized weight, whose operator or attributes the
        target does not run on integers.

    Why is this bad:
        The layer runs in float between pairs, slower and less accurate than the float model.

    Use instead:
        No pairs around it.
    """
    target = _target(subject)
    for node in subject.of(*_LAYERS) if target is not None else ():
        pairs = [dequantizer(subject, value, MOVERS) for value in node.inputs[:2]]
        why = no_kernel(node, target) if target is not None and all(pairs) and len(pairs) == 2 else ""
        if why:
            yield Finding(node, f"between its pairs it runs in float: {why}")


_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")
