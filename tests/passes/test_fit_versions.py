"""fit-versions: the lowest opset and IR version that have what the model uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnxq.opsets.needed import first_with
from onnxq.passes.fit_versions import FitVersions

Run = Callable[..., Any]


def pair(kind: str = "uint8", opset: int = 13, *, q: str = "", dq: str = "", version: int = 8) -> str:
    return f"""<ir_version: {version}, opset_import: ["" : {opset}]> g (float[2,4] x) => (float[2,4] y)
        <float s = {{0.1}}, {kind} z = {{0}}> {{
        a = QuantizeLinear{q}(x, s, z) y = DequantizeLinear{dq}(a, s, z) }}"""


@pytest.mark.parametrize(
    ("text", "opset", "version"),
    [
        (pair("uint8", 10, q="<axis = 1>"), 13, 8),
        (pair("int16", 13), 21, 10),
        (pair("uint8", 19, q="<output_dtype = 2>", version=9), 21, 10),
        (pair("uint8", 21, dq="<output_dtype = 1>", version=10), 23, 11),
        (pair("uint8", 13, q="<saturate = 1>"), 19, 9),
        (pair("int4", 21, version=9), 21, 10),
    ],
)
def test_versions_rise_to_what_is_needed(text: str, opset: int, version: int, run_passes: Run) -> None:
    out = run_passes(text, FitVersions())
    assert (out.proto.opset_import[0].version, out.proto.ir_version) == (opset, version)
    onnx.checker.check_model(out.proto, full_check=True)


@pytest.mark.parametrize("text", [pair("uint8", 13), pair("int16", 21, version=10), pair("uint8", 25, version=13)])
def test_what_is_new_enough_stays(text: str, run_passes: Run) -> None:
    assert not run_passes(text, FitVersions()).changed


def test_other_operators_count(run_passes: Run) -> None:
    text = """<ir_version: 10, opset_import: ["" : 19]> g (float[2,4] x) => (float[2,4] y)
        <float s = {0.1}, int4 z = {0}, int4[4,2] w = {1,2,3,4,5,6,7,0}> {
        t = Transpose<perm = [1,0]>(w) d = DequantizeLinear(t, s, z) y = Add(x, d) }"""
    out = run_passes(text, FitVersions())
    assert out.proto.opset_import[0].version == 21
    assert first_with("Transpose", 13, "inputs", 0, ir.DataType.INT4) == 21
    assert first_with("Gather", 13, "inputs", 0, ir.DataType.INT4) == 0, "no opset has it"
