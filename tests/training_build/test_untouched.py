"""What the training build does with quantized models nobody prepared for it: two public reports and their neighbours.

Each model is a Gemm or a Conv small enough to train in a second; the last opset that works, 18, is the highest that
`to-trainable` writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

pytestmark = pytest.mark.training

UNIQUE = "Expected that every QuantizeLinear node be followed by a unique DequantizeLinear node"
WEIGHT = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
SCALES = (np.abs(WEIGHT).max(1) / 127).astype(np.float32)
LARGEST = SCALES.max()


def zero_point(
    shape: tuple[int, ...] = (), kind: int = TensorProto.INT8, value: int = 0, name: str = "z"
) -> TensorProto:
    """In the typed field, where the training build reads it."""
    return helper.make_tensor(name, kind, shape, [value] * int(np.prod(shape)))


def gemm(
    opset: int = 13,
    *,
    scale: Any = LARGEST,
    zero: TensorProto | None = None,
    second: list[Any] | None = None,
    pair: list[Any] | None = None,
    extra: list[TensorProto] | None = None,
    weight: Any = WEIGHT,
) -> ModelProto:
    """``y = x Wᵀ + b`` with a pair on W; ``second`` are nodes that stand behind it, ``pair`` others in its place."""
    nodes = pair or [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], "quantize", axis=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize", axis=0),
    ]
    nodes = [*nodes, *(second or []), helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=1)]
    fixed = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.asarray(scale, np.float32), "s"),
        zero or zero_point(np.shape(scale)),
        numpy_helper.from_array(np.zeros(8, np.float32), "b"),
        *(extra or []),
    ]
    return finished(nodes, fixed, opset, [16], [8])


def finished(nodes: list[Any], fixed: list[Any], opset: int, x: list[int], y: list[int]) -> ModelProto:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", *s]) for n, s in (("x", x), ("y", y))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    checker.check_model(model, full_check=True)
    return model


def outcome(build: Any, model: ModelProto, parameters: tuple[str, ...] = ("w", "b"), steps: int = 200) -> Any:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 16)).astype(np.float32)
    target = x @ rng.standard_normal((8, 16)).astype(np.float32).T
    return build.train(model, parameters, x, target, steps=steps, rate=0.05)


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_one_scale_trains(build: Any, opset: int) -> None:
    done = outcome(build, gemm(opset))
    assert {"FakeQuant", "FakeQuantGrad"} <= set(done.ops)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(done.ops)
    assert done.fell() > 3


def test_a_scale_per_channel_dies_in_the_first_step(build: Any) -> None:
    done = outcome(build, gemm(scale=SCALES))
    assert (done.stage, done.losses) == ("training", [])
    assert "Quantization scale must be a scalar or 1D tensor of size 1" in done.error


def test_an_integer_model_has_no_artifacts(build: Any) -> None:
    rng = np.random.default_rng(2)
    fixed = [
        helper.make_tensor("sx", TensorProto.FLOAT, [], [1 / 32]),
        helper.make_tensor("zx", TensorProto.UINT8, [], [128]),
        numpy_helper.from_array(rng.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8), "w"),
        helper.make_tensor("sw", TensorProto.FLOAT, [4], [0.01, 0.02, 0.03, 0.04]),
        helper.make_tensor("zw", TensorProto.INT8, [4], [0] * 4),
        numpy_helper.from_array(rng.integers(-99, 99, 4).astype(np.int32), "b"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["qx"], "quantize"),
        helper.make_node("QLinearConv", ["qx", "sx", "zx", "w", "sw", "zw", "sx", "zx", "b"], ["qy"], "conv"),
        helper.make_node("DequantizeLinear", ["qy", "sx", "zx"], ["y"], "dequantize"),
    ]
    done = outcome(build, finished(nodes, fixed, 13, [2, 4, 4], [4, 2, 2]), ())
    assert done.stage == "artifacts"
    assert f"{UNIQUE}. Actual: QuantizeLinear (quantize) is followed by QLinearConv(conv)" in done.error


def test_a_zero_point_in_raw_data_is_not_read(build: Any) -> None:
    raw = numpy_helper.from_array(np.array(0, np.int8), "z")
    assert raw.HasField("raw_data")
    done = outcome(build, gemm(zero=raw))
    assert done.stage == "artifacts"
    assert "tensor shape size(1) does not match the data size(0)" in done.error


def test_two_dequantizers_behind_one_quantizer(build: Any) -> None:
    other = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["e"]),
        helper.make_node("Abs", ["e"], ["unused"]),
    ]
    done = outcome(build, gemm(second=other))
    assert done.stage == "artifacts"
    assert "There must only be a single node consuming the output of QuantizeLinear node" in done.error


def test_two_equal_pairs_on_one_value(build: Any) -> None:
    """Nodes with the same inputs are merged before pairs are looked for; zero points of their own keep them apart."""
    pair = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["one"]),
        helper.make_node("QuantizeLinear", ["w", "s", "z2"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s", "z2"], ["other"]),
        helper.make_node("Add", ["one", "other"], ["d"]),
    ]
    apart = outcome(build, gemm(pair=pair, extra=[zero_point(name="z2")]), steps=1)
    assert apart.ops.count("FakeQuantGrad") == 2
    pair[2].input[2] = pair[3].input[2] = "z"
    done = outcome(build, gemm(pair=pair))
    assert done.stage == "artifacts"
    assert "There must only be a single node consuming the output of QuantizeLinear node" in done.error


def pairs(*names: str) -> list[Any]:
    """A pair on each value, all with the same scale and zero point."""
    made = [
        (
            helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"]),
            helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"]),
        )
        for name in names
    ]
    return [node for pair in made for node in pair]


@pytest.mark.parametrize("shared", ["none", "s", "z"])
def test_pairs_that_share_a_constant(build: Any, shared: str) -> None:
    renamed = helper.make_node("Identity", ["w_d"], ["d"])
    model = gemm(pair=[*pairs("x", "w"), renamed])
    model.graph.node[-1].input[0] = "x_d"
    for name in {"s", "z"} - {shared}:
        (old,) = [t for t in model.graph.initializer if t.name == name]
        model.graph.initializer.append(old)
        model.graph.initializer[-1].name = f"{name}_of_x"
        for node in model.graph.node[:2]:
            node.input[:] = [f"{name}_of_x" if n == name else n for n in node.input]
    done = outcome(build, model)
    if shared == "z":
        assert done.stage == "artifacts"
        assert (
            "Expected: zero point initializer with name z to be present in the graph. Actual: not found" in done.error
        )
    else:
        assert done.fell() > 3


def test_integers_that_go_somewhere_else(build: Any) -> None:
    pair = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], "quantize"),
        helper.make_node("Reshape", ["q", "shape"], ["r"], "reshape"),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["d"], "dequantize"),
    ]
    model = gemm(pair=[helper.make_node("Constant", [], ["shape"], value_ints=[8, 16]), *pair])
    done = outcome(build, model)
    assert done.stage == "artifacts"
    assert UNIQUE in done.error


@pytest.mark.parametrize("opset", [19, 20])
def test_newer_schemas_are_not_known_to_the_fusion(build: Any, opset: int) -> None:
    done = outcome(build, gemm(opset))
    assert done.stage == "artifacts"
    assert UNIQUE in done.error


def test_opset_21_has_no_gradient(build: Any) -> None:
    done = outcome(build, gemm(21))
    assert done.stage == "artifacts"
    assert "Cannot compute the partial derivative" in done.error
    assert "unreachable" in done.error


def test_a_stored_integer_weight_stays_as_it_is(build: Any) -> None:
    lone = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], "dequantize")]
    stored = np.rint(WEIGHT / LARGEST).astype(np.int8)
    model = gemm(pair=lone, weight=stored)
    refused = outcome(build, model)
    assert refused.stage == "artifacts"
    assert "w" in refused.error
    done = outcome(build, model, ("b",))
    assert done.stage == "done", done.error
    with np.load(done.trained) as trained:
        assert trained["b"].any()
        assert [*trained] == ["b"]


@pytest.mark.parametrize(("kind", "value", "range_"), [(2, 128, [0, 255]), (3, 0, [-128, 127])])
def test_the_range_is_that_of_eight_bits(build: Any, kind: int, value: int, range_: list[int]) -> None:
    done = outcome(build, gemm(zero=zero_point(kind=kind, value=value)), steps=1)
    assert done.ranges == [range_]


def test_no_other_width_is_read(build: Any) -> None:
    wide = gemm(21, zero=zero_point(kind=TensorProto.INT16))
    assert outcome(build, wide).stage == "artifacts"


def test_a_conv_transpose_has_a_gradient_but_no_kernel_for_it(build: Any) -> None:
    rng = np.random.default_rng(3)
    weight = numpy_helper.from_array(rng.standard_normal((2, 4, 2, 2)).astype(np.float32), "w")
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2, 2])]
    x, target = (rng.standard_normal((16, *shape)).astype(np.float32) for shape in ((2, 4, 4), (4, 8, 8)))
    done = build.train(finished(nodes, [weight], 13, [2, 4, 4], [4, 8, 8]), ["w"], x, target)
    assert done.stage == "training"
    assert "ConvTransposeGrad" in done.ops
    assert "Could not find an implementation for ConvTransposeGrad(1)" in done.error
