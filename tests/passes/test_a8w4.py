"""The recipe a8w4: pairs in front of layers, what onnxruntime loads, numbers by NumPy, layers that are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxq import api
from onnxq.errors import OptionError

RNG = np.random.default_rng(0)
IMAGE = "(float[1,4,8,8] x) => (float[a,b,c,d] y)"
Array = np.ndarray[Any, Any]


def model(text: str, weights: dict[str, Any]) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    for name, array in weights.items():
        array = (RNG.standard_normal(array) * 0.2).astype(np.float32) if isinstance(array, tuple) else np.asarray(array)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def feeds_of(proto: onnx.ModelProto) -> dict[str, Array]:
    (value,) = proto.graph.input
    dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return {value.name: RNG.standard_normal(dims).astype(np.float32)}


def quantize(proto: onnx.ModelProto, **parameters: Any) -> api.Result:
    return api.quantize(proto, [feeds_of(proto) for _ in range(2)], recipe="a8w4", **parameters)


def initializers(proto: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def pair(x: Array, found: dict[str, Array], name: str) -> Array:
    """A per-tensor Q/DQ pair, by the operator text."""
    scale, zero = found[f"{name}_scale"], found[f"{name}_zero_point"]
    low, high = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
    q = np.clip(np.rint(x / scale) + zero, low, high)
    return np.asarray((q - zero) * scale, np.float32)


def cosine(a: Array, b: Array) -> float:
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_a_product_with_bias_on_both_sessions(rank: int, weights: str, run_model: Callable[..., Any]) -> None:
    """onnxruntime would not load int8 activations in front of a product of rank 3 with a bias vector behind it."""
    dims = [1, 2, 3, 16][-rank:]
    text = f"(float{dims} x) => (float[{','.join('abcd'[:rank])}] y) {{ m = MatMul(x, w) y = Add(m, b) }}"
    source = model(text, {"w": (16, 8), "b": (8,)})
    made = quantize(source, weights=weights)
    found, feeds = initializers(made.model), feeds_of(source)
    assert found["w_quantized"].dtype.name == weights and found["b_quantized"].dtype == np.int32
    assert found["b_quantized"].shape == ((1,) * (rank - 1) + (8,) if rank > 2 else (8,))
    weight = found["w_quantized"].astype(np.float32) * found["w_scale"]
    bias = found["b_quantized"] * found["x_scale"] * found["w_scale"]
    np.testing.assert_allclose(found["b_scale"], found["x_scale"] * found["w_scale"], rtol=1e-6)
    wanted = pair(feeds["x"], found, "x").astype(np.float64) @ weight + bias
    for true in (False, True):
        # The default session computes in integers where it can: less than a step of either session's rounding.
        np.testing.assert_allclose(run_model(made.model, feeds, true=true)[0], wanted, rtol=1e-4, atol=1e-4)


LOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "pool": (f"{IMAGE} {{ p = MaxPool<kernel_shape=[2,2]>(x) y = Conv(p, k) }}", {}),
    "conv-pool": (f"{IMAGE} {{ c = Conv(x, k) r = Relu(c) p = MaxPool<kernel_shape=[2,2]>(r) y = Conv(p, u) }}", {}),
    "transpose": (f"{IMAGE} {{ c = Conv(x, k) t = Transpose<perm=[0,1,3,2]>(c) y = Conv(t, u) }}", {}),
    "reshape": (f"{IMAGE} {{ c = Conv(x, k) t = Reshape(c, s) y = Conv(t, u) }}", {"s": np.array([1, 6, 7, 6])}),
    "slice": (f"{IMAGE} {{ c = Conv(x, k) t = Slice(c, f, e) y = Conv(t, u) }}",
              {"f": np.array([0, 0, 1, 1]), "e": np.array([1, 6, 5, 5])}),
    "pad": (f"{IMAGE} {{ c = Conv(x, k) t = Pad(c, s) y = Conv(t, u) }}", {"s": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
    "concat": (f"{IMAGE} {{ c = Conv(x, k) d = Conv(x, v) t = Concat<axis=1>(c, d) y = Conv(t, z) }}", {}),
    "residual": (f"{IMAGE} {{ c = Conv(x, k) d = Conv(c, i) t = Add(c, d) y = Conv(t, u) }}", {}),
    "resize": (f'{IMAGE} {{ c = Conv(x, k) t = Resize<mode="nearest">(c, , s) y = Conv(t, u) }}',
               {"s": np.array([1, 1, 2, 2], np.float32)}),
    "head": ("(float[1,4,8,8] x) => (float[a,b] y) { c = Conv(x, k) g = GlobalAveragePool(c) f = Flatten(g) "
             "y = Gemm<transB=1>(f, o, h) }", {}),
    "transposed": ("(float[1,4,8,8] x) => (float[a,b,c,d] y) { c = ConvTranspose(x, n) y = Conv(c, u) }", {}),
}  # fmt: skip
WEIGHTS = {"k": (6, 4, 3, 2), "v": (6, 4, 3, 2), "u": (4, 6, 1, 2), "z": (4, 12, 1, 2), "i": (6, 6, 1, 2),
           "o": (10, 6), "h": (10,), "n": (4, 6, 2, 2)}  # fmt: skip


@pytest.mark.parametrize("case", LOADS)
def test_int8_activations_load_behind_data_movement(case: str, run_model: Callable[..., Any]) -> None:
    text, constants = LOADS[case]
    text = text.replace("d = Conv(c, i)", "d = Conv<pads=[0,0,0,1]>(c, i)")
    source = model(text, {k: v for k, v in WEIGHTS.items() if f"{k})" in text or f" {k}," in text} | constants)
    made = quantize(source)
    layers = [n for n in made.plan["nodes"].values() if n.get("layer")]
    assert layers and all(n["status"] == "integer" for n in layers)
    ops = {n.output[0]: n.op_type for n in made.model.graph.node}
    for node in made.model.graph.node:
        if node.op_type == "DequantizeLinear":
            readers = {n.op_type for n in made.model.graph.node if node.output[0] in n.input}
            assert readers <= {"Conv", "Gemm", "ConvTranspose"}, "pairs stand in front of layers only"
        if node.op_type in ("Conv", "Gemm", "ConvTranspose"):
            assert [ops[name] for name in node.input] == ["DequantizeLinear"] * len(node.input)
    feeds = feeds_of(source)
    exact = run_model(source, feeds)[0]
    default, true = run_model(made.model, feeds)[0], run_model(made.model, feeds, true=True)[0]
    assert cosine(default, exact) > 0.95 and cosine(default, true) > 0.9999


def test_weight_pairs_have_no_zero_point_and_activations_have() -> None:
    made = quantize(model(f"{IMAGE} {{ y = Conv(x, k) }}", {"k": (6, 4, 3, 2)}))
    found = initializers(made.model)
    inputs = {n.output[0]: list(n.input) for n in made.model.graph.node}
    assert len(inputs["k_dequantized"]) == 2 and len(inputs["x_dequantized"]) == 3 and "k_zero_point" not in found
    types = {t.name: t.data_type for t in made.model.graph.initializer}
    assert types["k_quantized"] == onnx.TensorProto.INT4 and found["x_zero_point"].dtype == np.int8
    given = quantize(model(f"{IMAGE} {{ y = Conv(x, k) }}", {"k": (6, 4, 3, 2)}), symmetric="no")
    assert "k_zero_point" in initializers(given.model), "an asymmetric weight needs it"


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers(op: str, gates: int, run_model: Callable[..., Any]) -> None:
    text = f"(float[4,2,6] x) => (float[a,b,c,d] y) {{ y = {op}<hidden_size=8>(x, w, r, b) }}"
    source = model(text, {"w": (1, gates * 8, 6), "r": (1, gates * 8, 8), "b": (1, 2 * gates * 8)})
    made = quantize(source)
    (node,) = [n for n in made.plan["nodes"].values() if n.get("layer")]
    assert node["status"] == "integer" and "hidden state" in node["reason"] and "stays float" in node["reason"]
    found = initializers(made.model)
    feeds = feeds_of(source)
    decoded = model(text, {"b": found["b"]} | {
        k: found[f"{k}_quantized"].astype(np.float32) * found[f"{k}_scale"].reshape(1, -1, 1) for k in "wr"
    })  # fmt: skip
    (wanted,) = run_model(decoded, {"x": pair(feeds["x"], found, "x")}, optimised=False)
    for true in (False, True):
        np.testing.assert_allclose(run_model(made.model, feeds, true=true)[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_product_of_two_activations_stays() -> None:
    text = "(float[1,4,16] x) => (float[a,b,c] y) { q = MatMul(x, w) t = Transpose<perm=[0,2,1]>(q) y = MatMul(q, t) }"
    made = quantize(model(text, {"w": (16, 8)}))
    assert made.plan["nodes"]["MatMul_q"]["status"] == "integer"
    assert made.plan["nodes"]["MatMul_y"]["code"] == "activation-matmul"


ODD = "(float[1,4,8,8] x) => (float[a,b] y) { c = Conv(x, k) r = Relu(c) f = Flatten(r) y = Gemm<transB=1>(f, w, b) }"


def test_a_model_of_odd_layers_comes_out_as_it_was(run_model: Callable[..., Any]) -> None:
    """No downgrade, no pair, no changed byte of a weight; one note a layer."""
    source = model(ODD, {"k": (6, 4, 3, 3), "w": (9, 216), "b": (9,)})
    made = quantize(source)
    before, after = ({t.name: t for t in p.graph.initializer} for p in (source, made.model))
    assert {k: t.raw_data for k, t in before.items()} == {k: t.raw_data for k, t in after.items()}
    assert [n.op_type for n in made.model.graph.node] == ["Conv", "Relu", "Flatten", "Gemm"]
    notes = [n for n in made.report.notes if n.code == "odd-pack-axis"]
    assert len(notes) == 2 and {n.place.node for n in notes} == {"Conv_c", "Gemm_y"}
    with pytest.raises(OptionError, match="odd"):
        quantize(source, **{"on-odd": "error"})


def test_odd_layers_padded(run_model: Callable[..., Any]) -> None:
    source = model(ODD, {"k": (6, 4, 3, 3), "w": (9, 216), "b": (9,)})
    made = quantize(source, **{"on-odd": "pad", "inputs": "float"})
    assert all(n["status"] == "integer" for n in made.plan["nodes"].values() if n.get("layer"))
    feeds = feeds_of(source)
    exact = run_model(source, feeds)[0]
    for true in (False, True):
        got = run_model(made.model, feeds, true=true)[0]
        assert got.shape == exact.shape and cosine(got, exact) > 0.95


@pytest.mark.parametrize("axis_form", ["native", "canonical"])
def test_the_fake_quant_form_gives_the_same_numbers(axis_form: str, run_model: Callable[..., Any]) -> None:
    source = model(f"{IMAGE} {{ c = Conv(x, k) r = Relu(c) y = Conv(r, u) }}", {"k": (6, 4, 3, 2), "u": (4, 6, 1, 2)})
    feeds, data = feeds_of(source), [feeds_of(source)]
    options: dict[str, Any] = {"axis-form": axis_form}
    deploy = api.quantize(source, data, recipe="a8w4", **options).model
    fake = api.quantize(source, data, recipe="a8w4", form="fake-quant", **options).model
    weight_q = [n for n in fake.graph.node if n.op_type == "QuantizeLinear" and len(n.input) == 2]
    given = [{a.name: a.i for a in n.attribute} for n in weight_q]
    assert [g["output_dtype"] for g in given] == [onnx.TensorProto.INT4] * 2
    assert {g["axis"] for g in given} == ({0} if axis_form == "native" else {1})
    for true in (False, True):
        a, b = run_model(deploy, feeds, true=true)[0], run_model(fake, feeds, true=true)[0]
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
