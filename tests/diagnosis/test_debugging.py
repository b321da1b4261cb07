import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import onnxq
from onnxq.diagnosis.blame import Debugging, Error, Tensor
from onnxq.diagnosis.debugging import debug
from onnxq.errors import InputError, OptionError
from onnxq.report.debug import to_text

HEAD = '<ir_version: 10, opset_import: ["": %d, "com.microsoft": 1]>'
RNG = np.random.default_rng(0)
W1, W2 = (RNG.normal(size=s).astype(np.float32) for s in ((8, 6), (6, 5)))
SAMPLES = [{"x": RNG.normal(size=(4, 8)).astype(np.float32)} for _ in range(3)]
S = {"x": np.float32(0.03), "r": np.float32(0.05)}
Z = {"x": np.uint8(120), "r": np.uint8(0)}


def model(text, opset=21, **arrays):
    out = parser.parse_model(f"{HEAD % opset} g {text}")
    out.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return out


def float_net(opset=21):
    io = "(float[n, 8] x) => (float[n, 5] y)"
    return model(f"{io} {{ a = MatMul(x, w1) r = Relu(a) y = MatMul(r, w2) }}", opset, w1=W1, w2=W2)


def integers(weight):
    scale = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


def quant_net():
    arrays = {f"{k}s": v for k, v in S.items()} | {f"{k}z": v for k, v in Z.items()}
    for name, weight in (("w1", W1), ("w2", W2)):
        arrays[f"{name}_q"], arrays[f"{name}_s"] = integers(weight)
        arrays[f"{name}_z"] = np.zeros(weight.shape[1], np.int8)
    return model(
        """(float[n, 8] x) => (float[n, 5] y) {
            xq = QuantizeLinear(x, xs, xz)  xd = DequantizeLinear(xq, xs, xz)
            w1d = DequantizeLinear<axis = 1>(w1_q, w1_s, w1_z)  w2d = DequantizeLinear<axis = 1>(w2_q, w2_s, w2_z)
            a = MatMul(xd, w1d) r = Relu(a)
            rq = QuantizeLinear(r, rs, rz)  rd = DequantizeLinear(rq, rs, rz)
            y = MatMul(rd, w2d)
        }""",
        **arrays,
    )


def fake(x, name):
    q = np.clip(np.rint(x / S[name]) + Z[name], 0, 255)
    return (q - Z[name]) * S[name]


def weights(weight):
    q, scale = integers(weight)
    return q.astype(np.float64) * scale


def sqnr(pairs):
    signal = sum((a.astype(np.float64) ** 2).sum() for a, _ in pairs)
    noise = sum(((a.astype(np.float64) - b) ** 2).sum() for a, b in pairs)
    return 10 * np.log10(signal / noise)


def numbers(tensor):
    kinds = ("cumulative", "local", "weights", "inputs", "rounding")
    return {k: e.sqnr_db for k in kinds if (e := getattr(tensor, k)) is not None}


def test_the_numbers_are_those_of_numpy():
    found = debug(float_net(), quant_net(), SAMPLES)
    x = [s["x"] for s in SAMPLES]
    a = [v @ W1 for v in x]
    r = [np.maximum(v, 0) for v in a]
    y = [v @ W2 for v in r]
    d1, d2 = weights(W1), weights(W2)
    quant_a = [fake(v, "x") @ d1 for v in x]
    quant_r = [fake(np.maximum(v, 0), "r") for v in quant_a]

    def against(reference, other):
        return pytest.approx(sqnr(list(zip(reference, other, strict=True))), abs=0.01)

    rows = {t.name: numbers(t) for t in found.tensors}
    assert rows["y"] == {
        "cumulative": against(y, [v @ d2 for v in quant_r]),
        "local": against(y, [fake(v, "r") @ d2 for v in r]),
        "weights": against(y, [v @ d2 for v in r]),
        "inputs": against(y, [fake(v, "r") @ W2 for v in r]),
    }
    assert rows["a"] == {
        "cumulative": against(a, quant_a),
        "local": against(a, quant_a),
        "weights": against(a, [v @ d1 for v in x]),
        "inputs": against(a, [fake(v, "x") @ W1 for v in x]),
    }
    assert rows["r"] == {
        "cumulative": against(r, quant_r),
        "local": against(r, [fake(v, "r") for v in r]),
        "rounding": against(r, [fake(v, "r") for v in r]),
    }
    assert rows["x"] == dict.fromkeys(("cumulative", "rounding"), against(x, [fake(v, "x") for v in x]))
    assert (found.matched_by, found.matched, found.alone, found.samples) == ("names", 4, (), 3)
    assert [t.own for t in found.tensors] == sorted(t.own for t in found.tensors)


