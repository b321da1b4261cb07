"""Every type of activations and weights, end to end: numbers of an own oracle on onnxruntime's two sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq import api
from onnxq.calibration.sources import open_source
from onnxq.context import Context
from onnxq.errors import OptionError, UnsupportedError
from onnxq.facts import Encodings, Feeds
from onnxq.numerics.spec import QTYPES
from onnxq.passbase import run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.gptq import Gptq
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w1": (RNG.standard_normal((6, 4, 1, 1)) * np.logspace(-2, 0, 6).reshape(-1, 1, 1, 1)).astype(np.float32),
    "b1": RNG.standard_normal(6).astype(np.float32),
    "w2": RNG.standard_normal((5, 6, 1, 1)).astype(np.float32),
}
NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,4,3,3] x) => (float[2,5,3,3] y) {
  c = Conv(x, w1, b1) r = Relu(c) y = Conv(r, w2) }"""


def limits(name: str) -> tuple[int, int]:
    info = np.iinfo(name)
    return int(info.min), int(info.max)


def activation_numbers(lo: float, hi: float, name: str, symmetric: bool) -> tuple[np.float32, int]:
    """Scale and zero point of a range, from the definition."""
    qmin, qmax = limits(name)
    lo, hi = min(lo, 0.0), max(hi, 0.0)
    if symmetric:
        middle = 0 if qmin < 0 else (qmax + 1) // 2
        return np.float32(max(-lo, hi) / (qmax - middle)), middle
    scale = np.float32((hi - lo) / (qmax - qmin))
    return scale, int(np.clip(np.rint(qmin - lo / np.float64(scale)), qmin, qmax))


def pair(x: Array, scale: Array, zero: Array, name: str) -> Array:
    """What a pair makes of a value, in float64."""
    q = np.clip(np.rint(x.astype(np.float32) / scale) + zero, *limits(name))
    return (q - zero) * np.asarray(scale, np.float64)


def weight_pair(w: Array, name: str, symmetric: bool, per_channel: bool) -> Array:
    out = np.empty(w.shape)
    for part in range(len(w)) if per_channel else [slice(None)]:
        numbers = activation_numbers(float(w[part].min()), float(w[part].max()), name, symmetric)
        out[part] = pair(w[part], *(np.asarray(n) for n in numbers), name)
    return out


def conv(x: Array, w: Array) -> Array:
    return np.einsum("bchw,mc->bmhw", x, w[:, :, 0, 0])


