"""Each cause of a gap shows in onnxruntime for real: both sessions run, and the optimized graph is read."""

import json

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.diagnosis.comparing import compare
from onnxq.diagnosis.gaps import CAUSES, explain
from onnxq.report.compare import to_text
from onnxq.session import Runtime

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RNG = np.random.default_rng(0)
X = "xq = QuantizeLinear(x, xs, xz) xd = DequantizeLinear(xq, xs, xz)"
Y = "yq = QuantizeLinear(m, ys, yz) y = DequantizeLinear(yq, ys, yz)"


def model(text, **arrays):
    out = parser.parse_model(f"{HEAD} g {text}")
    out.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return out


def quantized_weight(weight, axis):
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scale = (np.abs(weight).max(axis=others) / 127).astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    integers = np.rint(weight / scale.reshape(shape)).astype(np.int8)
    return {"wq": integers, "ws": scale, "wz": np.zeros(scale.shape, np.int8)}


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def u8(scale, zero=128):
    return np.float32(scale), np.uint8(zero)


def activations_rounded():
    w = normal(32, 16)
    io = "(float[n, 32] x) => (float[n, 16] y)"
    quant = model(
        f"{io} {{ wd = DequantizeLinear<axis = 1>(wq, ws, wz) y = MatMul(x, wd) }}", **quantized_weight(w, axis=1)
    )
    outliers = np.where(np.arange(32) < 2, 50, 1).astype(np.float32)
    return model(f"{io} {{ y = MatMul(x, w) }}", w=w), quant, {"x": normal(4, 32) * outliers}, ["y"]


def float_bias_cast():
    w, b = normal(16, 32, 1, 1), np.full(16, 0.5, np.float32)
    w[3] *= 1e-8
    io = "(float[1, 32, 3, 3] x) => (float[1, 16, 3, 3] y)"
    quant = model(
        f"{io} {{ {X} wd = DequantizeLinear<axis = 0>(wq, ws, wz) m = Conv(xd, wd, b) {Y} }}",
        **quantized_weight(w, axis=0),
        b=b, xs=np.float32(2 / 65535), xz=np.uint16(0), ys=np.float32(40 / 65535), yz=np.uint16(32768),
    )  # fmt: skip
    feeds = {"x": RNG.uniform(0, 2, size=(1, 32, 3, 3)).astype(np.float32)}
    return model(f"{io} {{ y = Conv(x, w, b) }}", w=w, b=b), quant, feeds, ["m"]


def float_weight_rounded():
    w = normal(16, 32, 1, 1) * np.exp(normal(16, 1, 1, 1))
    io = "(float[1, 32, 3, 3] x) => (float[1, 16, 3, 3] y)"
    xs, ys, zero = np.float32(10 / 65535), np.float32(200 / 65535), np.uint16(32768)
    quant = model(f"{io} {{ {X} m = Conv(xd, w) {Y} }}", w=w, xs=xs, xz=zero, ys=ys, yz=zero)
    return model(f"{io} {{ y = Conv(x, w) }}", w=w), quant, {"x": normal(1, 32, 3, 3)}, ["m"]


def double_pair_removed():
    io = "(float[n, 32] x) => (float[n, 32] y)"
    quant = model(
        f"""{io} {{ m = Tanh(x) aq = QuantizeLinear(m, as, az) ad = DequantizeLinear(aq, as, az)
            bq = QuantizeLinear(ad, bs, bz) bd = DequantizeLinear(bq, bs, bz) y = Exp(bd) }}""",
        **dict(zip(("as", "az"), u8(0.01), strict=True)),
        **dict(zip(("bs", "bz"), u8(0.031), strict=True)),
    )
    return model(f"{io} {{ m = Tanh(x) y = Exp(m) }}"), quant, {"x": normal(8, 32)}, ["bq"]


