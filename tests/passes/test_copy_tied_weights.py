"""copy-tied-weights: a weight and a scale of its own for every weight-only product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxq.passes.copy_tied_weights import CopyTiedWeights

Run = Callable[..., Any]


def tied(body: str, second: str = "", kind: str = "int8") -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[2,32] x) => (float[2,32] y) {{
        d = DequantizeLinear<axis = 1>(w, s, z) {second} {body} }}"""
    proto, rng = parser.parse_model(text), np.random.default_rng(0)
    weight = onnx.helper.make_tensor(
        "w", onnx.TensorProto.DataType.Value(kind.upper()), (32, 32), rng.integers(-7, 7, 1024)
    )
    scales = {"s": rng.random(32).astype(np.float32) + np.float32(0.1)}
    scales["s2"] = scales["s"] * np.float32(2)
    proto.graph.initializer.append(weight)
    proto.graph.initializer.append(onnx.helper.make_tensor("z", weight.data_type, (32,), [0] * 32))
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in scales.items() if k in read)
    return proto


TWO = "a = MatMul(x, d) n = Neg(a) y = MatMul(n, {0})"


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("body", "second", "made"),
    [
        (TWO.format("d"), "", {"w_1", "s_1", "z_1"}),
        (TWO.format("e"), "e = DequantizeLinear<axis = 1>(w, s, z)", {"w_1", "s_1", "z_1"}),
        (TWO.format("e"), "e = DequantizeLinear<axis = 1>(w, s2, z)", {"w_1", "z_1"}),
        ("a = MatMul(x, d) n = Neg(a) y = Gemm(n, d)", "", {"w_1", "s_1", "z_1"}),
    ],
)
def test_each_product_has_its_own(
    kind: str, body: str, second: str, made: set[str], run_passes: Run, run_model: Run, fused: Run
) -> None:
    before = tied(body, second, kind)
    out = run_passes(before, CopyTiedWeights())
    assert set(out.initializers()) - {t.name for t in before.graph.initializer} == made
    assert fused(before).count("MatMulNBits") == 0 and fused(out.proto).count("MatMulNBits") == 2
    x = {"x": np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)}
    for settings in ({"true": True}, {"optimised": False}):
        np.testing.assert_array_equal(run_model(before, x, **settings)[0], run_model(out.proto, x, **settings)[0])
    (note,) = out.ctx.report.of("weight-copied")
    assert note.numbers["bytes"] >= 1024 // (2 if kind == "int4" else 1)


def test_an_embedding_keeps_what_is_there(run_passes: Run) -> None:
    body = "i = Constant<value_ints = [3, 4]>() g = Gather(d, i) a = MatMul(x, d) y = Add(a, g)"
    out = run_passes(tied(body), CopyTiedWeights())
    gather, product = out.node("Gather"), out.node("MatMul")
    assert gather.input[0] == "d" and product.input[1] == "d_1"


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, d)",
        "a = Add(x, x) y = MatMul(a, d)",
        "q = QuantizeLinear(x, t, u) r = DequantizeLinear(q, t, u) a = MatMul(r, d) b = MatMul(r, d) y = Add(a, b)",
        "a = Add(x, x) b = MatMul(d, d) y = MatMul(a, b)",
    ],
)
def test_what_stays(body: str, run_passes: Run) -> None:
    model = tied(body)
    if "QuantizeLinear" in body:
        model.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "t"))
        model.graph.initializer.append(numpy_helper.from_array(np.uint8(0), "u"))
    if "MatMul(d, d)" in body:
        assert len(run_passes(model, CopyTiedWeights()).ctx.report.of("weight-copied")) == 0
    else:
        assert not run_passes(model, CopyTiedWeights()).changed
