"""What counts as a parameter."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.trainable.parameters import parameters


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("y = Conv(x, w, b)", ["w", "b"]),
        ("p = Conv(x, w) y = Add(p, b)", ["w", "b"]),
        ("p = Conv(x, w) s = Add(b, p) y = Add(s, c)", ["w", "b"]),
        ("p = Conv(x, w) y = Mul(p, b)", ["w"]),
        ("p = MatMul(x, w) y = Add(p, b)", ["w", "b"]),
        ("r = Relu(x) y = Add(r, b)", []),
        ("q = QuantizeLinear(b, k, z) d = DequantizeLinear(q, k, z) y = Add(x, d)", ["b"]),
        ("y = BatchNormalization(x, b, c, c, c)", ["b", "c"]),
        ("y = PRelu(x, b)", ["b"]),
    ],
)
def test_names(body: str, names: list[str]) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,2,2,2] x) => (float[1,2,2,2] y)
    <float[2,2,1,1] w = {{1,2,3,4}}, float[2,1,1] b = {{1,2}}, float[2,1,1] c = {{1,2}}, float k = {{1}},
     int8 z = {{0}}>
    {{ {body} }}"""
    assert parameters(ir.from_proto(parser.parse_model(text))) == names
