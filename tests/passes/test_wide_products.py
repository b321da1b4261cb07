"""Products with 16-bit activations: onnxruntime must not round these to 8 bits on its own (MatMulNBits)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnxq.passbase import Context, run_step
from onnxq.passes.thaw import Thaw
from onnxq.passes.validate_qdq import ValidateQdq

NETS = {
    "MatMul": "m = MatMul(x, w) y = Add(m, b)",
    "Gemm": "y = Gemm(x, w, b)",
    "MatMul alone": "y = MatMul(x, w)",
}


def make(quantized: Callable[..., Any], net: str, **options: Any) -> Any:
    rng = np.random.default_rng(0)
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[8,64] x) => (float[a,c] y) {{ {NETS[net]} }}'
    constants = {"w": rng.standard_normal((64, 16)), "b": rng.standard_normal(16)}
    if "b" not in NETS[net].split("(")[-1]:
        del constants["b"]
    return quantized(text, {k: v.astype(np.float32) for k, v in constants.items()}, dynamic="never", **options)


def axis_of_weight(proto: onnx.ModelProto) -> int:
    (dq,) = [n for n in proto.graph.node if n.op_type == "DequantizeLinear" and "w_quantized" in n.input[0]]
    return next(int(helper.get_attribute_value(a)) for a in dq.attribute if a.name == "axis")


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("weights", ["int8", "int4", "uint8"])
def test_both_sessions_agree(
    net: str, weights: str, quantized: Callable[..., Any], fused: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """Not fused, though the weights are of a type that MatMulNBits takes; the same numbers on both sessions."""
    made = make(quantized, net, activations="uint16", weights=weights)
    assert axis_of_weight(made.proto) == -1
    assert "MatMulNBits" not in fused(made.proto)
    (default,), (true,) = (run_model(made.proto, made.feeds[0], true=true) for true in (False, True))
    assert np.abs(default - true).max() <= 1e-5 * np.abs(true).max()


def test_a_positive_axis_would_be_fused(quantized: Callable[..., Any], fused: Callable[..., Any]) -> None:
    """The measurement behind the rule; also what other targets write."""
    made = make(quantized, "MatMul", activations="uint16", target="onnx")
    assert axis_of_weight(made.proto) == 1
    assert "MatMulNBits" in fused(made.proto)


def test_eight_bits_keep_their_axis(quantized: Callable[..., Any]) -> None:
    assert axis_of_weight(make(quantized, "MatMul").proto) == 1


def test_weights_can_be_thawed(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    made = make(quantized, "Gemm", activations="uint16")
    model = ir.from_proto(made.proto)
    run_step(Thaw(form="fake-quant"), model, Context())
    run_step(ValidateQdq(), model, Context())
    made.proto = ir.to_proto(model)
    onnx.checker.check_model(made.proto, full_check=True)
    close(made)