def weight_axis_ignored():
    w = normal(32, 32) * np.exp(normal(32, 1))
    io = "(float[n, 32] x) => (float[n, 32] y)"
    xs, xz = u8(0.03)
    quant = model(
        f"{io} {{ {X} wd = DequantizeLinear<axis = 0>(wq, ws, wz) y = MatMul(xd, wd) }}",
        **quantized_weight(w, axis=0), xs=xs, xz=xz,
    )  # fmt: skip
    return model(f"{io} {{ y = MatMul(x, w) }}", w=w), quant, {"x": normal(4, 32)}, ["y"]


def bias_scale_ignored():
    w, b = normal(32, 16), 5 * normal(16)
    io = "(float[n, 32] x) => (float[n, 16] y)"
    (xs, xz), (ys, yz), weight = u8(0.03), u8(0.3), quantized_weight(w, axis=1)
    bs = 4 * weight["ws"] * xs
    quant = model(
        f"""{io} {{ {X} wd = DequantizeLinear<axis = 1>(wq, ws, wz) bd = DequantizeLinear<axis = 0>(bq, bs, bz)
            m = Gemm(xd, wd, bd) {Y} }}""",
        **weight, bq=np.rint(b / bs).astype(np.int32), bs=bs, bz=np.zeros(16, np.int32), xs=xs, xz=xz, ys=ys, yz=yz,
    )  # fmt: skip
    return model(f"{io} {{ y = Gemm(x, w, b) }}", w=w, b=b), quant, {"x": normal(4, 32)}, ["m"]


def bias_scale_ignored_conv():
    """Small products of scales: QLinearConv accepts a bias scale 60 % off, and takes the product."""
    ws, bs = np.float32(1e-6 / 0.03), np.float32(1.6e-6)
    wq, bq = RNG.integers(-127, 127, (16, 32, 1, 1)).astype(np.int8), RNG.integers(-30000, 30000, 16).astype(np.int32)
    io = "(float[1, 32, 3, 3] x) => (float[1, 16, 3, 3] y)"
    (xs, xz), (ys, yz) = u8(0.03), u8(0.001)
    quant = model(
        f"""{io} {{ {X} wd = DequantizeLinear(wq, ws, wz) bd = DequantizeLinear(bq, bs, bz)
            m = Conv(xd, wd, bd) {Y} }}""",
        wq=wq, ws=ws, wz=np.int8(0), bq=bq, bs=bs, bz=np.int32(0), xs=xs, xz=xz, ys=ys, yz=yz,
    )  # fmt: skip
    reference = model(f"{io} {{ y = Conv(x, w, b) }}", w=wq * ws, b=(bq * bs).astype(np.float32))
    return reference, quant, {"x": normal(1, 32, 3, 3)}, ["m"]


CASES = {
    "activations-rounded": activations_rounded,
    "float-bias-cast": float_bias_cast,
    "float-weight-rounded": float_weight_rounded,
    "double-pair-removed": double_pair_removed,
    "weight-axis-ignored": weight_axis_ignored,
    "bias-scale-ignored": bias_scale_ignored,
    "bias-scale-ignored ": bias_scale_ignored_conv,
}


def test_each_cause_has_a_case():
    assert {code.strip() for code in CASES} == {cause.code for cause in CAUSES}


@pytest.mark.parametrize("code", CASES)
def test_the_gap_is_real_and_explained(code):
    reference, quantized, feeds, nodes = CASES[code]()
    found = compare(reference, quantized, [feeds], latency=False)
    (output,) = found.outputs
    assert output.gap.sqnr_db < output.sessions["true"].sqnr_db + 10, "onnxruntime's sessions do differ"
    assert [(c.code, list(c.nodes)) for c in output.causes] == [(code.strip(), nodes)]
    (text,) = found.gaps()
    (cause,) = (c for c in CAUSES if c.code == code.strip())
    assert text.startswith("y: onnxruntime's default session ") and cause.why in text and cause.remedy in text
    assert " ".join(text.split()) in " ".join(to_text(found).split())
    data = json.loads(json.dumps(found.to_json()))
    assert data["gaps"] == [text] and data["outputs"][0]["causes"][0]["nodes"] == nodes


