"""The operator table: axes of weights, by op and attribute."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq import ops

MS = "com.microsoft"


def node(op: str, domain: str = "", inputs: int = 9, **attributes: int | str) -> ir.Node:
    values = [ir.Value(name=f"v{i}") for i in range(inputs)]
    return ir.node(op, values, attributes, domain=domain)


# op, input, rank or dims, channel axis, contraction axis
ROWS = [
    (node("Conv"), 1, 4, 0, None),
    (node("Conv"), 1, (8, 4, 1, 1), 0, 1),
    (node("Conv", group=2), 1, (8, 4, 1), 0, 1),
    (node("ConvTranspose"), 1, 4, 1, None),
    (node("ConvTranspose"), 1, (8, 4, 1, 1), 1, 0),
    (node("ConvTranspose", group=2), 1, (8, 4, 1, 1), 1, None),
    (node("Gemm"), 1, 2, 1, 0),
    (node("Gemm", transB=1), 1, 2, 0, 1),
    (node("Gemm"), 0, 2, 0, 1),
    (node("Gemm", transA=1), 0, 2, 1, 0),
    (node("Gemm"), 2, 1, None, None),
    (node("MatMul"), 1, 2, 1, 0),
    (node("MatMul"), 1, 4, 3, 2),
    (node("MatMul"), 0, 2, 0, 1),
    (node("MatMul"), 0, 3, 1, 2),
    (node("MatMul"), 1, 1, None, 0),
    (node("MatMul"), 1, 0, None, None),
    (node("Gather"), 0, 2, 0, 1),
    (node("Gather", axis=1), 0, 2, 1, 0),
    (node("Gather", axis=-1), 0, 3, 2, 1),
    (node("Gather", axis=1), 0, 3, 1, 2),
    *((node(op), i, 3, 1, 2) for op in ("LSTM", "GRU", "RNN") for i in (1, 2)),
    (node("LSTM"), 3, 2, 1, None),
    (node("QLinearConv"), 3, 4, 0, None),
    (node("QLinearConv", MS), 3, 4, 0, None),
    (node("ConvInteger"), 1, 4, 0, None),
    (node("QLinearMatMul"), 3, 3, 2, 1),
    (node("QLinearMatMul"), 0, 2, 0, 1),
    (node("QLinearMatMul"), 3, 1, None, 0),
    (node("MatMulInteger"), 1, 2, 1, 0),
    (node("MatMulInteger"), 0, 2, 0, 1),
    (node("QGemm", MS), 3, 2, 1, 0),
    (node("QGemm", MS, transB=1), 3, 2, 0, 1),
    (node("QGemm", MS, transA=1), 0, 2, 1, 0),
    (node("MatMulIntegerToFloat", MS), 1, 2, 1, 0),
    (node("DynamicQuantizeMatMul", MS), 1, 2, 1, 0),
    (node("DynamicQuantizeMatMul", MS), 0, 2, None, None),
    (node("MatMulNBits", MS), 1, 3, 0, None),
    (node("FusedMatMul", MS), 1, 2, 1, 0),
    (node("FusedMatMul", MS, transB=1), 1, 3, 1, 2),
    (node("FusedMatMul", MS), 0, 2, 0, 1),
    (node("FusedMatMul", MS, transA=1), 0, 2, 1, 0),
    (node("Attention", MS), 1, 2, 1, 0),
    (node("QAttention", MS), 1, 2, 1, 0),
    (node("Attention"), 1, 4, None, None),
    (node("Conv", MS), 1, 4, None, None),
    (node("Conv"), 1, 0, None, None),
    (node("Einsum", equation="bik, kj -> bij"), 1, 2, 1, 0),
    (node("Einsum", equation="bik,kj->bij"), 0, 3, None, None),
    (node("Einsum", equation="bik,jk"), 1, 2, 0, 1),
    (node("Einsum", equation="oi,bi->bo"), 0, 2, 0, 1),
    (node("Einsum", equation="bsd,dhk->bshk"), 1, 3, None, None),
    (node("Einsum", equation="bhd,hdk->bk"), 1, 3, 2, None),
    (node("Einsum", equation="...k,kj->...j"), 1, 2, None, None),
    (node("Einsum", equation="ii,ij->j"), 0, 2, None, None),
    (node("Einsum", equation="ij->ji"), 0, 2, None, None),
]


@pytest.mark.parametrize(
    ("op", "index", "dims", "channel", "contraction"), ROWS, ids=lambda v: getattr(v, "op_type", "")
)
def test_axes(
    op: ir.Node, index: int, dims: int | tuple[int, ...], channel: int | None, contraction: int | None
) -> None:
    shape = (3,) * dims if isinstance(dims, int) else dims
    assert ops.channel_axis(op, index, len(shape)) == channel
    assert ops.contraction_axis(op, index, shape) == contraction


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
def test_fused_matmul_against_numpy(trans: int, batch: int) -> None:
    """Lengths 2 (batch), 3 (summed) and 5 (columns), laid out as the operator text says."""
    matrix = np.zeros((2, 3, 5))
    if trans:
        matrix = matrix.swapaxes(1, 2)  # rows and columns change places
    if batch:
        matrix = matrix.transpose(1, 0, 2)  # the first of the two goes in front of the batch
    op = node("FusedMatMul", MS, transB=trans, transBatchB=batch)
    assert matrix.shape[ops.channel_axis(op, 1, 3) or 0] == 5
    assert matrix.shape[ops.contraction_axis(op, 1, matrix.shape) or 0] == 3


def test_tiles() -> None:
    assert ops.scale_tiles(node("ConvTranspose", group=4)) == 4
    assert ops.scale_tiles(node("ConvTranspose")) == ops.scale_tiles(node("Conv", group=4)) == 1


def test_biases() -> None:
    found = {op: ops.info(node(op, domain)) for domain, op in ops.OPS}
    biases = {op: row.bias for op, row in found.items() if row is not None and row.bias is not None}
    assert biases == {
        "Conv": 2, "ConvTranspose": 2, "Gemm": 2, "LSTM": 3, "GRU": 3, "RNN": 3, "QLinearConv": 8, "QGemm": 6,
        "MatMulIntegerToFloat": 6, "DynamicQuantizeMatMul": 4, "MatMulNBits": 5, "Attention": 2, "QAttention": 2,
    }  # fmt: skip


def test_input_channels() -> None:
    assert ops.input_channel_axis(node("Conv"), 0, 4) == 1 and ops.input_channel_axis(node("Conv"), 0, 1) is None
    assert ops.input_channel_axis(node("MatMul"), 0, 3) == 2 and ops.input_channel_axis(node("Tanh"), 0, 3) is None
    assert (
        ops.input_channel_axis(node("Gemm", transA=1), 0, 2) == 0 and ops.input_channel_axis(node("Gemm"), 0, 0) is None
    )
