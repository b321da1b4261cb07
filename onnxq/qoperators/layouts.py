"""Where integer operators keep what a Q/DQ form says around a float operator: one table for both directions.

Each quantized tensor is three inputs in a row: integers, scale, zero point; the output has scale and zero point.
Sources: the operator texts of ONNX and of onnxruntime's contrib operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxq.ops import MICROSOFT


@dataclass(frozen=True)
class Layout:
    """Inputs of an integer operator.

    Attributes:
        float_op: The standard operator it computes.
        domain: Its domain.
        op_type: Its name.
        operands: Index of the integers of each operand.
        output: Index of the output's scale.
        plain: Inputs that are not quantized; in the float operator they stand in front of the operands.
        bias: Index of the int32 bias, which the float operator has behind its operands.
        variadic: Whether operands go on, three inputs each, to the last input.
    """

    float_op: str
    domain: str
    op_type: str
    operands: tuple[int, ...]
    output: int
    plain: tuple[int, ...] = ()
    bias: int | None = None
    variadic: bool = False

    def operands_of(self, node: ir.Node) -> tuple[int, ...]:
        """Index of the integers of each operand of a node."""
        return tuple(range(self.operands[0], len(node.inputs), 3)) if self.variadic else self.operands


def _contrib(float_op: str, operands: tuple[int, ...], output: int) -> Layout:
    return Layout(float_op, MICROSOFT, f"QLinear{float_op}", operands, output)


LAYOUTS: dict[str, Layout] = {
    row.float_op: row
    for row in (
        Layout("Conv", "", "QLinearConv", (0, 3), 6, bias=8),
        Layout("MatMul", "", "QLinearMatMul", (0, 3), 6),
        Layout("Gemm", MICROSOFT, "QGemm", (0, 3), 7, bias=6),
        _contrib("Add", (0, 3), 6),
        _contrib("Mul", (0, 3), 6),
        _contrib("Sigmoid", (0,), 3),
        _contrib("LeakyRelu", (0,), 3),
        _contrib("Softmax", (0,), 3),
        _contrib("AveragePool", (0,), 3),
        _contrib("GlobalAveragePool", (0,), 3),
        Layout("Where", MICROSOFT, "QLinearWhere", (1, 4), 7, plain=(0,)),
        Layout("Concat", MICROSOFT, "QLinearConcat", (2,), 0, variadic=True),
    )
}
"""By float operator."""
