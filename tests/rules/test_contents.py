"""OQ209, OQ210, OQ212: what the integers of weights say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxq.diagnostics import Severity
from tests.rules.lab import build, find, numbers

F, U8, S8, S32 = np.float32, np.uint8, np.int8, np.int32
CONV = "d = DequantizeLinear<axis=0>(w, s, z) y = Conv(x, d)"
MATMUL = "d = DequantizeLinear<axis=1>(w, s, z) y = MatMul(x, d)"
RNG = np.random.default_rng(0)


def bell(*dims: int, axis: int = 0) -> Any:
    """Weights as a quantizer leaves them: the largest of each channel is 127."""
    w = RNG.normal(size=dims)
    others = tuple(i for i in range(len(dims)) if i != axis)
    return np.rint(w * 127 / np.abs(w).max(axis=others, keepdims=True)).astype(S8)


def per_channel(w: Any, axis: int, **changes: Any) -> dict[str, Any]:
    return {"w": w, "s": np.full(w.shape[axis], 0.1, "f"), "z": np.zeros(w.shape[axis], w.dtype), **changes}


def test_healthy_weights() -> None:
    model = build(CONV, per_channel(bell(8, 4, 3, 3), 0))
    assert not find(model, "OQ209") and not find(model, "OQ210") and not find(model, "OQ212")


def test_dead_channels() -> None:
    w = bell(8, 4, 3, 3)
    w[[2, 5]] = 0
    (found,) = find(build(CONV, per_channel(w, 0)), "OQ209")
    assert found.place.node == "d" and found.numbers == {"channel": 2, "dead": 2, "channels": 8}
    assert found.severity is Severity.INFO, "it was zero before"
    (found,) = find(build(CONV, {"w": w, "s": F(0.1), "z": S8(0)}), "OQ209")
    assert found.severity is Severity.WARNING, "one scale for the whole weight lost it"
    asymmetric = np.full((8, 4, 3, 3), 7, U8)
    asymmetric[1:] = bell(7, 4, 3, 3).view(U8)
    shifted = per_channel(asymmetric, 0, z=np.full(8, 7, U8))
    assert numbers(build(CONV, shifted), "OQ209")["channel"] == 0


def test_dead_channels_of_four_bits_and_of_nobody() -> None:
    w = RNG.integers(-7, 8, (6, 5))
    w[:, 3] = 0
    four = per_channel(w.astype(ml_dtypes.int4), 1)
    assert numbers(build(MATMUL, four), "OQ209") == {"channel": 3, "dead": 1, "channels": 5}
    table = build("d = DequantizeLinear<axis=1>(w, s, z) y = Gather(d, i)", {**four, "i": np.array([0])})
    assert not find(table, "OQ209"), "rows of a table are no channels"


def test_signed_bytes() -> None:
    w = bell(8, 4, 3, 3)
    right, wrong = (w.astype(np.int16) + 128).astype(U8), w.view(U8)
    assert not find(build(CONV, per_channel(right, 0, z=np.full(8, 128, U8))), "OQ210")
    (found,) = find(build(CONV, per_channel(wrong, 0)), "OQ210")
    assert found.place.node == "d"
    assert sum(found.numbers.values()) == w.size and found.numbers["between"] < found.numbers["to 63"]
    bare = {k: v for k, v in per_channel(wrong, 0).items() if k != "z"}
    assert find(build(CONV.replace(", z)", ")"), bare), "OQ210"), "without a zero point it is 0"


@pytest.mark.parametrize(
    "values",
    [
        RNG.integers(0, 256, 288), RNG.choice([1, 255], 288), np.abs(bell(288, axis=0)).astype(int) * 2 % 256,
        np.minimum(RNG.exponential(40, 288), 255), np.full(288, 255),
    ],
)  # fmt: skip
def test_other_bytes(values: Any) -> None:
    """Uniform, binary, positive: bytes that are what they say."""
    w = np.asarray(values).astype(U8).reshape(8, 4, 3, 3)
    assert not find(build(CONV, per_channel(w, 0)), "OQ210")


def test_unused_range_of_a_channel() -> None:
    w = bell(8, 4, 3, 3)
    w[3] //= 8
    model = build(CONV, per_channel(w, 0))
    largest = int(np.abs(w[3].astype(int)).max())
    assert numbers(model, "OQ212") == {"largest": largest, "room": 128, "channel": 3, "channels": 1}
    w[3] = 0
    assert not find(build(CONV, per_channel(w, 0)), "OQ212"), "zeros are OQ209"


def test_unused_range_of_a_weight() -> None:
    w = bell(8, 4, 3, 3) // 8
    whole = {"w": w, "s": F(1), "z": S8(0)}
    assert numbers(build(CONV, whole), "OQ212") == {"largest": int(np.abs(w.astype(int)).max()), "room": 128}
    assert not find(build(CONV, {**whole, "w": bell(8, 4, 3, 3)}), "OQ212")
    four = bell(8, 4, 3, 3) // 16
    assert not find(build(CONV, {**whole, "w": four}), "OQ212") and find(build(CONV, {**whole, "w": four}), "OQ402")


def test_a_scale_that_the_bias_needs() -> None:
    """A smaller one would push the bias out of int32."""
    w = bell(8, 4, 3, 3)
    w[3] //= 8
    head = "q = QuantizeLinear(x, t) e = DequantizeLinear(q, t) d = DequantizeLinear<axis=0>(w, s, z) "
    body = head + "b = DequantizeLinear<axis=0>(i, bs) y = Conv(e, d, b)"
    bias = np.zeros(8, S32)
    bias[3] = 2**30
    data = per_channel(w, 0, t=F(1), i=bias, bs=np.full(8, 0.1, "f"))
    assert not find(build(body, data), "OQ212")
    assert find(build(body, {**data, "i": bias // 8}), "OQ212")


def test_each_weight_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxq import lint
    from onnxq.border.tensors import RecordTensor

    read: list[str] = []
    numpy = RecordTensor.numpy

    def spy(self: RecordTensor) -> Any:
        read.append(self.name or "")
        return numpy(self)

    monkeypatch.setattr(RecordTensor, "numpy", spy)
    model = build(CONV, per_channel(bell(8, 4, 3, 3), 0))
    lint(model, select="OQ209,OQ212,OQ402")
    assert read.count("w") == 1
    read.clear()
    lint(model, select="OQ1,OQ3,OQ201,OQ205")
    assert "w" not in read