def proper(float_bias=False, wide=False):
    """A layer as it should be: nothing to explain."""
    w, b = normal(32, 16), normal(16)
    io = "(float[n, 32] x) => (float[n, 16] y)"
    kind, zero = (np.uint16, 32768) if wide else (np.uint8, 128)
    xs, ys = (np.float32(r / np.iinfo(kind).max) for r in (8, 60))
    weight = quantized_weight(w, axis=1)
    bs = weight["ws"] * xs
    integers = {"bq": np.rint(b / bs).astype(np.int32), "bs": bs, "bz": np.zeros(16, np.int32)}
    bias = "b" if float_bias else "bd"
    before = "" if float_bias else "bd = DequantizeLinear<axis = 0>(bq, bs, bz)"
    quant = model(
        f"{io} {{ {X} wd = DequantizeLinear<axis = 1>(wq, ws, wz) {before} m = Gemm(xd, wd, {bias}) {Y} }}",
        **weight, **({"b": b} if float_bias else integers), xs=xs, xz=kind(zero), ys=ys, yz=kind(zero),
    )  # fmt: skip
    return model(f"{io} {{ y = Gemm(x, w, b) }}", w=w, b=b), quant


@pytest.mark.parametrize("float_bias", [False, True])
def test_a_proper_model_has_no_finding(float_bias):
    reference, quantized = proper(float_bias)
    found = compare(reference, quantized, [{"x": normal(8, 32)}], latency=False)
    assert found.gaps() == [] and found.outputs[0].causes == []
    assert explain(ir.serde.deserialize_model(quantized), None, Runtime()) == {}


def test_only_what_stands_in_front_of_an_output_explains_it():
    w = normal(32, 16)
    io = "(float[n, 32] x) => (float[n, 16] y, float[n, 32] z)"
    reference = model(f"{io} {{ y = MatMul(x, w) z = Relu(x) }}", w=w)
    quantized = model(
        f"{io} {{ wd = DequantizeLinear<axis = 1>(wq, ws, wz) y = MatMul(x, wd) z = Relu(x) }}",
        **quantized_weight(w, axis=1),
    )
    assert list(explain(ir.serde.deserialize_model(quantized), None, Runtime())) == ["y"]
    outliers = np.where(np.arange(32) < 2, 50, 1).astype(np.float32)
    found = compare(reference, quantized, [{"x": normal(4, 32) * outliers}], latency=False)
    assert [len(output.causes) for output in found.outputs] == [1, 0] and len(found.gaps()) == 1


def test_nodes_in_branches_are_found():
    """With its weights in the branch; a fused layer whose weights lie outside does not load."""
    text = """(float[n, 32] x, bool c) => (float[n, 16] y) {
        y = If(c) <then_branch = a () => (float[n, 16] m) { wd = DequantizeLinear<axis = 1>(wq, ws, wz)
                                                            m = MatMul(x, wd) },
                   else_branch = b () => (float[n, 16] k) { k = MatMul(x, w) }> }"""
    w = normal(32, 16)
    quantized = model(text, w=w, **quantized_weight(w, axis=1))
    outside = quantized.graph.initializer
    inside = quantized.graph.node[0].attribute[0].g.initializer
    for tensor in [t for t in outside if t.name != "w"]:
        inside.append(tensor)
        outside.remove(tensor)
    (finding,) = explain(ir.serde.deserialize_model(quantized), None, Runtime())["y"]
    assert (finding.code, finding.nodes) == ("activations-rounded", ("m",))


def test_a_gap_without_a_known_cause_is_still_a_finding(monkeypatch):
    monkeypatch.setattr("onnxq.diagnosis.gaps.CAUSES", ())
    reference, quantized, feeds, _ = weight_axis_ignored()
    (text,) = compare(reference, quantized, [feeds], latency=False).gaps()
    assert "dB worse than what the file says: no cause is known" in text
