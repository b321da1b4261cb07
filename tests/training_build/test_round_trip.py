"""An INT8 model becomes trainable, learns another network's answers in the training build, and is INT8 again.

The teacher is the float model with every weight and bias moved by half of itself; its answers are the target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime import quantization as ortq

import onnxq
from tests.training_build.conftest import Trip, distance, round_trip, run, teacher

pytestmark = pytest.mark.training

Array = np.ndarray[Any, np.dtype[Any]]


def network(nodes: list[Any], weights: dict[str, Array], x: list[int], y: list[int]) -> ModelProto:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", *s]) for n, s in (("x", x), ("y", y))]
    fixed = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(rng: np.random.Generator, *shape: int) -> Array:
    """A weight (with fan-in behind the first axis) or a bias."""
    spread = 1.4 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def residual() -> ModelProto:
    """Four Convs, one of them strided and one with groups, an Add around two of them, a pooled Gemm head."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], "grouped", pads=[1] * 4, group=4),
        node("Relu", ["c2"], ["r2"]),
        node("Conv", ["r2", "w3", "b3"], ["c3"], "third", pads=[1] * 4),
        node("Add", ["c3", "r1"], ["sum"], "residual"),
        node("Conv", ["sum", "w4", "b4"], ["c4"], "strided", strides=[2, 2]),
        node("Relu", ["c4"], ["r4"]),
        node("GlobalAveragePool", ["r4"], ["pool"], "pool"),
        node("Flatten", ["pool"], ["flat"], "flat"),
        node("Gemm", ["flat", "w5", "b5"], ["y"], "head", transB=1),
    ]
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 2, 3, 3), "w3": (8, 8, 3, 3), "w4": (12, 8, 2, 2), "w5": (5, 12)}
    weights = {name: drawn(rng, *shape) for name, shape in shapes.items()}
    weights |= {f"b{i}": drawn(rng, len(weights[f"w{i}"])) for i in range(1, 6)}
    return network(nodes, weights, [3, 8, 8], [5])


def decades() -> ModelProto:
    """Conv, ConvTranspose and Gemm whose output channels spread over four decades."""
    rng = np.random.default_rng(1)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv", strides=[2, 2], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("ConvTranspose", ["r1", "w2", "b2"], ["c2"], "transposed", strides=[2, 2]),
        node("Relu", ["c2"], ["r2"]),
        node("Flatten", ["r2"], ["flat"]),
        node("Gemm", ["flat", "w3", "b3"], ["y"], "head"),
    ]
    spread = np.logspace(-4, 0, 8, dtype=np.float32)
    weights = {
        "w1": drawn(rng, 8, 3, 3, 3) * spread[:, None, None, None],
        "b1": drawn(rng, 8) * spread,
        "w2": drawn(rng, 8, 8, 2, 2) * spread[:, None, None],
        "b2": drawn(rng, 8) * spread,
        "w3": drawn(rng, 8, 8 * 8 * 8).T * spread,
        "b3": drawn(rng, 8) * spread,
    }
    return network(nodes, weights, [3, 8, 8], [8])


def images(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


class Samples(ortq.CalibrationDataReader):
    def __init__(self, x: Array) -> None:
        self._feeds = iter([{"x": part} for part in np.split(x, 8)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def check(trip: Trip, x: Array, target: Array) -> None:
    """It learned, the file it became shows it on new images, and its integers are as before but for their values."""
    assert trip.outcome.fell() > 3
    assert {"FakeQuant", "FakeQuantGrad"} <= set(trip.outcome.ops)
    before = distance(trip.before, x, target)
    for true_semantics in (False, True):
        assert distance(trip.after, x, target, true_semantics) < before / 3


def weights(model: ModelProto) -> dict[str, tuple[Array, Array]]:
    """Stored integers of rank 2 and more with their scales, by the name of the integers."""
    fixed = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    reads = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in fixed]
    return {n.input[0]: (fixed[n.input[0]], fixed[n.input[1]]) for n in reads if fixed[n.input[0]].ndim > 1}


@pytest.mark.parametrize(
    ("activations", "weight_type", "per_channel"),
    [("QUInt8", "QInt8", True), ("QInt8", "QInt8", True), ("QUInt8", "QUInt8", False)],
)
def test_an_integer_model(build: Any, tmp_path: Path, activations: str, weight_type: str, per_channel: bool) -> None:
    float_model, x, new = residual(), images(0, 256), images(9, 256)
    onnx.save(float_model, tmp_path / "float.onnx")
    ortq.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "int8.onnx",
        Samples(x),
        quant_format=ortq.QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=ortq.QuantType[activations],
        weight_type=ortq.QuantType[weight_type],
    )
    model = onnx.load(tmp_path / "int8.onnx")
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("QLinearConv") == 4 and {"QLinearAdd", "QLinearGlobalAveragePool", "QGemm"} < set(ops)
    untouched = build.train(model, [], x, run(model, x))
    assert (untouched.stage, "unique DequantizeLinear" in untouched.error) == ("artifacts", True)

    answers = teacher(float_model, 0.5)
    trip = round_trip(build, model, x, run(answers, x), rate=0.003)
    check(trip, new, run(answers, new))
    found = weights(trip.after)
    assert len(found) == 5
    for integers, scale in found.values():
        assert integers.dtype == {"QInt8": np.int8, "QUInt8": np.uint8}[weight_type]
        assert scale.shape == (integers.shape[:1] if per_channel else ())


def test_four_decades(build: Any) -> None:
    float_model, x, new = decades(), images(0, 256), images(9, 256)
    model = onnxq.quantize(float_model, [{"x": x}], target="onnx").model
    answers = teacher(float_model, 0.5)
    trip = round_trip(build, model, x, run(answers, x), rate=0.001)
    check(trip, new, run(answers, new))
    ops = [node.op_type for node in trip.after.graph.node]
    assert ops == [node.op_type for node in model.graph.node]
    before, after = weights(model), weights(trip.after)
    assert before.keys() == after.keys()
    assert len(after) == 3
    for name, (integers, scale) in after.items():
        np.testing.assert_array_equal(scale, before[name][1])
        assert scale.max() / scale.min() > 5000
        assert integers.dtype == np.int8
        assert (integers != before[name][0]).mean() > 0.2


def test_nothing_changes_without_training(build: Any) -> None:
    model = onnxq.quantize(decades(), [{"x": images(0, 64)}], target="onnx").model
    trip = round_trip(build, model, images(0, 16), np.zeros((16, 8), np.float32), steps=1, rate=0.0)
    for name, (integers, scale) in weights(model).items():
        np.testing.assert_array_equal(weights(trip.after)[name][0], integers)
        np.testing.assert_array_equal(weights(trip.after)[name][1], scale)
    x = images(9, 64)
    np.testing.assert_array_equal(run(trip.after, x, true_semantics=True), run(model, x, true_semantics=True))
    np.testing.assert_allclose(run(trip.trainable, x), run(model, x, true_semantics=True), atol=1e-6)
