"""Gradients of MatMul and Gemm, without a seed axis in front of the products."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxq.training.rules import Tape, attributes, rule


@rule("MatMul")
def matmul(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """``g · bᵀ`` and ``aᵀ · g``, summed over broadcast batch axes; vectors are matrices of one row or column."""
    (a, b), y = node.input, node.output[0]
    left, right = tape.shape(a), tape.shape(b)
    rows = left if len(left) > 1 else (1, *left)
    columns = right if len(right) > 1 else (*right, 1)
    batch = tape.shape(y)[: max(len(rows), len(columns)) - 2]
    full = (*batch, rows[-2], columns[-1])
    g = gradient if full == tape.shape(y) else tape.reshape(gradient, full)
    am = a if rows == left else tape.reshape(a, rows)
    bm = b if columns == right else tape.reshape(b, columns)
    found: list[str | None] = [None, None]
    if wanted[0]:
        found[0] = _summed(tape, tape.op("MatMul", g, _turned(tape, bm, len(columns))), (*batch, *rows[-2:]), left)
    if wanted[1]:
        if len(columns) == 2 and len(rows) > 2:
            # One weight for a batch of activations: fold the batch into the rows, and one product gives the sum.
            am, g = tape.reshape(am, [-1, rows[-1]]), tape.reshape(g, [-1, columns[-1]])
            product = tape.op("MatMul", _turned(tape, am, 2), g)
            found[1] = product if columns == right else tape.reshape(product, right)
        else:
            product = tape.op("MatMul", _turned(tape, am, len(rows)), g)
            found[1] = _summed(tape, product, (*batch, *columns[-2:]), right)
    return found


@rule("Gemm")
def gemm(tape: Tape, node: onnx.NodeProto, gradient: str, wanted: Sequence[bool]) -> list[str | None]:
    """``alpha · op(a) · op(b) + beta · c``: products of the gradient with the other factor, as Gemm again."""
    found = attributes(node)
    ta, tb, alpha = found.get("transA", 0), found.get("transB", 0), found.get("alpha", 1.0)
    a, b = node.input[0], node.input[1]
    out: list[str | None] = [None] * len(node.input)
    if wanted[0]:
        out[0] = (
            tape.op("Gemm", b, gradient, alpha=alpha, transA=tb, transB=1)
            if ta
            else tape.op("Gemm", gradient, b, alpha=alpha, transB=1 - tb)
        )
    if wanted[1]:
        out[1] = (
            tape.op("Gemm", gradient, a, alpha=alpha, transA=1, transB=ta)
            if tb
            else tape.op("Gemm", a, gradient, alpha=alpha, transA=1 - ta)
        )
    if len(node.input) > 2 and wanted[2]:
        c = tape.reduced_to(gradient, tape.shape(node.output[0]), tape.shape(node.input[2]))
        beta = found.get("beta", 1.0)
        out[2] = c if beta == 1 else tape.op("Mul", c, tape.number(beta, node.input[2]))
    return out


def _turned(tape: Tape, value: str, rank: int) -> str:
    return tape.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


def _summed(tape: Tape, product: str, shape: tuple[int, ...], target: tuple[int, ...]) -> str:
    """Over batch axes the operand was repeated along; then the operand's own shape."""
    matrix = target if len(target) > 1 else shape[-2:]
    lead = len(shape) - len(matrix)
    summed = tape.sum(product, [*range(lead), *(lead + i for i, d in enumerate(matrix) if d == 1 < shape[lead + i])])
    return summed if shape == target else tape.reshape(summed, target)
