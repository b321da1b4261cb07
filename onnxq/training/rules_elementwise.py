"""Gradients of elementwise ops whose general form is slow in onnxruntime: masks are factors, never a Where.

On CPU a Where of two tensors takes ten times a Mul, one against a scalar five times; Equal, Cast and Mul together take
half of it, and a steep HardSigmoid makes a one-sided mask in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import numpy_helper

from onnxq.training.rules import NoGradient, Tape, attributes, rule

_STEEP = 1e30


@rule("Identity")
def identity(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """The gradient itself."""
    return [gradient]


@rule("Round", "Floor", "Ceil", "Sign", "Hardmax", "QuantizeLinear")
def flat(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Refused: training would stand still behind such a node, and nobody would see why.

    Raises:
        NoGradient: Always.
    """
    raise NoGradient("its derivative is zero wherever there is one")


@rule("DequantizeLinear")
def dequantize(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Leads to the QuantizeLinear that is refused.

    Raises:
        NoGradient: The scale depends on a parameter.
    """
    if any(wanted[1:]):
        raise NoGradient("the scale depends on a parameter")
    return [gradient]


@rule("Add", "Sub")
def add(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """The gradient, summed over what was broadcast; negated behind a minus, after the sum."""
    first = _back(tape, node, gradient, 0) if wanted[0] else None
    second = _back(tape, node, gradient, 1) if wanted[1] else None
    if second is not None and node.op_type == "Sub":
        second = tape.op("Neg", second)
    return [first, second]


@rule("Mul")
def mul(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """The gradient times the other factor."""
    a, b = node.input
    return [
        _back(tape, node, tape.op("Mul", gradient, b), 0) if wanted[0] else None,
        _back(tape, node, tape.op("Mul", gradient, a), 1) if wanted[1] else None,
    ]


@rule("Div")
def div(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """``g / b`` and ``-g / b · (a / b)``, with the quotient from the forward pass."""
    over = tape.op("Div", gradient, node.input[1])
    first = _back(tape, node, over, 0) if wanted[0] else None
    if not wanted[1]:
        return [first, None]
    return [first, tape.op("Neg", _back(tape, node, tape.op("Mul", over, node.output[0]), 1))]


@rule("Pow")
def square(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None] | None:
    """``2x`` for the square that normalizations are written with, as the power of one is slow."""
    exponent = tape.stored(node.input[1])
    if exponent is None or wanted[1] or not (numpy_helper.to_array(exponent) == 2).all():
        return None
    x = node.input[0]
    product = tape.op("Mul", gradient, tape.op("Mul", x, tape.number(2, x)))
    return [_back(tape, node, product, 0), None]


@rule("Clip")
def clip(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """One where the value was not changed, the bounds included.

    Raises:
        NoGradient: A bound depends on a parameter.
    """
    if any(wanted[1:]):
        raise NoGradient("the bounds depend on a parameter")
    return [masked(tape, gradient, node.input[0], node.output[0])]


@rule("Min", "Max")
def extremum(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """All of it to the operand that was taken; where several are equal to the first of them that is wanted."""
    found: list[str | None] = []
    for i, name in enumerate(node.input):
        if not wanted[i]:
            found.append(None)
            continue
        taken = mask(tape, name, node.output[0])
        found.append(_back(tape, node, tape.op("Mul", gradient, taken), i))
        if any(wanted[i + 1 :]):
            gradient = tape.op("Sub", gradient, tape.op("Mul", gradient, taken))
    return found


@rule("Relu")
def relu(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """One where the output is positive."""
    return [tape.op("Mul", gradient, positive(tape, node.output[0]))]


@rule("LeakyRelu")
def leaky_relu(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """One where the input is positive, ``alpha`` elsewhere."""
    x, alpha = node.input[0], attributes(node).get("alpha", 0.01)
    slope = tape.op("Mul", positive(tape, x), tape.number(1 - alpha, x))
    return [tape.op("Mul", gradient, tape.op("Add", slope, tape.number(alpha, x)))]


@rule("PRelu")
def prelu(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """Input: one or the slope. Slope: the gradient times the input where that is negative."""
    x, slope = node.input
    step = positive(tape, x)
    found: list[str | None] = [None, None]
    if wanted[0]:
        below = tape.op("Mul", slope, tape.op("Sub", tape.number(1, x), step))
        found[0] = tape.op("Mul", gradient, tape.op("Add", step, below))
    if wanted[1]:
        negative = tape.op("Min", x, tape.number(0, x))
        found[1] = _back(tape, node, tape.op("Mul", gradient, negative), 1)
    return found


@rule("Elu")
def elu(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """``min(y, 0) + alpha`` is the slope below zero; above it is set to one."""
    y, alpha = node.output[0], attributes(node).get("alpha", 1.0)
    below = tape.op("Add", tape.op("Min", y, tape.number(0, y)), tape.number(alpha, y))
    step = tape.op("Mul", positive(tape, y), tape.number(1 - alpha, y))
    return [tape.op("Mul", gradient, tape.op("Add", below, step))]


@rule("HardSigmoid")
def hard_sigmoid(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """``alpha`` where the output is neither 0 nor 1."""
    found = attributes(node)
    inside = _between(tape, node.output[0])
    return [tape.op("Mul", gradient, tape.op("Mul", inside, tape.number(found.get("alpha", 0.2), node.input[0])))]


@rule("HardSwish")
def hard_swish(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """``x · h(x)`` with the hard sigmoid h of slope 1/6: ``h + x/6`` where h is neither 0 nor 1, h elsewhere."""
    x = node.input[0]
    h = _hard(tape, x, 1 / 6, 0.5)
    bend = tape.op("Mul", tape.op("Mul", x, tape.number(1 / 6, x)), _between(tape, h))
    return [tape.op("Mul", gradient, tape.op("Add", h, bend))]


def masked(tape: Tape, gradient: str, value: str, kept: str) -> str:
    """The gradient where two values of the graph are equal, zero elsewhere."""
    return tape.op("Mul", gradient, mask(tape, value, kept))


def mask(tape: Tape, value: str, kept: str) -> str:
    """1 where two values of the graph are equal, 0 elsewhere, of their type."""
    return tape.op("Cast", tape.op("Equal", value, kept), to=tape.type(kept))


def positive(tape: Tape, value: str) -> str:
    """1 where a value of the graph is positive, 0 elsewhere, of its type."""
    return _hard(tape, value, _STEEP, 0.0)


def _hard(tape: Tape, value: str, alpha: float, beta: float) -> str:
    """``min(max(alpha · value + beta, 0), 1)``."""
    if tape.type(value) == onnx.TensorProto.FLOAT:
        out = tape.op("HardSigmoid", value, alpha=alpha, beta=beta)
    else:  # onnxruntime has HardSigmoid for float32 only
        line = tape.op("Add", tape.op("Mul", value, tape.number(alpha, value)), tape.number(beta, value))
        out = tape.op("Min", tape.op("Max", line, tape.number(0, value)), tape.number(1, value))
    tape.declare(out, tape.type(value), tape.shape(value))
    return out


def _between(tape: Tape, h: str) -> str:
    """1 where a value between 0 and 1 is neither of the two: of ``h · (1 - h)`` the sign."""
    product = tape.op("Mul", h, tape.op("Sub", tape.number(1, h), h))
    tape.declare(product, tape.type(h), tape.shape(h))
    return positive(tape, product)


def _back(tape: Tape, node: onnx.NodeProto, value: str, index: int) -> str:
    """A gradient of the output's shape summed to the shape of an input."""
    return tape.reduced_to(value, tape.shape(node.output[0]), tape.shape(node.input[index]))
