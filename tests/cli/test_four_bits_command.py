"""`onnxq quantize` and `onnxq plan` with the recipes of four and eight bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
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


def noted(code: str) -> list[dict[str, Any]]:
    """The notes of a code in report.json."""
    groups = json.loads(Path("report.json").read_text())["notes"]
    return [note for group in groups if group["code"] == code for note in group["notes"]]


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


ODD = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,4,9,9] x) => (float[2,33] y) {
  [conv] c = Conv(x, k, kb) [relu] r = Relu(c) [pool] p = GlobalAveragePool(r) [flat] f = Flatten(p)
  [gemm] a = Gemm<transB=1>(f, w, b) [tanh] t = Tanh(a) [matmul] y = MatMul(t, v) }"""


@pytest.mark.parametrize("data", ["random", "real"])
def test_every_layer_odd(folder: Path, onnxq: Cli, data: str) -> None:
    """Nothing is quantized: no weight changes a byte, each layer is told once, and that is no failure."""
    rng, proto = np.random.default_rng(0), parser.parse_model(ODD)
    shapes = {"k": (8, 4, 3, 3), "kb": (8,), "w": (15, 8), "b": (15,), "v": (15, 33)}
    for name, shape in shapes.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(proto, "odd.onnx")
    Path("real").mkdir()
    np.savez("real/0.npz", x=rng.standard_normal((2, 4, 9, 9)).astype(np.float32))
    code, out, err = onnxq("quantize", "odd.onnx", "-o", "q.onnx", "--recipe", "a8w4", "--data", data,
                           "--report", "report.json")  # fmt: skip
    assert (code, err) == (0, "") and "0 of 3 layers quantized" in out
    made = onnx.load("q.onnx")
    assert {t.name: t.raw_data for t in made.graph.initializer} == {t.name: t.raw_data for t in proto.graph.initializer}
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in proto.graph.node]
    notes = noted("odd-pack-axis")
    assert [n["node"] for n in notes] == ["conv", "gemm", "matmul"]
    words = ("shape [8, 4, 3, 3] is 3 long on pack axis -1", "shape [15, 8] is 15 long", "shape [15, 33] is 33 long")
    assert all(w in n["message"] and "on-odd: pad" in n["message"] for w, n in zip(words, notes, strict=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("w8", "--set", "block_size=32"), "has no parameter 'block_size'; did you mean block-size"),
        (("dynamic", "--block-size", "32"), "recipe dynamic has no parameter 'block-size'"),
        (("w8", "--set", "weights=int8", "--weights", "int8"), "--set weights: --weights says the same parameter"),
        (("w8", "--set", "weights"), "expected key=value, got 'weights'"),
        (("w5",), "w5"),
        (("w4",), "unknown pass or recipe 'w4'; did you mean w4-blocked"),
        (("w4-blocked", "--weights", "int3"), "unknown quantized type 'int3'; did you mean"),
        (("a8w4", "--on-odd", "maybe", "--data", "data"), "expected one of skip, error, pad"),
        (("a8w4", "--data", "data", "--set", "nosuch=1"), "recipe a8w4 has no parameter 'nosuch'"),
        (("w4-blocked", "--block-size", "-1"), "greater than or equal to 0"),
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


@pytest.mark.parametrize(
    ("options", "code", "words", "count"),
    [
        (("--block-size", "33"), "not-fused", "not of 33", 2),
        (("--block-size", "8"), "not-fused", "not of 8", 2),
        (("--weights", "int16"), "not-fused", "weights of 2, 4 and 8 bits, not int16", 2),
        (("--form", "fake-quant", "--set", "matmulnbits=true"), "not-thawed", "no form with a float weight", 2),
        (("--block-size", "0"), "not-fused", "", 0),
    ],
)
def test_what_is_taken_but_told(
    folder: Path, onnxq: Cli, options: tuple[str, ...], code: str, words: str, count: int
) -> None:
    ran = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "w4-blocked", *options, "--report", "report.json")
    assert ran[0] == 0 and ran[2] == ""
    assert len(noted(code)) == count and all(words in note["message"] for note in noted(code))


def test_the_plan_of_a_recipe(folder: Path, onnxq: Cli) -> None:
    code, out, _ = onnxq("plan", "m.onnx", "-o", "plan.json", "--recipe", "w4-blocked", "--block-size", "16")
    assert code == 0 and "2 of 2 layers quantized" in out and "blocked" not in out
    text = Path("plan.json").read_text().replace('"status": "weight-only"', '"status": "float"', 1)
    Path("plan.json").write_text(text)
    code, out, err = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", "w4-blocked", "--plan", "plan.json")
    assert (code, err) == (0, "") and "1 of 2 layers quantized" in out


@pytest.mark.parametrize(
    ("steps", "same"),
    [
        (("thaw", "freeze"), ("a8w4", "w4-blocked", "w8")),
        (("unpack-int4", "pack-int4"), ("a8w4", "w4-blocked")),
        (("to-matmulnbits", "from-matmulnbits"), ("w4-blocked", "w8")),
    ],
)
def test_there_and_back_by_single_passes(
    folder: Path, onnxq: Cli, steps: tuple[str, str], same: tuple[str, ...]
) -> None:
    """What a recipe wrote goes through a pass and its inverse; every result computes the same in onnxruntime."""
    feeds = dict(np.load("data/0.npz"))

    def run(path: str) -> np.ndarray[Any, Any]:
        options = ort.SessionOptions()
        for key in ("session.disable_quant_qdq", "session.disable_double_qdq_remover"):
            options.add_session_config_entry(key, "1")
        return np.asarray(ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0])

    for recipe in same:
        assert onnxq("quantize", "m.onnx", "-o", "q.onnx", "--recipe", recipe, "--data", "data")[0] == 0
        for step, source, to in zip(steps, ("q.onnx", "there.onnx"), ("there.onnx", "back.onnx"), strict=True):
            assert onnxq("run", step, source, "-o", to)[::2] == (0, "")
            np.testing.assert_allclose(run(to), run("q.onnx"), rtol=1e-4, atol=1e-4)
        assert types("there.onnx") != types("q.onnx")
        if "to-matmulnbits" in steps:
            continue  # holds unsigned integers only: int4 comes back as uint4
        first, last = onnx.load("q.onnx"), onnx.load("back.onnx")
        data = [sorted(numpy_helper.to_array(t).tobytes() for t in m.graph.initializer) for m in (first, last)]
        assert data[0] == data[1] and sorted(types("back.onnx").values()) == sorted(types("q.onnx").values())
