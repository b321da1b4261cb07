"""OQ301–OQ307: the axis of scales, and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from onnxq.diagnostics import Severity
from tests.rules.lab import build, find, in_branch, numbers, places

F, S8 = np.float32, np.int8


def weight(*dims: int, scales: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": rng.integers(-127, 128, dims).astype(S8), "s": np.linspace(0.01, 0.02, scales, dtype="f")}


@pytest.mark.parametrize(
    ("dims", "axis", "fires", "fix"),
    [
        ((3,), "", True, "set-axis"), ((3,), "<axis=0>", False, ""), ((3,), "<axis=-2>", True, "set-axis"),
        ((3, 2), "<axis=2>", True, "set-axis"), ((3, 2), "<axis=-3>", True, "set-axis"),
        ((3, 2), "<axis=-2>", False, ""),
        ((3, 3), "<axis=2>", True, ""), ((2, 2), "<axis=7>", True, ""),
    ],
)  # fmt: skip
def test_outside(dims: tuple[int, ...], axis: str, fires: bool, fix: str) -> None:
    found = find(build(f"y = DequantizeLinear{axis}(w, s)", weight(*dims, scales=3)), "OQ301")
    assert [(d.place.node, d.fix) for d in found] == ([("y", fix)] if fires else [])
    if fires:
        number = int(axis[6:-1]) if axis else 1
        assert found[0].numbers == {"axis": number, "rank": len(dims), "scales": 3}
        assert ("default" in found[0].message) is (not axis)


def test_a_bias_is_another_rule() -> None:
    data = {"w": np.ones(3, np.int32), "s": np.ones(3, "f")}
    assert not find(build("y = DequantizeLinear(w, s)", data), "OQ301")


def test_length() -> None:
    model = build("y = DequantizeLinear<axis=1>(w, s)", weight(4, 6, scales=4))
    (found,) = find(model, "OQ302")
    assert found.numbers == {"scales": 4, "axis": 1, "length": 6} and found.fix == "set-axis"
    assert "[4, 6]" in found.message
    assert not find(build("y = DequantizeLinear<axis=0>(w, s)", weight(4, 6, scales=4)), "OQ302")
    assert find(build("y = DequantizeLinear<axis=1>(w, s)", weight(4, 6, scales=5)), "OQ302")[0].fix == ""
    one = build("y = DequantizeLinear<axis=1>(w, s)", weight(4, 6, scales=1))
    assert not find(one, "OQ302"), "a single scale is one for all"
    unknown = build("q = QuantizeLinear<axis=0>(x, s) y = DequantizeLinear<axis=0>(q, s)",
                    {"s": np.ones(3, "f")}, x="float[n,2] x")  # fmt: skip
    assert not find(unknown, "OQ302")


@pytest.mark.parametrize(
    ("op", "dims", "right"),
    [
        ("Conv(x, d)", (4, 4, 1, 1), 0), ("ConvTranspose(x, d)", (4, 4, 1, 1), 1), ("MatMul(x, d)", (6, 6), 1),
        ("MatMul(x, d)", (4, 6, 6), 2), ("Gemm(m, d)", (6, 6), 1), ("Gemm<transB=1>(m, d)", (6, 6), 0),
    ],
)  # fmt: skip
def test_output_channels(op: str, dims: tuple[int, ...], right: int) -> None:
    """Square weights: the lengths say nothing."""
    for axis in range(-len(dims), len(dims)):
        if dims[axis] != dims[right]:
            continue
        data = weight(*dims, scales=dims[right])
        model = build(f"d = DequantizeLinear<axis={axis}>(w, s) y = {op}", data, x="float[1,4,6,6] x, float[6,6] m")
        found = find(model, "OQ303")
        assert [d.place.node for d in found] == ([] if axis % len(dims) == right else ["d"])
        if found:
            assert found[0].numbers == {"axis": axis % len(dims), "channels": right}


def test_behind_a_transpose_and_as_a_pair() -> None:
    data = weight(6, 6, scales=6)
    turned = "d = DequantizeLinear<axis={}>(w, s) t = Transpose(d) y = MatMul(x, t)"
    assert places(build(turned.format(1), data), "OQ303") == ["d"]
    assert not find(build(turned.format(0), data), "OQ303")
    fake = "q = QuantizeLinear<axis=0>(w, s) d = DequantizeLinear<axis=0>(q, s) y = MatMul(x, d)"
    assert places(build(fake, {**data, "w": np.ones((6, 6), "f")}), "OQ303") == ["d"]


def test_what_has_no_output_channels() -> None:
    data = weight(6, 6, scales=6)
    for reader in ("y = Gather(d, i)", "y = Add(x, d)", "e = Exp(d) y = MatMul(x, e)"):
        assert not find(build(f"d = DequantizeLinear<axis=0>(w, s) {reader}", {**data, "i": np.array([0])}), "OQ303")
    activations = "q = QuantizeLinear<axis=2>(x, s) d = DequantizeLinear<axis=2>(q, s) y = MatMul(d, m)"
    assert not find(build(activations, {"s": data["s"], "m": np.ones((6, 2), "f")}), "OQ303")


def test_the_harm_of_a_wrong_axis() -> None:
    """onnxruntime takes a square weight's scales along the output channels, whatever the axis says."""
    data = weight(16, 16, scales=16) | {
        "a": F(0.02),
        "b": F(0.2),
        "z": np.uint8(128),
        "n": np.zeros(16, S8),
        "s": np.geomspace(0.001, 0.1, 16, dtype="f"),
    }
    body = """q = QuantizeLinear(x, a, z) e = DequantizeLinear(q, a, z) d = DequantizeLinear<axis=1>(w, s, n)
      g = Gemm<transB=1>(e, d) o = QuantizeLinear(g, b, z) y = DequantizeLinear(o, b, z)"""
    model = build(body, data, x="float[4,16] x", y="float[4,16] y")
    assert places(model, "OQ303") == ["d"]
    x = np.random.default_rng(1).normal(size=(4, 16)).astype("f")
    fused = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    true = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (a,), (b,) = fused.run(None, {"x": x}), true.run(None, {"x": x})
    assert np.abs(a - b).max() > 0.5 * np.abs(b).max()


