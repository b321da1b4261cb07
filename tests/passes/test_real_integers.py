"""Real INT8 files back to float: hidden weights, dynamic convolutions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq.passes.dequantize import Dequantize
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq


@pytest.mark.real
def test_hidden_weights(
    real_model: Callable[[str], Path], run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]
) -> None:
    """MiniLM: 36 weights with a scale a column, two tables with a scale a row; the same numbers to the last bit."""
    source = onnx.load(real_model("minilm-int8"))
    rng = np.random.default_rng(0)
    feeds = {"input_ids": rng.integers(1000, 30000, (2, 9)), "attention_mask": np.ones((2, 9), np.int64)}
    feeds["token_type_ids"] = np.zeros((2, 9), np.int64)
    wanted = run_model(source, feeds)[0]
    made = run_passes(source, QoperatorToQdq())
    assert made.ops().count("DequantizeLinear") == 38 and made.proto.ByteSize() < 1.01 * source.ByteSize()
    np.testing.assert_array_equal(run_model(made.proto, feeds, true=True)[0], wanted)
    floats = run_passes(source, Dequantize())
    assert "DequantizeLinear" not in floats.ops()
    np.testing.assert_array_equal(run_model(floats.proto, feeds)[0], wanted)


@pytest.mark.real
def test_dynamic_convolutions(
    real_model: Callable[[str], Path], run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]
) -> None:
    """The older ddddocr: 21 convolutions and a product; the LSTM that quantizes its own state stays."""
    source = onnx.load(real_model("ddddocr-old"))
    made = run_passes(source, Dequantize())
    integer = [op for op in made.ops() if "uantize" in op or "Integer" in op]
    assert integer == ["DynamicQuantizeLSTM"] and made.ops().count("Conv") == 21
    feeds = {"input1": np.random.default_rng(0).random((1, 1, 64, 160)).astype(np.float32)}
    a, b = (run_model(p, feeds)[0].ravel() for p in (source, made.proto))
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.999
