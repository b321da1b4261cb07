"""DynamicQuantizeMatMul against DynamicQuantizeLinear -> DequantizeLinear -> MatMul, both in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from tests.qoperators.graphs import agreement, draw, model, scales


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("inputs", ["x, b, sb", "x, b, sb, zb", "x, b, sb, , bias", "x, b, sb, zb, bias"])
def test_dynamic_quantize_matmul(
    run_passes: Callable[..., Any],
    run_model: Callable[..., Any],
    fused: Callable[..., Any],
    inputs: str,
    per_column: bool,
) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(2, 6, 32)).astype(np.float32)}
    constants = {"b": draw(rng, (32, 5), np.int8), "sb": scales(rng, 5 if per_column else None)}
    constants["zb"] = np.zeros(constants["sb"].shape, np.int8)
    constants["bias"] = np.arange(5, dtype=np.float32)
    before = model(f"y = com.microsoft.DynamicQuantizeMatMul({inputs})", feeds, constants, "float32", 3)
    made = agreement(run_passes, run_model)(before, feeds)
    assert made.ops().count("DynamicQuantizeLinear") == 1 and ("Add" in made.ops()) == ("bias" in inputs)
    assert "DynamicQuantizeMatMul" in fused(made.proto)


def test_the_same_input_is_quantized_once(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 32)).astype(np.float32)}
    constants = {"b": draw(rng, (32, 5), np.int8), "c": draw(rng, (32, 5), np.int8), "s": scales(rng, 5)}
    text = """p = com.microsoft.DynamicQuantizeMatMul(x, b, s) q = com.microsoft.DynamicQuantizeMatMul(x, c, s)
    y = Add(p, q)"""
    made = agreement(run_passes, run_model)(model(text, feeds, constants, "float32", 2), feeds)
    assert made.ops().count("DynamicQuantizeLinear") == 1 and made.ops().count("DequantizeLinear") == 3


def test_below_opset_11_it_stays(run_passes: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 32)).astype(np.float32)}
    constants = {"b": draw(rng, (32, 5), np.int8), "s": scales(rng, None)}
    text = "y = com.microsoft.DynamicQuantizeMatMul(x, b, s)"
    made = run_passes(model(text, feeds, constants, "float32", 2, opset=10), QoperatorToQdq())
    assert made.ops() == ["DynamicQuantizeMatMul"] and made.codes() == ["not-raised"] and not made.changed
