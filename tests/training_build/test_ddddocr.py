"""A published INT8 model learns: the 21 Convs of ddddocr's older text recognizer, which compute on integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxq
from onnxq.passes.dequantize import Dequantize
from tests.training_build.conftest import distance, round_trip, run, teacher

pytestmark = [pytest.mark.training, pytest.mark.real]

INPUT, FEATURES = "input1", "208"


def conv_part(model: ModelProto) -> ModelProto:
    """What the features in front of the LSTM are made by."""
    needed, kept = {FEATURES}, []
    for node in reversed(model.graph.node):
        if needed & {*node.output}:
            kept.append(node)
            needed |= {*node.input}
    graph = helper.make_graph(
        kept[::-1],
        "conv part",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", 1, 64, "w"])],
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["n", 64, 8, "v"])],
        [tensor for tensor in model.graph.initializer if tensor.name in needed],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=model.ir_version)


def pictures(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).random((count, 1, 64, 32)).astype(np.float32)


def test_a_published_integer_model(build: Any, real_model: Callable[[str], Path]) -> None:
    model = conv_part(onnx.load(real_model("ddddocr-old")))
    assert [node.op_type for node in model.graph.node].count("ConvInteger") == 21
    dequantize = onnxq.Pipeline(steps=(Dequantize(),))
    answers = teacher(onnxq.run(dequantize, model).model, 0.5)
    (x, target), (new, wanted) = ((p, run(answers, p)) for p in (pictures(0, 16), pictures(1, 8)))

    trip = round_trip(build, model, x, target, rate=5e-4, batch=1, threads=2)
    assert trip.outcome.ops.count("FakeQuantGrad") == 21
    assert trip.outcome.fell() > 3
    before = distance(model, new, wanted)
    assert distance(trip.after, new, wanted) < before / 2
    assert distance(trip.after, new, wanted, true_semantics=True) < before / 2
    ops = [node.op_type for node in trip.after.graph.node]
    assert ops.count("DynamicQuantizeLinear") == 21 and ops.count("DequantizeLinear") == 42

    learned = onnxq.run(dequantize, trip.after).model
    channels = onnxq.quantize(learned, [{INPUT: picture[None]} for picture in x]).model
    for true_semantics in (False, True):
        assert distance(channels, new, wanted, true_semantics) < before / 2
    fixed = {tensor.name: numpy_helper.to_array(tensor) for tensor in channels.graph.initializer}
    convs = [node for node in channels.graph.node if node.op_type == "Conv"]
    makers = {node.output[0]: node for node in channels.graph.node}
    for conv in convs:
        integers, scale = (fixed[name] for name in makers[conv.input[1]].input[:2])
        assert (integers.dtype, scale.shape) == (np.int8, integers.shape[:1])
    assert len(convs) == 21
