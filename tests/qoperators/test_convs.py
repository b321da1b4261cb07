"""QLinearConv and ConvInteger against their Q/DQ forms, both in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq
from tests.qoperators.graphs import Agree, agreement, draw, model, scales

LINEAR = "y = QLinearConv<pads=[1,1,1,1]>(x, sx, zx, w, sw, zw, sy, zy, b)"


@pytest.fixture
def agree(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> Agree:
    return agreement(run_passes, run_model)


def linear(
    seed: int = 0, x_type: Any = np.uint8, w_type: Any = np.int8, per_channel: bool = True, group: int = 1
) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    channels = 4 * group
    sx, sw = scales(rng, None, 0.02), scales(rng, channels if per_channel else None)
    zero = rng.integers(-9, 9) if x_type == np.int8 else rng.integers(100, 150)
    constants = {
        "sx": sx,
        "zx": np.asarray(zero, x_type),
        "w": draw(rng, (channels, 3, 3, 3), w_type),
        "sw": sw,
        "zw": np.full(sw.shape, 128 if w_type == np.uint8 else 0, w_type),
        "sy": np.float32(40 * float(sx) * float(sw.max()) * 30),
        "zy": np.asarray(0 if x_type == np.int8 else 128, x_type),
        "b": rng.integers(-20000, 20000, channels).astype(np.int32),
    }
    return {"x": draw(rng, (2, 3 * group, 8, 8), x_type)}, constants


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_qlinear_conv_is_a_conv_between_pairs(agree: Agree, data: st.DataObject) -> None:
    pairs = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]
    types = data.draw(st.sampled_from(pairs))
    per_channel, group = data.draw(st.booleans()), data.draw(st.sampled_from([1, 2]))
    feeds, constants = linear(data.draw(st.integers(0, 99)), *types, per_channel, group)
    node = LINEAR.replace("pads", f"group={group}, pads")
    made = agree(model(node, feeds, constants, np.dtype(types[0]).name, 4), feeds, 1, 0.01)
    assert sorted(made.ops()) == ["Conv", *["DequantizeLinear"] * 3, "QuantizeLinear"]
    stored = made.initializers()
    product = constants["sx"] * constants["sw"]
    bias = next(n for n in made.proto.graph.node if n.input[0] == "b")
    np.testing.assert_array_equal(stored[bias.input[1]], product)
    assert not stored[bias.input[2]].any() and stored[bias.input[2]].dtype == np.int32
    axes = {n.input[0]: [a.i for a in n.attribute if a.name == "axis"] for n in made.proto.graph.node}
    assert axes["w"] == axes["b"] == ([0] if per_channel else [])


def test_names_stay(agree: Agree) -> None:
    feeds, constants = linear()
    before = model(LINEAR, feeds, constants, "uint8", 4)
    before.graph.node[0].name = "conv1"
    made = agree(before, feeds, 1, 0.01)
    assert made.node("Conv").name == "conv1" and made.node("QuantizeLinear").output[0] == "y"


def test_depthwise_with_strides_and_auto_pad(agree: Agree) -> None:
    rng = np.random.default_rng(3)
    feeds, constants = linear()
    feeds["x"], constants["w"] = draw(rng, (1, 4, 9, 9), np.uint8), draw(rng, (4, 1, 3, 3), np.int8)
    node = 'y = QLinearConv<group=4, strides=[2,2], auto_pad="SAME_UPPER">(x, sx, zx, w, sw, zw, sy, zy, b)'
    made = agree(model(node, feeds, constants, "uint8", 4), feeds, 1, 0.01)
    assert {a.name for a in made.node("Conv").attribute} == {"group", "strides", "auto_pad"}


@pytest.mark.parametrize("shape", [(1,), ()])
def test_single_parameters_become_scalars(agree: Agree, shape: tuple[int, ...]) -> None:
    feeds, constants = linear(per_channel=False)
    for name in ("sx", "zx", "sw", "zw", "sy", "zy"):
        constants[name] = np.asarray(constants[name]).reshape(shape)
    made = agree(model(LINEAR, feeds, constants, "uint8", 4), feeds, 1, 0.01)
    kept = made.initializers()
    pairs = [n for n in made.proto.graph.node if "Linear" in n.op_type]
    assert all(kept[name].shape == () for n in pairs for name in n.input[1:])


def test_one_zero_point_for_many_scales_is_repeated(agree: Agree) -> None:
    feeds, constants = linear(w_type=np.uint8)
    constants["zw"] = np.array(128, np.uint8)
    made = agree(model(LINEAR, feeds, constants, "uint8", 4), feeds, 1, 0.01)
    weight = next(n for n in made.proto.graph.node if n.input[0] == "w")
    assert made.initializers()[weight.input[2]].tolist() == [128] * 4


def test_computed_scales(agree: Agree) -> None:
    feeds, constants = linear()
    feeds["sx"] = np.asarray(constants.pop("sx"))
    agree(model(LINEAR, feeds, constants, "uint8", 4), feeds, 1, 0.01)


def test_weight_and_bias_of_two_inputs_are_split(agree: Agree) -> None:
    feeds, constants = linear()
    feeds["x2"] = feeds["x"][::-1].copy()
    constants["sx2"] = np.float32(constants["sx"] * 3)
    text = f"{LINEAR.replace('y =', 'a =')} b2 = {LINEAR[4:].replace('(x, sx', '(x2, sx2')} y = Concat<axis=0>(a, b2)"
    made = agree(model(text, feeds, constants, "uint8", 4), feeds, 1, 0.01)
    assert made.codes().count("weight-copied") == 1  # the bias: both read the weight with the same scales
    biases = [i.input[2] for i in made.proto.graph.node if i.op_type == "Conv"]
    sources = {n.output[0]: n.input[0] for n in made.proto.graph.node}
    assert len({sources[name] for name in biases}) == 2


def test_per_channel_below_opset_13_uses_the_other_domain(agree: Agree) -> None:
    feeds, constants = linear()
    made = agree(model(LINEAR, feeds, constants, "uint8", 4, opset=12), feeds, 1, 0.01)
    assert [(n.domain, n.op_type) for n in made.proto.graph.node if n.domain] == [
        ("com.microsoft", "DequantizeLinear")
    ] * 2
    assert "contrib-pairs" in made.codes()


def test_channels_last(agree: Agree) -> None:
    feeds, constants = linear()
    feeds["x"] = np.ascontiguousarray(feeds["x"].transpose(0, 2, 3, 1))
    node = LINEAR.replace("QLinearConv<", "com.microsoft.QLinearConv<channels_last=1, ")
    made = agree(model(node, feeds, constants, "uint8", 4), feeds, 1, 0.01)
    assert made.ops().count("Transpose") == 2
    assert not any(n.domain for n in made.proto.graph.node) and len(made.proto.opset_import) == 1


def dynamic(weights: Any = np.uint8, scale_shape: tuple[int, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(1)
    constants = {
        "w": draw(rng, (4, 3, 3, 3), weights),
        "zw": np.asarray(120 if weights == np.uint8 else 0, weights),
        "sw": scales(rng, 4).reshape(scale_shape) if scale_shape else scales(rng, None),
        "b": rng.normal(size=4).astype(np.float32),
        "shape": np.array([1, -1, 1, 1]),
    }
    return {"x": rng.normal(size=(2, 3, 8, 8)).astype(np.float32)}, constants


HEAD = "q, s, z = DynamicQuantizeLinear(x) acc = ConvInteger<pads=[1,1,1,1]>(q, w, z, zw) f = Cast<to=1>(acc)"


@pytest.mark.parametrize(
    "tail",
    [
        "p = Mul(s, sw) y = Mul(f, p)",
        "p = Mul(sw, s) y = Mul(p, f)",
        "m = Mul(f, s) y = Mul(m, sw)",
        "m = Mul(sw, f) y = Mul(s, m)",
        "p = Mul(s, sw) m = Mul(f, p) r = Reshape(b, shape) y = Add(m, r)",
    ],
)
@pytest.mark.parametrize("shape", [(), (4, 1, 1), (1, 4, 1, 1)])
def test_scales_behind_conv_integer_move_into_pairs(agree: Agree, tail: str, shape: tuple[int, ...]) -> None:
    feeds, constants = dynamic(scale_shape=shape)
    made = agree(model(f"{HEAD} {tail}", feeds, constants, "float32", 4), feeds)
    assert sorted(made.ops()) == ["Conv", "DequantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"]
    assert len(made.node("Conv").input) == (3 if "Add" in tail else 2)


def test_other_adds_stay_behind(agree: Agree) -> None:
    feeds, constants = dynamic()
    constants["b"] = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32)
    made = agree(model(f"{HEAD} p = Mul(s, sw) m = Mul(f, p) y = Add(m, b)", feeds, constants, "float32", 4), feeds)
    assert made.ops()[-2:] == ["Conv", "Add"]


def test_int32_bias_in_front_of_the_cast(agree: Agree) -> None:
    feeds, constants = dynamic(scale_shape=(1, 4, 1, 1))
    constants["b"] = np.array([5000, -3000, 70, 0], np.int32).reshape(4, 1, 1)
    text = f"{HEAD} p = Mul(s, sw) y = Mul(f, p)".replace("f = Cast<to=1>(acc)", "o = Add(acc, b) f = Cast<to=1>(o)")
    made = agree(model(text, feeds, constants, "float32", 4), feeds)
    assert len(made.node("Conv").input) == 3 and made.ops().count("DequantizeLinear") == 3


def test_bias_that_was_rounded_at_run_time(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    feeds, constants = dynamic()
    head = HEAD.replace("f = Cast<to=1>(acc)", "")
    bias = "u = Mul(s, sw) d = Div(b, u) e = Floor(d) i = Cast<to=6>(e) r = Reshape(i, shape)"
    text = f"{head} {bias} o = Add(acc, r) f = Cast<to=1>(o) p = Mul(s, sw) y = Mul(f, p)"
    before = model(text, feeds, constants, "float32", 4)
    made = run_passes(before, QoperatorToQdq())
    assert sorted(made.ops()) == ["Conv", "DequantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"]
    assert made.codes() == ["bias-not-rounded", "raised"]
    step = float(constants["sw"]) * 8 / 255  # the input spans less than 8
    off = np.abs(run_model(before, feeds)[0] - run_model(made.proto, feeds, true=True)[0])
    assert off.max() <= step


@pytest.mark.parametrize("weights", [np.uint8, np.int8])
def test_sums_without_scales_stay_integers(agree: Agree, weights: Any) -> None:
    feeds, constants = linear(w_type=weights)
    constants = {name: constants[name] for name in ("w", "zx", "zw")}
    constants["zw"] = constants["zw"][0]
    made = agree(model("y = ConvInteger<pads=[1,1,1,1]>(x, w, zx, zw)", feeds, constants, "int32", 4), feeds)
    assert made.ops()[-2:] == ["Conv", "Cast"]


def test_long_sums_without_scales_stay(run_passes: Callable[..., Any]) -> None:
    feeds = {"x": np.full((1, 600, 1, 1), 255, np.uint8)}
    constants = {"w": np.full((1, 600, 1, 1), 127, np.int8)}
    before = model("y = ConvInteger(x, w)", feeds, constants, "int32", 4)
    made = run_passes(before, QoperatorToQdq())
    assert not made.changed and made.ops() == ["ConvInteger"] and made.codes() == ["not-raised"]
    (note,) = made.ctx.report.notes
    assert str(255 * 127 * 600) in note.message
