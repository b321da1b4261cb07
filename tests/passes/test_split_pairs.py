"""split-pairs: one pair a reader, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

from onnxq.passes.split_pairs import SplitPairs
from onnxq.passes.validate_qdq import ValidateQdq

Run = Callable[..., Any]
PARAMETERS = "<float s = {0.1}, int8 z = {5}, float[2,2] w = {1, 2, 3, 4}>"


def graph(body: str, opset: int = 21) -> str:
    head = f'<ir_version: 10, opset_import: ["" : {opset}]> g (float[2,2] x) => (float[2,2] y)'
    return f"{head} {PARAMETERS} {{ {body} }}"


@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        ("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Relu(d) b = Neg(d) y = Add(a, b)", 2),
        ("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Mul(d, d) y = Add(a, d)", 2),
        (
            "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, s, z)"
            " a = Relu(d) b = Neg(d) c = Abs(e) t = Add(a, b) y = Add(t, c)",
            3,
        ),
        (
            "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) a = Neg(y) b = Relu(a)",
            2,
        ),
    ],
)
def test_each_reader_gets_a_pair(body: str, pairs: int, run_passes: Run, same_numbers: Run) -> None:
    out = run_passes(graph(body), SplitPairs(), ValidateQdq())
    assert out.ops().count("QuantizeLinear") == out.ops().count("DequantizeLinear") == pairs
    assert out.codes() == ["pair-split"]
    same_numbers(graph(body), out.proto)


@pytest.mark.parametrize(
    "body",
    [
        "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)",
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Mul(d, d)",
        "q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) a = Add(x, d) y = Mul(a, d)",  # a weight
    ],
)
def test_what_stays(body: str, run_passes: Run) -> None:
    assert not run_passes(graph(body), SplitPairs()).changed


def test_readers_in_bodies(run_passes: Run, run_model: Run) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[2,2] x, bool c) => (float[2,2] y) {PARAMETERS} {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        r = Relu(d)
        t = If (c) <then_branch = a () => (float[2,2] u) {{ u = Neg(d) }},
                    else_branch = b () => (float[2,2] v) {{ e = DequantizeLinear(q, s, z) v = Abs(e) }}>
        y = Add(r, t) }}"""
    out = run_passes(text, SplitPairs(), ValidateQdq())
    assert out.ops().count("QuantizeLinear") == 3
    for choice in (True, False):
        feeds = {"x": np.array([[1, -2], [3, -4]], np.float32), "c": np.array(choice)}
        for optimised in (True, False):
            wanted = run_model(parser.parse_model(text), feeds, optimised=False)
            np.testing.assert_array_equal(run_model(out.proto, feeds, optimised=optimised)[0], wanted[0])


def test_int8_convolutions_run_on_integers_again(run_passes: Run, fused: Run) -> None:
    """onnxruntime turns int8 pairs into uint8 where a pair has one reader, and fuses only then (measured with 1.32).

    The Conv whose output is read twice keeps two QuantizeLinear behind it, and stays float.
    """
    pair = "{1} = QuantizeLinear({0}, s, z) {2} = DequantizeLinear({1}, s, z) "
    body = pair.format("x", "xq", "xd") + "a = Conv<pads = [1,1,1,1]>(xd, wd) " + pair.format("a", "aq", "ad")
    body += "b = Conv<pads = [1,1,1,1]>(ad, wd2) " + pair.format("b", "bq", "bd")
    body += "c = Add(ad, bd) " + pair.format("c", "cq", "y")
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,8,4,4] x) => (float[1,8,4,4] y)
        <float s = {{0.1}}, int8 z = {{5}}, int8 wz = {{0}}> {{
            wd = DequantizeLinear(w, s, wz) wd2 = DequantizeLinear(w, s, wz) {body} }}"""
    proto = parser.parse_model(text)
    weight = np.random.default_rng(0).integers(-9, 9, (8, 8, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    out = run_passes(proto, SplitPairs(), ValidateQdq())
    assert (fused(proto).count("QLinearConv"), fused(out.proto).count("QLinearConv")) == (0, 1)
