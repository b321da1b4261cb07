"""Weights that onnxruntime does not load, stops at, or rounds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.rules.graphs import array, found, gap, loads, model, places

pytestmark = pytest.mark.skipif(not ort.__version__.startswith("1.32."), reason="measured with onnxruntime 1.32")
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
OUT = " p = QuantizeLinear(m, s2, z) y = DequantizeLinear(p, s2, z)"
IMAGE = {"inputs": "float[1, 4, 4, 4] x", "outputs": "float[A, B, C, D] y"}


def net(body: str, inputs: str = "float[4, 16] x", outputs: str = "float[A, B] y", **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => ({outputs}) {{ {body} }}", **more)


def two_bits(*shape: int, kind: Any = ml_dtypes.int2) -> Any:
    return array(*shape, low=0, high=2).astype(kind)


TINY = {"opset": 25, "ws": np.float32(0.1), "wz": np.zeros((), ml_dtypes.int2)}


@pytest.mark.parametrize(
    ("body", "more", "fails"),
    [
        ("w = DequantizeLinear(wq, ws, wz) m = MatMul(d, w)" + OUT, {"wq": two_bits(16, 8)}, True),
        ("w = DequantizeLinear<axis = 1>(wq, ws) m = MatMul(d, w)" + OUT,
         {"wq": two_bits(16, 8), "ws": np.full(8, 0.1, np.float32)}, True),
        ("w = DequantizeLinear(wq, ws, wz) m = Gemm(d, w)" + OUT, {"wq": two_bits(16, 8)}, True),
        ("w = DequantizeLinear(wq, ws) m = Gemm(d, w)" + OUT, {"wq": two_bits(16, 8)}, False),
        ("w = DequantizeLinear(wq, ws, wz) m = Conv(d, w)" + OUT, {"wq": two_bits(4, 4, 1, 1), **IMAGE}, True),
        ("w = DequantizeLinear(wq, ws) c = Conv(d, w) m = Relu(c)" + OUT.replace("z)", "z0)"),
         {"wq": two_bits(4, 4, 1, 1), **IMAGE}, True),
        ("w = DequantizeLinear(wq, ws, wz) y = Conv(d, w)", {"wq": two_bits(4, 4, 1, 1), **IMAGE}, False),
        ("w = DequantizeLinear(wq, ws, wz) y = MatMul(d, w)", {"wq": two_bits(16, 8)}, False),
        ("w = DequantizeLinear<axis = 0, block_size = 16>(wq, ws) m = MatMul(d, w)" + OUT,
         {"wq": two_bits(16, 8), "ws": np.full((1, 8), 0.1, np.float32)}, False),
        ("w = DequantizeLinear(wq, ws) m = MatMul(d, w)" + OUT, {"wq": two_bits(16, 8, kind=ml_dtypes.int4)}, False),
    ],
)  # fmt: skip
def test_two_bits_and_eight(body: str, more: dict[str, Any], fails: bool) -> None:
    proto = net(PAIR + body, **{**TINY, **more})
    assert places(proto, "OQ614") == (["w"] if fails else [])
    assert loads(proto) is not fails


BATCH = {"inputs": "float[2, 4, 16] x", "outputs": "float[A, B, C] y", "wq": array(2, 16, 8)}
CHANNEL = {"ws": np.full(8, 0.01, np.float32), "wz": np.zeros(8, np.int8)}
PRODUCT = "w = DequantizeLinear<axis = 2>(wq, ws, wz) m = MatMul(d, w)"


@pytest.mark.parametrize(
    ("body", "more", "fails"),
    [
        (PAIR + PRODUCT + " y = Tanh(m)", {}, True),
        (PAIR.replace("s, z", "s, z8") + PRODUCT + " y = Tanh(m)", {}, True),
        (PAIR + PRODUCT.replace("= 2", "= -1") + " y = Tanh(m)", {}, True),
        (PAIR + PRODUCT + OUT, {}, False),
        (PAIR + PRODUCT + " r = Relu(m) y = Tanh(r)", {}, False),
        (PAIR.replace("s, z", "s, z16") + PRODUCT + " y = Tanh(m)", {}, False),
        (PAIR + PRODUCT + " y = Tanh(m)", {"ws": np.float32(0.01), "wz": np.int8(0)}, False),
        ("d = Tanh(x) " + PRODUCT + " y = Tanh(m)", {}, False),
    ],
)
def test_batched_weights(body: str, more: dict[str, Any], fails: bool) -> None:
    proto = net(body, **{**BATCH, **CHANNEL, **more})
    assert places(proto, "OQ615") == (["w"] if fails else [])
    assert loads(proto) is not fails


def in_branch(body: str) -> str:
    return (
        "(float[4, 16] x, bool c) => (float[A, B] y) { y = If(c) <then_branch = t () => "
        f"(float[4, 16] o) {{ {body} }}, else_branch = e () => (float[4, 16] k) {{ k = Relu(x) }}> }}"
    )


STORED = {"wq": array(16, 16), "ws": np.full(16, 0.01, np.float32), "wz": np.zeros(16, np.int8)}


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        (in_branch("w = DequantizeLinear<axis = 1>(wq, ws, wz) o = MatMul(x, w)"), True),
        (in_branch("w = DequantizeLinear<axis = 1>(wq, ws, wz) o = Gemm(x, w)"), True),
        (in_branch("w = DequantizeLinear<axis = 1>(wq, ws, wz) o = Gemm<transB = 1>(x, w)"), False),
        (in_branch("w = DequantizeLinear<axis = -1>(wq, ws, wz) o = MatMul(x, w)"), False),
        (in_branch(PAIR + "w = DequantizeLinear<axis = 1>(wq, ws, wz) o = MatMul(d, w)"), False),
        (in_branch("o = MatMul(x, w)").replace("{ y", "{ w = DequantizeLinear<axis = 1>(wq, ws, wz) y"), False),
    ],
)
def test_weights_outside_a_branch(text: str, fails: bool) -> None:
    proto = model(text, **STORED)
    assert places(proto, "OQ616") == (["y/then_branch/w"] if fails else [])
    assert loads(proto) is not fails


@pytest.mark.parametrize(("inside", "fails"), [(("wq",), True), (("ws", "wz"), True), (("wq", "ws"), False)])
def test_weights_partly_outside(inside: tuple[str, ...], fails: bool) -> None:
    proto = model(in_branch("w = DequantizeLinear<axis = 1>(wq, ws, wz) o = MatMul(x, w)"), **STORED)
    body = proto.graph.node[0].attribute[0].g
    for tensor in [t for t in proto.graph.initializer if t.name in inside]:
        body.initializer.append(tensor)
        proto.graph.initializer.remove(tensor)
    assert bool(found(proto, "OQ616")) is fails is not loads(proto)


def test_weights_outside_a_loop() -> None:
    proto = model(
        "(float[4, 16] x) => (float[4, 16] y) { y = Loop(n, , x) <body = b (int64 i, bool go, float[4, 16] h) => "
        "(bool on, float[4, 16] o) { on = Identity(go) w = DequantizeLinear<axis = 1>(wq, ws, wz) "
        "o = MatMul(h, w) }> }",
        n=np.int64(2),
        **STORED,
    )
    assert places(proto, "OQ616") == ["y/body/w"] and not loads(proto)


FLOAT = {"w": np.float32(array(4, 4, 1, 1)) * np.array([1, 0.001, 1, 0.001], np.float32).reshape(4, 1, 1, 1) / 100}


@pytest.mark.parametrize(
    ("body", "more", "rounds"),
    [
        (PAIR + "m = Conv(d, w)" + OUT, IMAGE, True),
        (PAIR + "c = Conv(d, w) m = Relu(c)" + OUT, IMAGE, True),
        (PAIR + "m = ConvTranspose(d, w)" + OUT, IMAGE, True),
        (PAIR + "m = Gemm(d, w)" + OUT, {"w": np.float32(array(16, 8)) / 100}, True),
        (PAIR + "m = MatMul(d, w)" + OUT, {"w": np.float32(array(16, 8)) / 100}, False),
        (PAIR + "y = Conv(d, w)", IMAGE, False),
        ("m = Conv(x, w)" + OUT, IMAGE, False),
        (PAIR + "m = Conv(d, w) k = Tanh(m)" + OUT, {**IMAGE, "outputs": "float[A,B,C,D] y, float[A,B,C,D] k"}, False),
    ],
)
def test_float_weights_beside_pairs(body: str, more: dict[str, Any], rounds: bool) -> None:
    proto = net(body, **{**FLOAT, "s2": np.float32(0.002), "z": np.uint8(128), **more})
    assert len(found(proto, "OQ617")) == rounds
    assert (gap(proto) > 0.002) is rounds
