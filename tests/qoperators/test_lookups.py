"""GatherBlockQuantized within qoperator-to-qdq: Gather -> DequantizeLinear, each table stored once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxq.passes.dequantize import Dequantize
from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (int64[2] i, int64[3] j) => (float[2,64] y'


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_tables(bits: int, zeros: bool, run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """Two look-ups in one table read the same integers; dequantized, the same floats."""
    rng = np.random.default_rng(0)
    options = f"<bits={bits}, block_size=32, gather_axis=0, quantize_axis=1>"
    names = "t, {}, s, z" if zeros else "t, {}, s"
    first, second = (f"com.microsoft.GatherBlockQuantized{options}({names.format(k)})" for k in "ij")
    before = onnx.parser.parse_model(f"{HEAD}, float[3,64] v) {{ y = {first} v = {second} }}")
    constants = {"t": rng.integers(0, 256, (10, 64 * bits // 8)).astype(np.uint8)}
    constants["s"] = rng.random((10, 2)).astype(np.float32)
    if zeros:
        constants["z"] = rng.integers(0, 256, (10, 2 * bits // 8)).astype(np.uint8)
    for name, array in constants.items():
        before.graph.initializer.append(numpy_helper.from_array(array, name))
    feeds = {"i": np.array([3, 9]), "j": np.array([0, 3, 3])}
    wanted = run_model(before, feeds)
    made = run_passes(before, QoperatorToQdq())
    assert made.ops().count("DequantizeLinear") == 2 and len(made.proto.graph.initializer) == 3
    floats = run_passes(before, Dequantize())
    assert floats.ops() == ["Gather", "Gather"] and len(floats.proto.graph.initializer) == 1
    for proto in (made.proto, floats.proto):
        for a, b in zip(wanted, run_model(proto, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


def test_stays(run_passes: Callable[..., Any]) -> None:
    node = "y = com.microsoft.GatherBlockQuantized<bits=4, block_size=32>(t, i, s)"
    text = HEAD + f") <uint8[2,32] t, float[2,2] s> {{ {node} }}"
    text = text.replace("<uint8[2,32] t, float[2,2] s>", "").replace("int64[3] j", "uint8[2,32] t, float[2,2] s")
    made = run_passes(text, QoperatorToQdq())
    assert "table, scales or zero points are computed" in made.ctx.report.of("not-raised")[0].message
    assert not made.changed