def test_activations() -> None:
    pair = "q = QuantizeLinear<axis=1>(x, s) d = DequantizeLinear<axis=1>(q, s) y = {}"
    data = {"s": np.linspace(0.01, 0.02, 4, dtype="f"), "w": np.ones((4, 4, 1, 1), "f")}
    model = build(pair.format("Conv(d, w)"), data)
    assert places(model, "OQ304") == ["q"] and numbers(model, "OQ304") == {"scales": 4}
    assert places(build(in_branch(pair.format("Relu(d)").replace("y =", "p ="), "p"), data), "OQ304") == ["q"]
    stored = build("q = QuantizeLinear<axis=0>(w, s) d = DequantizeLinear<axis=0>(q, s) y = Conv(x, d)", data)
    assert not find(stored, "OQ304")
    computed = build("m = Mul(w, k) q = QuantizeLinear<axis=0>(m, s) d = DequantizeLinear<axis=0>(q, s) y = Conv(x, d)",
                     data, x="float[1,4,6,6] x, float k")  # fmt: skip
    assert not find(computed, "OQ304"), "a weight may be computed, too"
    assert not find(build(pair.format("Conv(d, w)"), {**data, "s": np.ones(1, "f")}), "OQ304")


@pytest.mark.parametrize(
    ("block", "scale", "fires"),
    [
        (2, (3, 4), False), (3, (2, 4), False), (4, (2, 4), False), (6, (1, 4), False), (9, (1, 4), False),
        (2, (2, 4), True), (4, (3, 4), True), (2, (3, 3), True), (2, (3,), True), (2, (), True), (-2, (3, 4), True),
    ],
)  # fmt: skip
def test_blocks(block: int, scale: tuple[int, ...], fires: bool) -> None:
    data = {"w": np.ones((6, 4), S8), "s": np.ones(scale, "f")}
    model = build(f"y = DequantizeLinear<axis=0, block_size={block}>(w, s)", data)
    found = find(model, "OQ305")
    assert [d.numbers for d in found] == ([{"block_size": block}] if fires else [])


def test_blocks_outside_and_none() -> None:
    data = {"w": np.ones((6, 4), S8), "s": np.ones((3, 4), "f")}
    assert places(build("y = DequantizeLinear<axis=2, block_size=2>(w, s)", data), "OQ305") == ["y"]
    assert not find(build("y = DequantizeLinear<axis=0, block_size=0>(w, s)", {**data, "s": F(1)}), "OQ305")


@pytest.mark.parametrize(
    ("node", "opset", "needs"),
    [
        ("QuantizeLinear<axis=1>", 12, 13), ("DequantizeLinear<axis=1>", 13, 0), ("QuantizeLinear<saturate=1>", 18, 19),
        ("DequantizeLinear<block_size=2>", 20, 21), ("QuantizeLinear<output_dtype=2>", 20, 21),
        ("QuantizeLinear<output_dtype=2>", 21, 0), ("DequantizeLinear<output_dtype=1>", 21, 23),
        ("QuantizeLinear<precision=1>", 22, 23), ("QuantizeLinear<precision=1>", 23, 0),
    ],
)  # fmt: skip
def test_attributes(node: str, opset: int, needs: int) -> None:
    text = f"y = {node}(x, s)"
    kind = "float" if node.startswith("Q") else "uint8"
    found = find(build(text, {"s": F(1)}, opset=opset, x=f"{kind}[2,2] x"), "OQ306")
    assert [d.numbers for d in found] == ([{"opset": opset, "needs": needs}] if needs else [])


def test_implicit_axis() -> None:
    model = build("y = DequantizeLinear(w, s)", weight(2, 3, scales=3))
    (found,) = find(model, "OQ307")
    assert (found.place.node, found.severity, found.fix) == ("y", Severity.INFO, "set-axis")
    assert not find(build("y = DequantizeLinear<axis=1>(w, s)", weight(2, 3, scales=3)), "OQ307")
    assert not find(build("y = DequantizeLinear(w, s)", weight(2, 3, scales=1)), "OQ307")
    assert not find(build("y = DequantizeLinear(w, s)", weight(3, scales=3)), "OQ307"), "rank 1 is OQ301"
