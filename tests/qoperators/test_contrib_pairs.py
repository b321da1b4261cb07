"""onnxruntime's own pairs as standard ones; MatMulNBits within qoperator-to-qdq."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

TEXT = """<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> g (float[2,3,4] x) => (float[2,3,4] y)
  <float s = {{0.5}}, float[1] s1 = {{0.5}}, {kind} z = {{3}}, {kind}[1] z1 = {{3}}, float[3] t = {{0.5,0.25,1}},
   {kind}[3] tz = {{1,2,3}}, float[4] u = {{0.5,0.25,1,2}}, {kind}[4] uz = {{1,2,3,4}}> {{
  q = com.microsoft.QuantizeLinear{pair}
  y = com.microsoft.DequantizeLinear{other} }}"""

FOUND = [
    ("uint8", 13, "(x, s, z)", []),
    ("int8", 10, "(x, s, z)", []),
    ("uint8", 13, "<axis=1>(x, t, tz)", [1]),
    ("uint8", 13, "<axis=-1>(x, u, uz)", [2]),
    ("uint8", 13, "(x, s1, z1)", []),
    ("int16", 21, "(x, s, z)", []),
    ("uint16", 21, "<axis=1>(x, t, tz)", [1]),
]


def text(kind: str, opset: int, pair: str) -> str:
    return TEXT.format(kind=kind, opset=opset, pair=pair, other=pair.replace("(x", "(q"))


@pytest.mark.parametrize(("kind", "opset", "pair", "axis"), FOUND)
def test_pairs(
    kind: str,
    opset: int,
    pair: str,
    axis: list[int],
    run_passes: Callable[..., Any],
    run_model: Callable[..., list[Any]],
) -> None:
    before = onnx.parser.parse_model(text(kind, opset, pair))
    made = run_passes(before, QoperatorToQdq())
    onnx.checker.check_model(made.proto, full_check=True)
    for node in made.proto.graph.node:
        assert node.domain == "" and [a.i for a in node.attribute] == axis
    assert [i.domain for i in made.proto.opset_import] == [""]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32) * 9}
    a, b = (run_model(p, feeds, true=True)[0] for p in (before, made.proto))
    np.testing.assert_array_equal(a, b)


STAYS = [("int16", 20, "(x, s, z)", "opset 20 has no"), ("uint8", 12, "<axis=1>(x, t, tz)", "opset 12 has no")]


@pytest.mark.parametrize(("kind", "opset", "pair", "why"), STAYS)
def test_stays(kind: str, opset: int, pair: str, why: str, run_passes: Callable[..., Any]) -> None:
    """Where the opset has no such pair; the note names it."""
    made = run_passes(text(kind, opset, pair), QoperatorToQdq())
    first, second = made.ctx.report.of("not-raised")
    assert why in first.message and why in second.message and not made.changed


@pytest.mark.parametrize("opset", [17, 21])
def test_matmul_nbits(opset: int, run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """One mechanism with from-matmulnbits; here an opset without blocks is a note, not an error."""
    rng = np.random.default_rng(0)
    before = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> g (float[2,64] x) => (float[2,6] y) '
        "{ y = com.microsoft.MatMulNBits<K=64, N=6, bits=4, block_size=32, accuracy_level=4>(x, b, s) }"
    )
    constants = {"b": rng.integers(0, 256, (6, 2, 16)).astype(np.uint8), "s": rng.random((6, 2)).astype(np.float32)}
    for name, array in constants.items():
        before.graph.initializer.append(numpy_helper.from_array(array, name))
    made = run_passes(before, QoperatorToQdq())
    if opset < 21:
        (note,) = made.ctx.report.of("not-raised")
        assert "need opset 21, the model has 17: run upgrade-opset (to: 21) first" in note.message and not made.changed
        return
    assert made.ops() == ["DequantizeLinear", "MatMul"] and made.codes() == ["accuracy-level-dropped", "raised"]
    feeds = {"x": rng.standard_normal((2, 64)).astype(np.float32)}
    np.testing.assert_array_equal(*(run_model(p, feeds)[0] for p in (before, made.proto)))


def test_matmul_nbits_in_a_function(run_passes: Callable[..., Any]) -> None:
    made = run_passes(
        """<ir_version: 10, opset_import: ["" : 21, "l" : 1]> g (float[m,32] x) => (float[m,n] y) { y = l.F(x) }
    <domain: "l", opset_import: ["" : 21, "com.microsoft" : 1]> F (x) => (y) {
      b = Constant<value = uint8[1,1,16] {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>()
      s = Constant<value = float[1,1] {0.5}>()
      y = com.microsoft.MatMulNBits<K=32, N=1, bits=4, block_size=32>(x, b, s) }""",
        QoperatorToQdq(),
    )
    assert "run inline-functions first" in made.ctx.report.of("not-raised")[0].message and not made.changed