@pytest.mark.parametrize(("symmetric", "granularity"), [("yes", "per-channel"), ("no", "per-tensor")])
@pytest.mark.parametrize("weights", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("activations", ["uint8", "int8", "uint16", "int16"])
def test_the_numbers_are_those_of_the_definition(
    quantized: Callable[..., Any],
    run_model: Callable[..., list[Array]],
    activations: str,
    weights: str,
    symmetric: str,
    granularity: str,
) -> None:
    same = symmetric == "yes"
    made = quantized(
        NET, WEIGHTS, target="onnx", activations=activations, activations_symmetric=symmetric, weights=weights,
        symmetric=symmetric, granularity=granularity,
    )  # fmt: skip
    assert made.plan["activations"]["x"] == {"type": activations, "symmetric": same}
    assert {n.domain for n in made.proto.graph.node} == {""} and made.proto.opset_import[0].version == 21
    w1, w2 = (weight_pair(WEIGHTS[k], weights, same, granularity == "per-channel") for k in ("w1", "w2"))
    exact = [conv(f["x"], WEIGHTS["w1"]) + WEIGHTS["b1"].reshape(-1, 1, 1) for f in made.feeds]
    hidden = [np.maximum(e, 0) for e in exact]
    last = [conv(h, WEIGHTS["w2"]) for h in hidden]
    numbers = {}
    for name, found in (("x", [f["x"] for f in made.feeds]), ("r", hidden), ("y", last)):
        lo, hi = min(float(v.min()) for v in found), max(float(v.max()) for v in found)
        numbers[name] = activation_numbers(lo, hi, activations, same)
        scale, zero = (made.initializers()[f"{name}_{what}"] for what in ("scale", "zero_point"))
        assert scale == pytest.approx(numbers[name][0], rel=1e-6) and abs(int(zero) - numbers[name][1]) <= 1
        numbers[name] = scale, int(zero)
    feeds = made.feeds[0]
    x = pair(feeds["x"], *numbers["x"], activations)
    r = pair(np.maximum(conv(x, w1) + WEIGHTS["b1"].reshape(-1, 1, 1), 0), *numbers["r"], activations)
    y = pair(conv(r, w2), *numbers["y"], activations)
    # A hidden value that falls on the other side of a rounding moves the output by its weight times its step.
    step = numbers["y"][0] + numbers["r"][0] * np.abs(w2).max() + 2 * np.abs(y).max() * 2**-22
    for true in (False, True):
        (got,) = run_model(made.proto, feeds, true=true)
        assert np.abs(got - y).max() <= 1.01 * step, "true semantics" if true else "default session"


TEXTS = {"Softmax": (0.0, 1.0), "Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
KNOWN = {
    ("Softmax", "uint8", "no"): (1 / 255, 0),
    ("Softmax", "int8", "no"): (1 / 255, -128),
    ("Softmax", "uint16", "no"): (1 / 65535, 0),
    ("Softmax", "int16", "no"): (1 / 65535, -32768),
    ("Softmax", "uint8", "yes"): (1 / 127, 128),
    ("Softmax", "int16", "yes"): (1 / 32767, 0),
    ("Tanh", "uint16", "no"): (2 / 65535, 32768),
    ("Tanh", "int8", "yes"): (1 / 127, 0),
}


@pytest.mark.parametrize("op", TEXTS)
@pytest.mark.parametrize("symmetric", ["yes", "no"])
@pytest.mark.parametrize("activations", ["uint8", "int8", "uint16", "int16", "float8e4m3fn"])
def test_ranges_that_the_op_says(op: str, symmetric: str, activations: str) -> None:
    """Whatever the samples show."""
    if activations == "float8e4m3fn" and symmetric == "no":
        return
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,4,3,3] x) => (float[1,5,3,3] y) {{
      c = Conv(x, w1, b1) a = {op}(c) t = Transpose<perm=[0,1,3,2]>(a) y = Conv(t, w2) }}"""
    _, ctx = encoded(text, target="onnx", activations=activations, activations_symmetric=symmetric)
    found = {v.name: e for v, e in ctx.get(Encodings).activations.items()}
    assert found["a"] is found["t"], "moved data share it"
    if activations == "float8e4m3fn":
        assert found["a"].scale == np.float32(1 / 448) and found["a"].zero_point == 0
        return
    expected = activation_numbers(*TEXTS[op], activations, symmetric == "yes")
    assert (found["a"].scale, found["a"].zero_point) == expected
    known = KNOWN.get((op, activations, symmetric))
    assert known is None or (np.float32(known[0]), known[1]) == expected


def encoded(text: str, **plan: Any) -> tuple[ir.Model, Context]:
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    model, ctx = ir.from_proto(proto), Context()
    samples = [{"x": np.random.default_rng(s).standard_normal((1, 4, 3, 3)).astype(np.float32)} for s in (0, 1)]
    ctx.put(Feeds(open_source(samples, model=model)))
    for step in (MakePlan(**plan), Calibrate(), ResolveAxes(), Encode()):
        run_step(step, model, ctx)
    return model, ctx


def source(opset: int = 17) -> onnx.ModelProto:
    proto = parser.parse_model(NET.replace('"" : 17', f'"" : {opset}'))
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    return proto


def samples() -> list[Mapping[str, Array]]:
    return [{"x": np.random.default_rng(s).standard_normal((2, 4, 3, 3)).astype(np.float32)} for s in range(3)]


# -- com.microsoft ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize(
    ("activations", "weights"), [("uint16", "int8"), ("int16", "int16"), ("uint8", "int4"), ("uint8", "int8")]
)
def test_pairs_of_onnxruntime_below_opset_21(
    run_model: Callable[..., list[Array]], opset: int, activations: str, weights: str
) -> None:
    """The opset stays, the model loads on both sessions and computes what the standard pairs compute."""
    how = {"activations": activations, "weights": weights, "search": False, "rounding": "nearest"}
    old = api.quantize(source(opset), samples(), opset=opset, contrib=True, **how).model
    new = api.quantize(source(opset), samples(), **how).model
    assert {o.domain: o.version for o in old.opset_import}[""] == opset
    onnx.checker.check_model(old, full_check=True)
    types = {i.name: i.data_type for i in old.graph.initializer}
    for node in old.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = onnx.TensorProto.DataType.Name(types[node.input[2]]).lower()
            per_channel = any(a.name == "axis" for a in node.attribute)
            needed = 21 if zero in ("uint16", "int16", "int4") else 13 if per_channel else 10
            assert node.domain == ("com.microsoft" if opset < needed else ""), node
    for true in (False, True):
        got, wanted = (run_model(m, samples()[0], true=true)[0] for m in (old, new))
        assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max() + 1e-6
    assert old.ir_version >= 10 or weights != "int4"


def test_only_if_asked() -> None:
    with pytest.raises(UnsupportedError, match="opset 17; pairs of uint16 exist from opset 21 on"):
        api.quantize(source(), samples(), opset=17, activations="uint16")
    with pytest.raises(OptionError, match=r"target onnx does not know Q/DQ pairs of com\.microsoft: contrib"):
        api.quantize(source(), samples(), target="onnx", opset=17, activations="uint16", contrib=True)
    with pytest.raises(UnsupportedError, match="opset 17; pairs of float8e4m3fn exist from opset 19"):
        api.quantize(source(), samples(), opset=17, weights="float8e4m3fn", contrib=True)


# -- float8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["float8e4m3fn", "float8e5m2"])
@pytest.mark.parametrize("activations", ["uint8", "uint16"])
def test_float8_weights(
    quantized: Callable[..., Any], run_model: Callable[..., list[Array]], activations: str, weights: str
) -> None:
    """They load, and both sessions compute with the numbers that were stored.

    The bias is int32 here as well: onnxruntime makes a float bias int32 while loading, and lets it overflow where the
    scales are as small as those of uint16 and float8e5m2.
    """
    made = quantized(NET, WEIGHTS, activations=activations, weights=weights)
    stored = {t.name: t.data_type for t in made.proto.graph.initializer}
    kind = getattr(onnx.TensorProto, weights.upper())
    assert (
        stored["w1_quantized"] == stored["w1_zero_point"] == kind and stored["b1_quantized"] == onnx.TensorProto.INT32
    )
    assert "runs-in-float" in made.codes() and made.initializers()["w1_scale"].shape == (6,)
    least = np.abs(WEIGHTS["w1"]).max(axis=(1, 2, 3)) / QTYPES[weights].largest
    scales = {k: made.initializers()[f"{k}_scale"] for k in ("w1", "w2")}
    assert (scales["w1"] >= least * (1 - 1e-6)).all()
    assert ("raised-weight-scale" in made.codes()) is not np.allclose(scales["w1"], least, rtol=1e-6)
    w1, w2 = (float8_pair(WEIGHTS[k], scales[k], weights) for k in ("w1", "w2"))
    numbers = {k: [made.initializers()[f"{k}_{what}"] for what in ("scale", "zero_point")] for k in ("x", "r", "y")}
    numbers = {k: [s, z.astype(np.int64)] for k, (s, z) in numbers.items()}
    x = pair(made.feeds[0]["x"], *numbers["x"], activations)
    r = pair(np.maximum(conv(x, w1) + WEIGHTS["b1"].reshape(-1, 1, 1), 0), *numbers["r"], activations)
    y = pair(conv(r, w2), *numbers["y"], activations)
    for true in (False, True):
        (got,) = run_model(made.proto, made.feeds[0], true=true)
        assert np.abs(got - y).max() <= 1.01 * (numbers["y"][0] + numbers["r"][0] * np.abs(w2).max())


def float8_pair(w: Array, scale: Array, name: str) -> Array:
    """Per channel, rounded by hand: 3 or 2 bits behind the leading one."""
    bits, smallest = (3, -6) if name == "float8e4m3fn" else (2, -14)
    scale = scale.reshape(-1, 1, 1, 1)
    v = (w / scale).astype(np.float64)
    power = np.maximum(np.floor(np.log2(np.maximum(np.abs(v), 1e-30))), smallest) - bits
    return np.rint(v / 2**power) * 2**power * scale


def test_float8_activations(quantized: Callable[..., Any], run_model: Callable[..., list[Array]]) -> None:
    """As ONNX defines them; run unoptimised, since onnxruntime 1.32 takes the Relu away in front of a float8 Q."""
    for activations in ("float8e4m3fn", "float8e5m2"):
        made = quantized(NET, WEIGHTS, target="onnx", activations=activations, weights="float8e4m3fn")
        assert made.plan["activations"]["x"] == {"type": activations, "symmetric": True}
        exact, got = (run_model(m, made.feeds[0], optimised=False)[0] for m in (made.float_proto, made.proto))
        assert np.abs(exact - got).max() <= 0.2 * np.abs(exact).max()
        own = got / made.initializers()["y_scale"]
        np.testing.assert_allclose(own.astype(QTYPES[activations].carrier).astype(np.float32), own, rtol=1e-6)


def test_gptq_and_scale_methods_leave_float8_weights() -> None:
    text = NET.replace('"" : 17', '"" : 21').replace("float[2,", "float[1,")
    model, ctx = encoded(text, weights="float8e4m3fn")
    before = dict(ctx.get(Encodings).weights)
    run_step(Gptq(), model, ctx)
    assert ctx.get(Encodings).weights == before
    assert {n.message for n in ctx.report.of("gptq-nearest")} == {
        f"'{w}' is rounded to nearest: GPTQ chooses integers, not float8e4m3fn" for w in ("w1", "w2")
    }
    run_step(Encode(weight_method="mse"), model, ctx)
    assert len(ctx.report.of("weight-method")) == 2
    assert all(e.same(before[edge]) for edge, e in ctx.get(Encodings).weights.items())


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"activations": "float8e4m3fn"}, "ort-cpu does not take float8e4m3fn activations"),
        ({"weights": "float8e5m2", "target": "ascend"}, "ascend does not take float8e5m2 weights"),
        ({"weights": "float8e5m2", "symmetric": "no"}, "float8e5m2 has no zero point other than 0: symmetric: no"),
        (
            {"activations": "float8e5m2", "activations_symmetric": "no", "target": "onnx"},
            "float8e5m2 has no zero point other than 0: activations-symmetric: no",
        ),
        ({"weights": "float8"}, "unknown quantized type 'float8'; did you mean .*float8e5m2"),
    ],
)
def test_what_a_target_lacks_is_refused_by_name(plan: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        encoded(NET.replace('"" : 17', '"" : 21'), **plan)


def test_runs_in_float_is_said_once() -> None:
    text = NET.replace('"" : 17', '"" : 21').replace("float[2,", "float[1,")
    _, ctx = encoded(text, activations="uint16")
    (note,) = ctx.report.of("runs-in-float")
    assert note.message.startswith("2 layers of uint16 activations and int8 weights: onnxruntime has integer kernels")
    assert "0.4 to 0.8 times" in note.message
    _, ctx = encoded(text)
    assert not ctx.report.of("runs-in-float")


def test_written_to_a_file(tmp_path: Path) -> None:
    """16 bits and float8 go through the border as they are."""
    for i, (activations, weights) in enumerate((("uint16", "int16"), ("uint8", "float8e5m2"))):
        out = tmp_path / f"{i}.onnx"
        api.quantize(source(), samples(), output=out, activations=activations, weights=weights, search=False)
        kinds = {onnx.TensorProto.DataType.Name(t.data_type).lower() for t in onnx.load(out).graph.initializer}
        assert {activations, weights} <= kinds