def test_opsets_are_levelled():
    """The float model is older than Q/DQ with 16 bits; the twins need one opset."""
    old, new = debug(float_net(13), quant_net(), SAMPLES), debug(float_net(), quant_net(), SAMPLES)
    assert old.tensors == new.tensors and old.notes == []


def test_memory_is_bounded_by_passes_over_the_data():
    starts = []

    class Data:
        def __iter__(self):
            starts.append(1)
            return iter([{"x": np.repeat(s["x"], 20_000, axis=0)} for s in SAMPLES])

    one, many = (debug(float_net(), quant_net(), Data(), memory=memory) for memory in (1000, 1))
    assert one.tensors == many.tensors and many.samples == 3
    assert len(starts) > 3, "several passes for the second"
    with pytest.raises(OptionError, match="memory must be at least 1 MB"):
        debug(float_net(), quant_net(), SAMPLES, memory=0)


def conv_net():
    bn = {k: np.abs(RNG.normal(size=6)).astype(np.float32) + 0.5 for k in ("g", "b", "m", "v")}
    text = """(float[1, 3, 8, 8] x) => (float[1, 5] y) {
        c = Conv(x, w1) n = BatchNormalization(c, g, b, m, v) r = Relu(n)
        p = GlobalAveragePool(r) f = Flatten(p) y = Gemm(f, w2, b2) }"""
    net = model(
        text, w1=RNG.normal(size=(6, 3, 3, 3)).astype(np.float32), w2=W2, b2=np.ones(5, np.float32), **bn
    )  # fmt: skip
    for node in net.graph.node:
        node.name = f"the_{node.op_type.lower()}"
    return net, [{"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def test_layers_that_passes_changed_are_matched_by_provenance():
    net, data = conv_net()
    quantized = onnxq.quantize(net, data, rounding="nearest", search=False).model
    found = debug(net, quantized, data)
    rows = {t.name: t for t in found.tensors}
    assert found.matched_by == "provenance" and "c" in found.alone and rows["n"].node == "the_conv"
    assert rows["y"].node == "the_gemm" and rows["y"].op == "Gemm"
    for name in ("n", "y"):
        assert rows[name].local.sqnr_db > 25 and rows[name].weights.sqnr_db > 30 and rows[name].inputs.sqnr_db > 30


def test_a_damaged_layer_is_found():
    net, data = conv_net()
    quantized = onnxq.quantize(net, data, rounding="nearest", search=False).model
    (weight,) = (t for t in quantized.graph.initializer if t.name.startswith("w1") and len(t.dims) == 4)
    values = numpy_helper.to_array(weight).copy()
    values[2] = -values[2]
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    found = debug(net, quantized, data)
    worst = found.tensors[0]
    assert (worst.node, worst.blame) == ("the_conv", "weights") and worst.own < 12
    advice = " ".join(found.advice())
    assert "the_conv (Conv)" in advice and "mostly by its weights" in advice and "--exclude the_conv" in advice


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self._samples = iter(samples)

    def get_next(self):
        return next(self._samples, None)


def test_a_model_of_onnxruntimes_tool_is_matched_by_name(tmp_path):
    """The tool takes a Relu away where the pair behind it does its work."""
    net, data = conv_net()
    del net.graph.node[1]
    net.graph.node[1].input[0] = "c"
    net.opset_import[0].version = 19
    onnx.save(net, tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "quant.onnx", Reader(data), quant_format=QuantFormat.QDQ, per_channel=True
    )
    found = debug(tmp_path / "float.onnx", tmp_path / "quant.onnx", data)
    rows = {t.name: t for t in found.tensors}
    ops = [n.op_type for n in onnx.load(tmp_path / "quant.onnx").graph.node]
    assert "Relu" not in ops and found.matched_by == "names" and "by name" in to_text(found)
    assert rows["r"].weights.sqnr_db > 35 and rows["r"].inputs.sqnr_db > 35 and rows["r"].local.sqnr_db > 30
    assert rows["y"].cumulative.sqnr_db > 20


def test_weights_in_blocks_and_dynamic_inputs():
    """MatMulNBits has no pairs; MatMulInteger cannot be taken apart; DQL with a DQ can."""
    io = "(float[n, 8] x) => (float[n, 6] y)"
    reference = model(f"{io} {{ y = MatMul(x, w) }}", w=W1)
    q, scale = integers(W1)
    quantized = model(
        f"""{io} {{ xq, xs, xz = DynamicQuantizeLinear(x) xd = DequantizeLinear(xq, xs, xz)
            wd = DequantizeLinear<axis = 1>(wq, ws) y = MatMul(xd, wd) }}""",
        wq=q, ws=scale,
    )  # fmt: skip
    (row,) = debug(reference, quantized, SAMPLES).tensors
    assert set(numbers(row)) == {"cumulative", "local", "weights", "inputs"}
    assert row.local == row.cumulative and row.own < min(row.weights.sqnr_db, row.inputs.sqnr_db)
    whole = model(
        f"""{io} {{ xq, xs, xz = DynamicQuantizeLinear(x) p = MatMulInteger(xq, wq, xz)
            f = Cast<to = 1>(p) s = Mul(xs, ws) y = Mul(f, s) }}""",
        wq=q, ws=scale,
    )  # fmt: skip
    (row,) = debug(reference, whole, SAMPLES).tensors
    assert set(numbers(row)) == {"cumulative", "local"} and row.local == row.cumulative


BRANCHES = """(float[2, 8] x, bool c) => (float[2, 6] y) {
    t = Tanh(x)
    y = If(c) <then_branch = a () => (float[2, 6] m) { %s m = MatMul(t, wd) },
               else_branch = b () => (float[2, 6] k) { k = MatMul(t, w) }>
}"""


def test_layers_in_branches_count_for_the_node_around_them():
    q, scale = integers(W1)
    reference = model(BRANCHES.replace("wd", "w") % "", w=W1)
    quantized = model(BRANCHES % "wd = DequantizeLinear<axis = 1>(wq, ws)", w=W1, wq=q, ws=scale)
    data = [{"x": SAMPLES[0]["x"][:2], "c": np.array(value)} for value in (True, False)]
    rows = {t.name: t for t in debug(reference, quantized, data).tensors}
    exact = [np.tanh(s["x"]) @ W1 for s in data]
    other = [np.tanh(data[0]["x"]) @ weights(W1), exact[1]]
    assert rows["y"].op == "If" and rows["y"].local == rows["y"].cumulative
    assert rows["y"].local.sqnr_db == pytest.approx(sqnr(list(zip(exact, other, strict=True))), abs=0.01)
    assert rows["t"].local.sqnr_db is None


def test_nothing_to_say_about_equal_models():
    found = debug(float_net(), float_net(), SAMPLES)
    assert all(t.own == np.inf and t.cumulative.sqnr_db is None for t in found.tensors)
    assert list(found.advice()) == ["Nothing that could be compared is rounded."]
    json.dumps(found.to_json(), allow_nan=False)


def test_json_and_bound():
    found = debug(float_net(), quant_net(), SAMPLES)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["format"] == "onnxq-debug-1" and data["matched_by"] == "names" and data["samples"] == 3
    assert set(data["tensors"][0]) == {
        "name", "node", "op", "cumulative", "local", "weights", "inputs", "rounding",
    }  # fmt: skip
    assert len(found.below(1000)) == len(found.tensors) and found.below(0) == found.below(None) == []


def test_advice_passes_over_what_only_moves_data():
    def row(name, op, own, **parts):
        return Tensor(name, f"node {name}", op, Error(own, 0.9, 1), Error(own, 0.9, 1), **parts)

    rows = [row("a", "Reshape", 9.0, rounding=Error(9.0, 0.9, 1)), row("b", "Conv", 10.0, inputs=Error(10.1, 0.9, 1))]
    first, second = Debugging("a list", 1, "names", 2, (), rows).advice()
    assert first == "Worst by themselves: node b (Conv) 10.0 dB, mostly by its inputs."
    assert "--exclude 'node b';" in second and "--activations uint16" in second and "gptq" not in second


def test_other_ports_are_refused():
    other = model("(float[n, 8] z) => (float[n, 8] y) { y = Relu(z) }")
    with pytest.raises(InputError, match="the models do not match"):
        debug(float_net(), other, SAMPLES)


def test_an_output_declared_wrong_is_told():
    wrong = float_net()
    del wrong.graph.output[0].type.tensor_type.shape.dim[0]
    found = debug(wrong, float_net(), SAMPLES)
    assert found.tensors and "the declarations differ" in found.notes[0]
