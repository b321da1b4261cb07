"""Small float networks that quantizers are run on, with data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, load, numpy_helper, parser

from benchmarks.synthetic import conv_chain, transformer
from tests.defects.draft import Array

LENET = Path(__file__).parents[2] / "models" / "lenet" / "lenet.onnx"

TEXTS = {
    "residual": """
        <ir_version: 8, opset_import: ["": 17]>
        residual (float[N, 3, 12, 12] x) => (float[N, 5] y)
          <float[8, 3, 3, 3] w1, float[8] s1, float[8] b1, float[8] m1, float[8] v1, float[8, 1, 3, 3] w2, float[8] b2,
           float[8, 8, 1, 1] w3, float[8] b3, float[8, 4, 2, 2] w4, float[4] b4, float[5, 12] w5, float[5] b5>
        {
          c1 = Conv<pads = [1, 1, 1, 1]>(x, w1)
          n1 = BatchNormalization(c1, s1, b1, m1, v1)
          r1 = Relu(n1)
          c2 = Conv<pads = [1, 1, 1, 1], group = 8>(r1, w2, b2)
          k2 = Clip(c2, zero, six)
          c3 = Conv(k2, w3, b3)
          a = Add(c3, r1)
          r3 = Relu(a)
          p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r3)
          t = ConvTranspose<strides = [2, 2]>(p, w4, b4)
          g = Sigmoid(t)
          j = Concat<axis = 1>(r3, g)
          q = GlobalAveragePool(j)
          f = Flatten(q)
          y = Gemm<transB = 1>(f, w5, b5)
          zero = Constant<value = float {0.0}>()
          six = Constant<value = float {6.0}>()
        }""",
    "attention": """
        <ir_version: 8, opset_import: ["": 17]>
        attention (int64[2, T] ids) => (float[2, T, 40] y)
          <float[40, 16] table, float[16] g1, float[16] h1, float[16, 16] wq, float[16] bq, float[16, 16] wk,
           float[16, 16] wv, float[16, 16] wo, float[16] bo, float[16, 32] w1, float[32] b1, float[32, 16] w2,
           float[16] b2, float scale>
        {
          e = Gather(table, ids)
          n = LayerNormalization<axis = -1>(e, g1, h1)
          q0 = MatMul(n, wq)
          q = Add(q0, bq)
          k = MatMul(n, wk)
          v = MatMul(n, wv)
          kt = Transpose<perm = [0, 2, 1]>(k)
          s0 = MatMul(q, kt)
          s1 = Mul(s0, scale)
          s = Softmax<axis = -1>(s1)
          c = MatMul(s, v)
          o0 = MatMul(c, wo)
          o = Add(o0, bo)
          r = Add(o, e)
          f0 = MatMul(r, w1)
          f1 = Add(f0, b1)
          u = Erf(f1)
          w = Mul(f1, u)
          f2 = MatMul(w, w2)
          f3 = Add(f2, b2)
          r2 = Add(f3, r)
          tt = Transpose<perm = [1, 0]>(table)
          y = MatMul(r2, tt)
        }""",
    "branches": """
        <ir_version: 8, opset_import: ["": 17]>
        branches (float[4, 8] x, bool c) => (float[4, 6] y)
          <float[8, 8] w0, float[8] b0, float[8, 6] w1, float[8, 6] w2>
        {
          h0 = Gemm(x, w0, b0)
          h = Relu(h0)
          y = If(c) <then_branch = t () => (float[4, 6] ty) { ty = MatMul(h, w1) },
                     else_branch = e () => (float[4, 6] ey) { em = MatMul(h, w2) ey = Tanh(em) }>
        }""",
    "odd": """
        <ir_version: 8, opset_import: ["": 17]>
        odd (float[3, 7] x) => (float[3, 5] y) <float[7, 11] w1, float[11, 9] w2, float[9] b2, float[9, 5] w3>
        {
          a = MatMul(x, w1)
          b = Relu(a)
          c = MatMul(b, w2)
          d = Add(c, b2)
          e = LeakyRelu(d)
          y = MatMul(e, w3)
        }""",
}


@cache
def net(name: str) -> ModelProto:
    """A float model, with random weights and a name for each node."""
    if name == "lenet":
        return load(LENET)
    if name == "conv-chain":
        return conv_chain(16)
    if name == "transformer":
        return transformer(40)
    model = parser.parse_model(TEXTS[name])
    rng = np.random.default_rng(3)
    declared = list(model.graph.value_info)
    del model.graph.value_info[:]
    for info in declared:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        fan = int(np.prod(shape[1:])) or 1
        values = rng.normal(size=shape) / np.sqrt(fan)
        if info.name[0] in "gsv" and len(shape) == 1:
            values = 1 + np.abs(values) / 4  # gains and variances
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.float32), info.name))
    _name(list(model.graph.node))
    return model


def _name(nodes: list[object]) -> None:
    for one in nodes:
        one.name = f"{one.op_type}_{one.output[0]}"  # type: ignore[attr-defined]
        for attribute in one.attribute:  # type: ignore[attr-defined]
            _name(list(attribute.g.node))


def feeds(name: str, count: int = 4) -> list[dict[str, Array]]:
    """Calibration data."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(count):
        row = {}
        for info in net(name).graph.input:
            kind = info.type.tensor_type
            shape = [d.dim_value or 2 for d in kind.shape.dim]
            if kind.elem_type == TensorProto.FLOAT:
                row[info.name] = rng.normal(size=shape).astype(np.float32)
            elif kind.elem_type == TensorProto.BOOL:
                row[info.name] = rng.integers(0, 2, shape).astype(bool)
            else:
                row[info.name] = rng.integers(0, 40, shape)
        rows.append(row)
    return rows
