"""What Ascend's toolkit does not take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxq.linting.fixing import fix_files
from onnxq.linting.settings import LintSettings
from tests.rules.graphs import array, found, model, places, run, session

TARGET = "ascend"
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
FOUR = array(16, 8, low=-8, high=8).astype(ml_dtypes.int4)


def net(body: str, inputs: str = "float[4, 16] x", outputs: str = "float[A, B] y", **more: Any) -> onnx.ModelProto:
    given = {"z": np.int8(0), "w": array(16, 8), "t": array(8, 16), **more}
    return model(f"({inputs}) => ({outputs}) {{ {body} }}", **given)


def test_transposed_weights_and_their_fix(tmp_path: Path) -> None:
    proto = net(PAIR + "v = DequantizeLinear(t, s) y = Gemm<transB = 1>(d, v)")
    assert places(proto, "OQ651", TARGET) == ["y"]
    assert not found(net(PAIR + "v = DequantizeLinear(w, s) y = Gemm(d, v)"), "OQ651", TARGET)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    fix_files([str(path)], LintSettings(target=TARGET, select=("OQ651",)), None, unsafe=False, write=True)
    mended = onnx.load(path)
    assert not found(mended, "OQ651", TARGET)
    level = "ORT_DISABLE_ALL"
    np.testing.assert_array_equal(run(session(mended, level))[0], run(session(proto, level))[0])


IMAGE = {"inputs": "float[1, 4, 8, 8] x", "outputs": "float[A, B, C, D] y", "k": array(4, 4, 3, 3)}


@pytest.mark.parametrize(
    ("body", "more", "fires"),
    [
        ("v = DequantizeLinear(w, s) y = Gemm<transA = 1>(d, v)", {"inputs": "float[16, 4] x"}, True),
        ("v = DequantizeLinear(w, s) y = Gemm(d, v)", {}, False),
        ("v = DequantizeLinear(k, s) y = ConvTranspose<dilations = [2, 2]>(d, v)", IMAGE, True),
        ("v = DequantizeLinear(k, s) y = ConvTranspose(d, v)", IMAGE, False),
        ("v = DequantizeLinear(b, s) y = MatMul(d, v)",
         {"b": array(2, 16, 8), "outputs": "float[A, B, C] y"}, True),
    ],
)  # fmt: skip
def test_layers(body: str, more: dict[str, Any], fires: bool) -> None:
    assert places(net(PAIR + body, **more), "OQ652", TARGET) == (["y"] if fires else [])


def test_the_opset_of_four_bits() -> None:
    body = PAIR + "v = DequantizeLinear(w, s) y = MatMul(d, v)"
    assert places(net(body, w=FOUR, opset=23), "OQ653", TARGET) == ["v"]
    assert not found(net(body, w=FOUR), "OQ653", TARGET) and not found(net(body, opset=23), "OQ653", TARGET)


def test_float_activations() -> None:
    body = "v = DequantizeLinear(w, s) y = MatMul(x, v)"
    assert places(net(body), "OQ654", TARGET) == ["y"]
    assert not found(net(PAIR + body.replace("(x,", "(d,")), "OQ654", TARGET)
