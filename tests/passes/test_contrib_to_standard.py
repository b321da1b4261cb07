"""contrib-to-standard: the same pair in ONNX's own domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onnxq.passes.contrib_to_standard import ContribToStandard

Run = Callable[..., Any]


def graph(kind: str = "uint8", opset: int = 17, rest: str = "", given: str = "") -> str:
    rest = rest or "v = DequantizeLinear<axis = 1>(r, t, u) y = Add(d, v)"
    return f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> g (float[2,3] x) => (float[2,3] y)
        <float s = {{0.1}}, {kind} z = {{3}}, float[3] t = {{0.1, 0.2, 0.3}}, int8[3] u = {{0, 0, 0}}> {{
        q = com.microsoft.QuantizeLinear(x, s, z) d = com.microsoft.DequantizeLinear(q, s, z)
        r = com.microsoft.QuantizeLinear{given}(x, t, u) {rest} }}"""


def test_pairs_become_standard(run_passes: Run, same_numbers: Run) -> None:
    text = graph(given="<axis = -1>")
    out = run_passes(text, ContribToStandard())
    assert {n.domain for n in out.proto.graph.node} == {""}
    assert [e.domain for e in out.proto.opset_import] == [""] and out.codes() == ["contrib-standardized"]
    assert [a.i for a in out.proto.graph.node[2].attribute] == [1], "counted from the front"
    same_numbers(text, out.proto)


@pytest.mark.parametrize("opset", [17, 21])
def test_an_opset_without_the_type_keeps_them(opset: int, run_passes: Run) -> None:
    """16 bits came with opset 21."""
    text = graph("int16", opset, "v = DequantizeLinear<axis = 1>(r, t, u) y = Add(d, v)", "<axis = 1>")
    out = run_passes(text, ContribToStandard())
    left = [n for n in out.proto.graph.node if n.domain]
    assert len(left) == (2 if opset == 17 else 0)
    assert ("contrib-kept" in out.codes()) is (opset == 17)


def test_the_import_stays_for_others(run_passes: Run) -> None:
    text = graph(
        given="<axis = 1>", rest="v = DequantizeLinear<axis = 1>(r, t, u) b = Add(d, v) y = com.microsoft.Gelu(b)"
    )
    out = run_passes(text, ContribToStandard())
    assert {e.domain for e in out.proto.opset_import} == {"", "com.microsoft"}
