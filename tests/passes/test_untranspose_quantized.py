"""`untranspose-gemm` with `quantized-only`: float weights keep their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import numpy_helper, parser

from onnxq.passes.untranspose_gemm import UntransposeGemm


def test_float_weights_stay(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    source = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[2,6] x) => (float[2,4] y, float[2,3] z) {
        d = DequantizeLinear<axis=0>(q, s) y = Gemm<transB=1>(x, d) z = Gemm<transB=1>(x, w) }"""
    )
    constants = {"q": rng.integers(-9, 9, (4, 6)).astype(np.int8), "s": np.arange(1, 5, dtype=np.float32)}
    for name, array in {**constants, "w": rng.standard_normal((3, 6)).astype(np.float32)}.items():
        source.graph.initializer.append(numpy_helper.from_array(array, name))
    made = run_passes(source, UntransposeGemm(when="always", quantized_only=True))
    found = made.initializers()
    np.testing.assert_array_equal(found["q"], constants["q"].T)
    assert found["w"].shape == (3, 6)
    feeds = {"x": rng.standard_normal((2, 6)).astype(np.float32)}
    for wanted, got in zip(*(run_model(p, feeds, true=True) for p in (source, made.proto)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
