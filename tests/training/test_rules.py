"""Gradients equal finite differences of the clipped-identity surrogate, on every op in the table of supported ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onnxq.training.rules_table import SUPPORTED
from tests.training.surrogate import Twin, assert_gradients

I64 = np.int64


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        op_type: The op.
        operands: A tuple is the shape of a fake-quantized parameter, an array a constant, None an absent input.
        attributes: Of the node.
        double: Whether onnxruntime has the op, and what its gradient is made of, for float64.
        base: What is added to the parameters, for ops that need positive values.
        outputs: Number of outputs.
    """

    op_type: str
    operands: tuple[Any, ...] = ((3, 4),)
    attributes: dict[str, Any] = field(default_factory=dict)
    double: bool = True
    base: float = 0.0
    outputs: int = 1

    def __str__(self) -> str:
        return self.op_type


def ints(*values: int) -> Any:
    return np.array(values, I64)


IMAGE = (2, 3, 5, 6)
UNARY = ("Abs", "Exp", "Identity", "LogSoftmax", "Neg", "Relu", "Sigmoid", "Sin", "Cos", "Softmax", "Tanh")
SINGLE = ("Erf", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Selu", "Softplus", "Softsign", "Mish", "Gelu", "Celu")
POSITIVE = ("Log", "Reciprocal", "Sqrt")
CASES = [
    *(Case(op) for op in UNARY),
    *(Case(op, double=False) for op in SINGLE),
    *(Case(op, base=3.0) for op in POSITIVE),
    *(Case(op, ((2, 3, 4), (3, 1))) for op in ("Add", "Sub", "Mul", "Max", "Min", "Sum")),
    *(Case(op, ((3, 1), (2, 3, 4))) for op in ("Add", "Sub", "Mul")),
    Case("Div", ((2, 3, 4), (3, 1)), base=3.0),
    Case("Pow", ((3, 4), np.array(2.5)), base=3.0),
    Case("Pow", ((3, 4), np.array([[2.0]]))),
    Case("Pow", ((3, 4), (3, 4)), base=3.0),
    Case("PRelu", ((2, 3, 4), (3, 1)), double=False),
    Case("Mean", ((2, 3, 4), (3, 1)), double=False),
    Case("Clip", ((3, 4), np.array(-0.51), np.array(0.62))),
    Case("MatMul", ((2, 3, 4), (4, 5))),
    Case("MatMul", ((2, 1, 3, 4), (3, 4, 2))),
    Case("MatMul", ((4,), (2, 4, 3))),
    Case("MatMul", ((2, 3, 4), (4,))),
    Case("MatMul", ((4,), (4,))),
    *(
        Case("Gemm", (a, b, (3, 1)), {"transA": ta, "transB": tb, "alpha": 0.7, "beta": 1.3})
        for ta, a in ((0, (3, 4)), (1, (4, 3)))
        for tb, b in ((0, (4, 2)), (1, (2, 4)))
    ),
    Case("Einsum", ((2, 3), (3, 4)), {"equation": "ij,jk->ki"}),
    Case("Conv", (IMAGE, (4, 3, 2, 2), (4,)), {"pads": [1, 0, 0, 1]}, double=False),
    Case("ConvTranspose", (IMAGE, (3, 2, 2, 2), (2,)), {"strides": [2, 1]}, double=False),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}, double=False),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [2, 2], "pads": [1] * 4, "count_include_pad": 1}, double=False),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, double=False),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, double=False),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}),
    Case("GlobalAveragePool", (IMAGE,), double=False),
    Case("GlobalMaxPool", (IMAGE,), double=False),
    Case("BatchNormalization", ((2, 3, 4), (3,), (3,), np.array([0.1, 0.2, 0.3]), np.array([1.0, 0.5, 2.0]))),
    Case("LayerNormalization", ((2, 3, 4), (4,), (4,))),
    Case("LayerNormalization", ((2, 3, 4), (3, 4)), {"axis": 1}),
    Case("InstanceNormalization", ((2, 3, 4), (3,), (3,)), double=False),
    Case("GroupNormalization", ((2, 4, 3), (4,), (4,)), {"num_groups": 2}, double=False),
    Case("RMSNormalization", ((2, 3, 4), (4,)), double=False),
    Case("LpNormalization", ((3, 4),), {"p": 2, "axis": 1}),
    Case("LRN", ((2, 4, 3, 2),), {"size": 3}, double=False),
    *(Case(op, ((2, 3, 4), ints(1))) for op in ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceMax", "ReduceMin")),
    Case("ReduceMean", ((2, 3, 4),), {"keepdims": 0}),
    Case("CumSum", ((3, 4), np.array(1, I64))),
    Case("Concat", ((2, 3), (2, 4)), {"axis": 1}),
    Case("Split", ((2, 7), ints(3, 4)), {"axis": 1}, outputs=2),
    Case("Slice", ((4, 5), ints(3, 1), ints(-9, 4), ints(0, 1), ints(-1, 2))),
    Case("Reshape", ((3, 4), ints(2, -1))),
    Case("Flatten", ((2, 3, 2),)),
    Case("Transpose", ((2, 3, 4),), {"perm": [2, 0, 1]}),
    Case("Squeeze", ((2, 1, 3), ints(1))),
    Case("Unsqueeze", ((2, 3), ints(1))),
    Case("Expand", ((3, 1), ints(2, 3, 4))),
    Case("Tile", ((2, 3), ints(2, 1))),
    Case("Pad", ((3, 4), ints(1, 0, 0, 2))),
    Case("DepthToSpace", ((1, 4, 2, 3),), {"blocksize": 2}),
    Case("SpaceToDepth", ((1, 2, 4, 2),), {"blocksize": 2}),
    Case("Resize", ((1, 2, 3, 3), None, np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"}, double=False),
    Case("Resize", ((1, 2, 3, 3), None, np.array([1, 1, 2, 2], np.float32)), {"mode": "linear"}, double=False),
    Case("Gather", ((5, 3), np.array([[0, 4], [4, -2]], I64))),
    Case("Gather", ((3, 4), ints(0, 0, 1, 1, 2)), {"axis": 1}),
    Case("GatherElements", ((3, 4), np.array([[0, 1], [2, 0]], I64)), {"axis": 0}),
    Case("Where", (np.array([[True], [False], [True]]), (3, 4), (3, 4))),
    Case("LSTM", ((3, 2, 2), (1, 12, 2), (1, 12, 3), (1, 24)), {"hidden_size": 3}, double=False),
    Case("GRU", ((3, 2, 2), (1, 9, 2), (1, 9, 3), (1, 18)), {"hidden_size": 3}, double=False),
    Case("RNN", ((3, 2, 2), (1, 3, 2), (1, 3, 3), (1, 6)), {"hidden_size": 3}, double=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_finite_differences(case: Case) -> None:
    # RMSNormalization came with opset 23, everything else is there in 21.
    twin = Twin(case.double, opset=23 if case.op_type == "RMSNormalization" else 21)
    inputs = []
    for i, operand in enumerate(case.operands):
        if operand is None:
            inputs.append("")
        elif isinstance(operand, tuple):
            inputs.append(twin.operand(f"p{i}", operand, per_axis=i > 0, base=case.base))
        else:
            real = operand.dtype == np.float64
            inputs.append(twin.constant(f"k{i}", operand, None if real else operand.dtype))
    outputs = [f"y{i}" for i in range(case.outputs)]
    twin.node(case.op_type, inputs, *outputs, **case.attributes)
    for name in outputs:
        twin.weigh(name)
    assert_gradients(twin)


def test_every_supported_op_is_held() -> None:
    assert {case.op_type for case in CASES} == set(SUPPORTED)
