"""from-trainable: without training nothing changed; trained parameters end up in the integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxq
from onnxq.errors import DataError, InputError
from onnxq.numerics.bias import LARGEST
from onnxq.passbase import Context
from onnxq.passes.from_trainable import FromTrainable
from onnxq.passes.to_trainable import ToTrainable
from onnxq.trainable.record import KEY
from tests.trainable.layers import OPS, arrays, finished, layer, pair, same_model


def there_and_back(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    trainable = ToTrainable(**options).apply(model)
    onnx.checker.check_model(trainable, full_check=True)
    back = FromTrainable().apply(trainable)
    onnx.checker.check_model(back, full_check=True)
    assert not [p for p in back.metadata_props if p.key == KEY]
    assert not [p for n in back.graph.node for p in n.metadata_props if p.key == KEY]
    return back


@pytest.mark.parametrize("per_channel", [True, False], ids=["per-channel", "per-tensor"])
@pytest.mark.parametrize("opset", [13, 18, 19, 21])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("op", OPS)
def test_without_training_nothing_changed(op: str, weight: str, opset: int, per_channel: bool) -> None:
    for activation in ("int8", "uint8"):
        model = layer(op, weight, activation, per_channel=per_channel, opset=opset)
        same_model(model, there_and_back(model))


@pytest.mark.parametrize("zero", ["same", "mixed", "absent"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("opset", [13, 25])
@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_zero_points_come_back(op: str, opset: int, per_channel: bool, zero: str) -> None:
    for weight in ("int8", "uint8"):
        model = layer(op, weight, per_channel=per_channel, zero=zero, opset=opset)
        same_model(model, there_and_back(model))


def test_biases_of_more_than_24_bits_come_back() -> None:
    model = layer("Conv", bias=2**31 - 1)
    same_model(model, there_and_back(model))


def narrow(dtype: str, block: int = 0, activation: bool = False) -> onnx.ModelProto:
    """A Gemm with a weight in 4 or 2 bits, perhaps in blocks with a short last one."""
    rng = np.random.default_rng(0)
    kind = getattr(TensorProto, dtype.upper())
    low, high = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}[dtype]
    shape = [7, 11] if not block else [7, -(-11 // block)]
    scales = [7] if not block else shape
    count = int(np.prod(scales))
    zeros = [0 if low else high // 2 + i % 2 for i in range(count)]
    constants: dict[str, Any] = {
        "w": helper.make_tensor("w", kind, [7, 11], rng.integers(low, high + 1, 77).tolist()),
        "sw": rng.uniform(0.01, 0.1, scales).astype(np.float32),
        "zw": helper.make_tensor("zw", kind, scales, zeros),
        "sx": np.float32(0.5), "zx": helper.make_tensor("zx", kind, [], [0 if low else high // 2]),
    }  # fmt: skip
    along = {"axis": 1, "block_size": block} if block else {"axis": 0}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["w_dq"], "w_DQ", **along),
        helper.make_node("Gemm", ["x_dq" if activation else "x", "w_dq"], ["y"], "gemm", transB=1),
    ]
    front = pair("x", "sx", "zx") if activation else []
    constants = constants if activation else {k: v for k, v in constants.items() if k not in ("sx", "zx")}
    return finished([*front, *nodes], constants, [3, 11], [3, 7], 25 if "2" in dtype else 21)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("block", [0, 4])
def test_narrow_types_come_back(dtype: str, block: int) -> None:
    model = narrow(dtype, block, activation=True)
    back = there_and_back(model)
    same_model(model, back)
    assert {t.name: t.data_type for t in back.graph.initializer}["w"] == getattr(TensorProto, dtype.upper())


def shared() -> onnx.ModelProto:
    """A value with two pairs of its own for two readers, and a third DequantizeLinear that is a graph output."""
    nodes = pair("x", "s", "z")
    nodes += [helper.make_node(n.op_type, [f"{i}" for i in n.input], [f"{n.output[0]}2"], f"{n.name}2") for n in nodes]
    nodes[3].input[0] = nodes[2].output[0]
    nodes.append(helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["y2"], "third"))
    nodes.append(helper.make_node("Abs", ["x_dq"], ["a"], "abs"))
    nodes.append(helper.make_node("Add", ["a", "x_dq2"], ["y"], "add"))
    model = finished(nodes, {"s": np.float32(0.1), "z": np.uint8(100)}, [3], [3], 19)
    model.graph.output.append(helper.make_tensor_value_info("y2", TensorProto.FLOAT, [3]))
    return model


def test_merged_pairs_are_several_again(run_model: Callable[..., Any]) -> None:
    model = shared()
    trainable = ToTrainable().apply(model)
    ops = [n.op_type for n in trainable.graph.node]
    assert ops.count("QuantizeLinear") == ops.count("DequantizeLinear") == 1
    back = FromTrainable().apply(trainable)
    assert sorted(n.name for n in back.graph.node) == sorted(n.name for n in model.graph.node)
    assert [v.name for v in back.graph.output] == ["y", "y2"]
    for node in model.graph.node:
        (other,) = [n for n in back.graph.node if n.name == node.name]
        assert node.input[0] == other.input[0] and len(node.input) == len(other.input), node.name
        assert list(node.attribute) == list(other.attribute), node.name
    feeds = {"x": np.linspace(-9, 9, 3, dtype=np.float32)}
    for a, b, c in zip(*(run_model(m, feeds, optimised=False) for m in (model, trainable, back)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def trained(model: onnx.ModelProto, path: Path, **change: Any) -> onnx.ModelProto:
    """The model behind a checkpoint in which each parameter is what ``change`` makes of it."""
    trainable = ToTrainable().apply(model)
    values = {k: v for k, v in arrays(trainable).items() if k in ("w_float", "b_float")}
    np.savez(path, **{k: change.get(k, lambda v: v)(v) for k, v in values.items()})
    return FromTrainable(checkpoint=str(path)).apply(trainable)


@pytest.mark.parametrize("op", OPS)
def test_trained_parameters_are_rounded_like_the_pairs_do(op: str, tmp_path: Path) -> None:
    model = layer(op)
    before, axis = arrays(model), OPS[op][3]
    along = [-1 if i == axis % len(OPS[op][2]) else 1 for i in range(len(OPS[op][2]))]
    step = before["sw"].reshape(along)
    noise = np.random.default_rng(3).uniform(-40, 40, OPS[op][2]).astype(np.float32) * step
    back = trained(model, tmp_path / "c.npz", w_float=lambda w: w + noise, b_float=lambda b: b * np.float32(1.5))
    after = arrays(back)
    master = before["w"].astype(np.float32) * step + noise
    np.testing.assert_array_equal(after["w"], np.clip(np.rint(master / step), -128, 127).astype(np.int8))
    for name in ("sw", "zw", "sx", "zy"):
        np.testing.assert_array_equal(after[name], before[name])
    if op != "MatMul":
        b = np.float32(1.5) * (before["b"] * before["sb"].astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(after["b"], np.rint(b.astype(np.float64) / before["sb"]).astype(np.int32))
    assert [n.op_type for n in back.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_bias_that_outgrew_int32_makes_its_weights_coarser(per_channel: bool, tmp_path: Path) -> None:
    model = layer("Conv", per_channel=per_channel)
    before, ctx = arrays(model), Context()
    limit = 2.0**31 * before["sb"].reshape(-1)[0]
    grown = np.float32(3 * limit)
    trainable = ToTrainable().apply(model)
    values = arrays(trainable)
    np.savez(tmp_path / "c", w_float=values["w_float"], b_float=np.r_[grown, values["b_float"][1:]])
    back = arrays(FromTrainable(checkpoint=str(tmp_path / "c.npz")).apply(trainable, ctx=ctx))
    (note,) = ctx.report.of("raised-weight-scale")
    assert note.place.node == "b_DQ" and note.numbers["channels"] == 1
    np.testing.assert_array_equal(back["sb"], np.float32(0.05) * back["sw"])
    first = back["sb"].reshape(-1)[0]
    assert abs(int(back["b"][0])) <= LARGEST + 256 and abs(back["b"][0] * float(first) / grown - 1) < 1e-6
    if per_channel:
        np.testing.assert_array_equal(back["sw"][1:], before["sw"][1:])
        np.testing.assert_array_equal(back["w"][1:], before["w"][1:])
    s = back["sw"].reshape(-1, 1, 1, 1) if per_channel else back["sw"]
    np.testing.assert_array_equal(back["w"], np.rint(values["w_float"] / s).astype(np.int8))


def test_a_bias_with_a_scale_of_its_own_keeps_one(tmp_path: Path) -> None:
    model = layer("Conv")
    for tensor in model.graph.initializer:
        if tensor.name == "sb":
            tensor.CopyFrom(onnx.numpy_helper.from_array(arrays(model)["sb"] * np.float32(1.25), "sb"))
    same_model(model, there_and_back(model))
    back, ctx = ToTrainable().apply(model), Context()
    values = arrays(back)
    np.savez(tmp_path / "c", w_float=values["w_float"], b_float=values["b_float"] + np.float32(1e7))
    after = arrays(FromTrainable(checkpoint=str(tmp_path / "c.npz")).apply(back, ctx=ctx))
    assert ctx.report.of("own-bias-scale") and not ctx.report.of("raised-weight-scale")
    np.testing.assert_allclose(after["b"] * after["sb"].astype(np.float64), values["b_float"] + 1e7, rtol=1e-6)


def test_form_fake_quant(run_model: Callable[..., Any]) -> None:
    model = layer("Conv")
    back = FromTrainable(form="fake-quant").apply(ToTrainable().apply(model))
    assert [n.op_type for n in back.graph.node].count("QuantizeLinear") == 3
    assert arrays(back)["w_float"].dtype == np.float32
    feeds = {"x": np.random.default_rng(0).standard_normal(OPS["Conv"][1]).astype(np.float32)}
    a, b = (run_model(m, feeds, optimised=False)[0] for m in (model, back))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", OPS)
def test_pairs_without_records_are_folded_too(op: str, run_model: Callable[..., Any]) -> None:
    trainable = ToTrainable().apply(layer(op))
    del trainable.metadata_props[:]
    for node in trainable.graph.node:
        del node.metadata_props[:]
    back = FromTrainable().apply(trainable)
    ops = [n.op_type for n in back.graph.node]
    assert not {"Div", "Mul"} & set(ops) - ({"Mul"} if op == "ConvTranspose" else set())
    (dq,) = [n for n in back.graph.node if n.name == "w_DQ"]
    assert {a.name: a.i for a in dq.attribute} == {"axis": OPS[op][3] % len(OPS[op][2])}
    np.testing.assert_array_equal(arrays(back)[dq.input[0]], arrays(layer(op))["w"])
    feeds = {"x": np.random.default_rng(0).standard_normal(OPS[op][1]).astype(np.float32)}
    a, b = (run_model(m, feeds, optimised=False)[0] for m in (trainable, back))
    np.testing.assert_array_equal(a, b)


def test_weight_bits_stay_in_range(tmp_path: Path) -> None:
    model = layer("Conv", bias=10)
    trainable = ToTrainable(weight_bits=7).apply(model)
    back = arrays(FromTrainable().apply(trainable))
    np.testing.assert_array_equal(back["w"], np.clip(arrays(model)["w"], -64, 63))


W = np.zeros((7, 5, 3, 3), np.float32)
B = np.zeros(7, np.float32)


@pytest.mark.parametrize(
    ("arrays_", "words"),
    [
        ({"w_float": W}, "lacks 1 of 2 parameters: 'b_float'; partial=true"),
        ({"w_float": W, "b_float": B, "w_flot": W}, "'w_flot', which is no constant of this model; did you mean w_"),
        ({"w_float": W[:1], "b_float": B}, "'w_float' has shape [1, 5, 3, 3], the model's has [7, 5, 3, 3]"),
        ({"w_float": W.astype(np.float64), "b_float": B}, "'w_float' is float64, the model's is float32"),
        ({"w_float": W * np.nan, "b_float": B}, "'w_float' has 315 values not finite"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit(arrays_: dict[str, Any], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "c", **arrays_)
    with pytest.raises(DataError) as error:
        FromTrainable(checkpoint=str(tmp_path / "c.npz")).apply(ToTrainable().apply(layer("Conv")))
    assert words in str(error.value)


def test_a_part_of_the_parameters(tmp_path: Path) -> None:
    np.savez(tmp_path / "c", b_float=B)
    model = layer("Conv")
    back = arrays(FromTrainable(checkpoint=str(tmp_path / "c.npz"), partial=True).apply(ToTrainable().apply(model)))
    np.testing.assert_array_equal(back["w"], arrays(model)["w"])
    assert not back["b"].any()


@pytest.mark.parametrize("content", [None, b"no archive", b"PK\x03\x04 cut off"])
def test_no_checkpoint(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "c.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read checkpoint .*c\.npz"):
        FromTrainable(checkpoint=str(tmp_path / "c.npz")).apply(layer("Conv"))


def test_a_damaged_record() -> None:
    model = ToTrainable().apply(layer("Conv"))
    for entry in model.metadata_props:
        entry.value = "{"
    with pytest.raises(InputError, match=KEY):
        FromTrainable().apply(model)


def test_a_model_that_was_never_trainable_stays(run_passes: Callable[..., Any]) -> None:
    assert not run_passes(layer("Conv"), FromTrainable()).changed


def test_a_network_of_the_quantizer_comes_back() -> None:
    folder = Path(__file__).resolve().parent.parent.parent / "models" / "lenet"
    made = onnxq.quantize(
        onnx.load(folder / "lenet.onnx"), str(folder / "calibration.npz"), rounding="nearest", search=False
    )
    same_model(made.model, there_and_back(made.model))
