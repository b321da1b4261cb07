"""`onnxq quantize` and `onnxq plan` with the recipes of four and eight bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

Ran = tuple[int, str, str]
Cli = Callable[..., Ran]

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[5,64] x) => (float[5,33] y) {
  [a] a = Gemm<transB=1>(x, w, b) [t] t = Tanh(a) [y] y = MatMul(t, v) }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of an even and an odd layer and a sample of its input."""
    rng = np.random.default_rng(0)
    proto = parser.parse_model(NET)
    for name, shape in {"w": (48, 64), "b": (48,), "v": (48, 33)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "0.npz", x=rng.standard_normal((5, 64)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def types(path: str) -> dict[str, str]:
    return {t.name: onnx.TensorProto.DataType.Name(t.data_type) for t in onnx.load(path).graph.initializer}


def given(path: str) -> list[dict[str, int]]:
    nodes = onnx.load(path).graph.node
    return [{a.name: a.i for a in n.attribute} for n in nodes if n.op_type == "DequantizeLinear"]


@pytest.mark.parametrize(
    ("options", "kinds", "attributes"),
    [
        (("w4-blocked",), {"INT4"}, {"axis": 0, "block_size": 32}),
        (("w4-blocked", "--block-size", "16", "--asymmetric"), {"INT4"}, {"axis": 0, "block_size": 16}),
        (("w4-blocked", "--weights", "uint4", "--weight-method", "hqq"), {"UINT4"}, {"axis": 0, "block_size": 32}),
        (("w8",), {"INT8"}, {"axis": 1}),
        (("w8", "--set", "block-size=16", "--set", "weights=uint8"), {"UINT8"}, {"axis": 0, "block_size": 16}),
    ],
)
def test_weight_only_needs_no_data(
    folder: Path, onnxq: Cli, options: tuple[str, ...], kinds: set[str], attributes: dict[str, int]
) -> None:
    code, out, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", *options)
    assert (code, err) == (0, "") and "2 of 2 layers quantized" in out
    assert set(types("q.onnx").values()) == {"FLOAT"} | kinds
    assert given("q.onnx") == [attributes] * 2


def test_matmulnbits(folder: Path, onnxq: Cli) -> None:
    assert onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "w4-blocked", "--set", "matmulnbits=true")[0] == 0
    assert [n.op_type for n in onnx.load("q.onnx").graph.node].count("MatMulNBits") == 2


def test_a8w4_for_its_own_target(folder: Path, onnxq: Cli) -> None:
    code, out, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "a8w4", "--data", "data")
    assert (code, err) == (0, "") and "1 of 2 layers quantized" in out and "odd-pack-axis" in out
    found = types("q.onnx")
    assert found["w_quantized"] == "INT4" and found["v"] == "FLOAT" and found["b_quantized"] == "INT32"
    code, out, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "a8w4", "--data", "data",
                           "--on-odd", "pad", "--form", "fake-quant", "--rounding", "nearest")  # fmt: skip
    assert (code, err) == (0, "") and "2 of 2 layers quantized" in out
    assert "INT4" not in types("q.onnx").values()
    assert [n.op_type for n in onnx.load("q.onnx").graph.node].count("QuantizeLinear") == 4


def test_a_model_of_odd_layers(folder: Path, onnxq: Cli) -> None:
    code, out, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "a8w4", "--data", "data", "--exclude", "a")
    assert (code, err) == (0, "") and "0 of 2 layers quantized" in out
    assert set(types("q.onnx").values()) == {"FLOAT"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("w8", "--set", "block_size=32"), "has no parameter 'block_size'; did you mean block-size"),
        (("dynamic", "--block-size", "32"), "recipe dynamic has no parameter 'block-size'"),
        (("w8", "--set", "weights=int8", "--weights", "int8"), "--set weights: --weights says the same parameter"),
        (("w8", "--set", "weights"), "expected key=value, got 'weights'"),
        (("w5",), "w5"),
        (("a8w4", "--activations", "int16", "--data", "data"), "not with int16 activations (A16W4)"),
        (("a8w4", "--on-odd", "error", "--data", "data"), "odd"),
        (("a8w4", "--on-odd", "pda", "--data", "data"), "did you mean pad"),
        (("w4-blocked", "--target", "ascend"), "not with float activations (weight-only)"),
        (("w4-blocked", "--symmetric", "--set", "symmetric=no"), "--set symmetric: --symmetric says the same"),
        (("w4-blocked", "--block-size", "0", "--set", "weight-method=mean"), "got 'mean'"),
    ],
)
def test_mistakes(folder: Path, onnxq: Cli, options: tuple[str, ...], words: str) -> None:
    code, _, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", *options)
    assert code == 2 and words in " ".join(err.split()) and not Path("q.onnx").exists()


def test_the_plan_of_a_recipe(folder: Path, onnxq: Cli) -> None:
    code, out, _ = onnxq("plan", "m.onnx", "-o", "plan.json", "--recipe", "w4-blocked", "--block-size", "16")
    assert code == 0 and "2 of 2 layers quantized" in out and "blocked" not in out
    text = Path("plan.json").read_text().replace('"status": "weight-only"', '"status": "float"', 1)
    Path("plan.json").write_text(text)
    code, out, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "w4-blocked", "--plan", "plan.json")
    assert (code, err) == (0, "") and "1 of 2 layers quantized" in out
