"""A speech detector whose weights all lie in If branches: each weight-bearing node is listed with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import api

RNG = np.random.default_rng(0)
BEARERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM")


def feeds(rate: int, samples: int) -> dict[str, Any]:
    audio = (RNG.standard_normal((1, samples)) * 0.1).astype(np.float32)
    return {"input": audio, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(rate)}


@pytest.mark.real
def test_everything_in_branches(
    real_model: Callable[[str], Path], quantized: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """Convolutions whose output range nobody can observe, and LSTM: nothing changes, and nothing is silent."""
    both = [feeds(16000, 576), feeds(8000, 288)]
    made = quantized(onnx.load(real_model("silero-vad")), feeds=both)
    nodes = made.plan["nodes"].values()
    assert Counter(e["code"] for e in nodes if e["op"] in BEARERS) == {"in-subgraph": 12, "no-integer-kernel": 4}
    assert all(e["reason"] for e in nodes) and "nothing-to-quantize" in made.codes()
    for given in both:
        for a, b in zip(run_model(made.float_proto, given), run_model(made.proto, given), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.real
def test_gemms_in_branches(
    real_model: Callable[[str], Path], quantized: Callable[..., Any], fused: Callable[..., Any], close: Any
) -> None:
    made = quantized(onnx.load(real_model("silero-vad-gemm")), feeds=[feeds(16000, 576)])
    found = Counter((e["op"], e["status"]) for e in made.plan["nodes"].values() if e["op"] in BEARERS)
    assert found == {("Conv", "float"): 12, ("Gemm", "dynamic"): 4}
    assert fused(made.proto).count("DynamicQuantizeMatMul") + fused(made.proto).count("MatMulIntegerToFloat") == 4
    close(made)


@pytest.mark.real
@pytest.mark.parametrize("recipe", ["w8", "w4-blocked"])
@pytest.mark.parametrize(
    ("name", "target", "layers"),
    [("silero-vad", "onnx", 16), ("silero-vad-gemm", "ort-cpu", 4), ("silero-vad-gemm", "onnx", 16)],
)
def test_weights_alone(
    name: str, target: str, layers: int, recipe: str, real_model: Callable[[str], Path], run_model: Callable[..., Any]
) -> None:
    """Gemms in branches whose weights lie outside, and LSTMs whose gates are sorted by Slices and Concats."""
    source = onnx.load(real_model(name))
    made = api.quantize(source, recipe=recipe, target=target)
    assert [e["status"] for e in made.plan["nodes"].values()].count("weight-only") == layers
    assert "constant-not-folded" not in {n.code for n in made.report.notes}
    assert made.model.ByteSize() < source.ByteSize()
    for given in [feeds(16000, 576)] if name == "silero-vad-gemm" else [feeds(16000, 576), feeds(8000, 288)]:
        wanted = np.concatenate([a.ravel() for a in run_model(source, given)])
        for true in (False, True):
            got = np.concatenate([a.ravel() for a in run_model(made.model, given, true=true)])
            cosine = wanted @ got / np.linalg.norm(wanted) / np.linalg.norm(got)
            assert cosine > (0.999 if recipe == "w8" else 0.9), (cosine, true)
