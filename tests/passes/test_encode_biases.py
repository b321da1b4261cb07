"""encode-biases: int32 biases at the product of the two scales, with the numbers they stood for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxq.passes.encode_biases import EncodeBiases
from tests.linting.fixable import WHERE, Parts, Where, layer, numbers

Run = Callable[..., Any]


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    graphs: list[Any] = [model.graph, *model.functions]
    for graph in graphs:
        found |= {t.name: numpy_helper.to_array(t) for t in getattr(graph, "initializer", [])}
        for node in graph.node:
            graphs += [a.g for a in node.attribute if a.HasField("g")]
            if node.op_type == "Constant":
                found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def bias_of(model: onnx.ModelProto) -> tuple[onnx.NodeProto, list[np.ndarray[Any, Any]]]:
    """The DequantizeLinear of the int32 constant, and what it reads."""
    known, graphs = constants(model), [model.graph, *model.functions]
    for graph in graphs:
        for node in graph.node:
            graphs += [a.g for a in node.attribute if a.HasField("g")]
            if node.op_type == "DequantizeLinear" and known.get(node.input[0], np.zeros(0)).dtype == np.int32:
                return node, [known[name] for name in node.input]
    raise AssertionError("no bias")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_the_scale_is_the_product(op: str, where: Where, run_passes: Run) -> None:
    parts = layer(op)
    real = parts.constants["b"] * parts.constants["b_scale"].astype(np.float64)
    parts.constants["b_scale"] = np.full(8, 2e-4, np.float32)
    parts.constants["b"] = np.rint(real / np.float64(np.float32(2e-4))).astype(np.int32)
    out = run_passes(parts.build(where), EncodeBiases())
    node, (integers, scale, zero) = bias_of(out.proto)
    wanted = (np.float64(np.float32(0.02)) * parts.constants["w_scale"].astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(scale, wanted)
    np.testing.assert_array_equal(zero, np.zeros(8))
    np.testing.assert_allclose(integers * wanted.astype(np.float64), real, atol=2e-4)
    assert helper.get_node_attr_value(node, "axis") == 0 and out.codes() == ["bias-encoded"]
    for true in (False, True):
        assert np.abs(numbers(out.proto, true) - numbers(layer(op).build(where), true)).max() <= 0.1001


def test_one_scale_for_all_channels_becomes_one_a_channel_and_back(run_passes: Run) -> None:
    parts = layer("Gemm")
    real = parts.constants["b"] * parts.constants["b_scale"].astype(np.float64)
    parts.constants |= {"b_scale": np.array(1e-4, np.float32), "b_zero": np.int32(0)}
    parts.constants["b"] = np.rint(real / 1e-4).astype(np.int32)
    parts.set("DequantizeLinear_bd", "axis", None)
    _, (_, scale, zero) = bias_of(run_passes(parts.build(), EncodeBiases()).proto)
    assert scale.shape == zero.shape == (8,)
    parts.constants |= {"w_scale": np.array(0.01, np.float32), "w_zero": np.int8(0)}
    node, (integers, scale, zero) = bias_of(run_passes(parts.build(), EncodeBiases()).proto)
    assert scale.shape == zero.shape == () and not node.attribute
    np.testing.assert_allclose(integers * scale, real, atol=2e-4)


def test_a_single_number_is_written_for_each_channel(run_passes: Run) -> None:
    parts = layer("Gemm")
    parts.constants |= {"b": np.array([500], np.int32), "b_scale": np.float32(1e-3), "b_zero": np.int32(0)}
    parts.set("DequantizeLinear_bd", "axis", None)
    before = parts.build()
    out = run_passes(before, EncodeBiases())
    _, (integers, scale, _) = bias_of(out.proto)
    np.testing.assert_allclose(integers * scale, np.full(8, 0.5), atol=2e-4)
    assert np.abs(numbers(out.proto, True) - numbers(before, True)).max() <= 0.1001


def test_factors_of_a_gemm_count(run_passes: Run) -> None:
    parts = layer("Gemm")
    parts.set("Gemm_p", "alpha", 0.5)
    parts.set("Gemm_p", "beta", 2.0)
    _, (_, scale, _) = bias_of(run_passes(parts.build(), EncodeBiases()).proto)
    np.testing.assert_allclose(scale, 0.02 * parts.constants["w_scale"] * 0.25, rtol=1e-6)


def two_layers(second: np.float32) -> Parts:
    """Two Gemms read one bias; the input scale of the second is given."""
    parts = layer("Gemm")
    parts.constants["x_scale_2"] = np.asarray(second)
    parts.nodes[-1].output[0] = "y1"
    for op, ins, out in (
        ("QuantizeLinear", ["x", "x_scale_2", "x_zero"], "xq2"),
        ("DequantizeLinear", ["xq2", "x_scale_2", "x_zero"], "xd2"),
        ("Gemm", ["xd2", "wd", "bd"], "p2"),
        ("QuantizeLinear", ["p2", "y_scale", "y_zero"], "yq2"),
        ("DequantizeLinear", ["yq2", "y_scale", "y_zero"], "y2"),
        ("Add", ["y1", "y2"], "y"),
    ):
        parts.nodes.append(helper.make_node(op, ins, [out], f"{op}_{out}"))
    return parts


@pytest.mark.parametrize("where", WHERE)
def test_layers_of_other_scales_get_copies(where: Where, run_passes: Run) -> None:
    before = two_layers(np.float32(0.03)).build(where)
    out = run_passes(before, EncodeBiases())
    assert out.codes() == ["bias-encoded"], "the first layer has the right one"
    assert np.abs(numbers(out.proto, True) - numbers(before, True)).max() <= 0.1001
    assert np.abs(numbers(out.proto, False) - numbers(out.proto, True)).max() <= 0.1001
    gap = np.abs(numbers(before, False) - numbers(before, True)).max()
    assert gap > 0.5, "onnxruntime takes the bias to have the other scale"
    parts = two_layers(np.float32(0.03))
    parts.constants["b_scale"] = parts.constants["b_scale"] * np.float32(3)
    assert run_passes(parts.build(where), EncodeBiases()).codes() == ["bias-encoded"] * 2


def test_wide_layers_lose_the_zero_point_only(run_passes: Run) -> None:
    parts = layer("Conv", activation=np.int16)
    parts.constants["b_scale"] = parts.constants["b_scale"] * np.float32(3)
    parts.constants["b_zero"] = np.full(8, 7, np.int32)
    out = run_passes(parts.build(), EncodeBiases())
    _, (integers, scale, zero) = bias_of(out.proto)
    np.testing.assert_array_equal(integers, parts.constants["b"] - 7)
    np.testing.assert_array_equal(scale, parts.constants["b_scale"])
    assert not zero.any()
    parts.constants["b_zero"] = np.zeros(8, np.int32)
    assert not run_passes(parts.build(), EncodeBiases()).changed


def test_what_does_not_fit_stays(run_passes: Run) -> None:
    parts = layer()
    parts.constants["w_scale"][3] = 1e-12
    before = parts.build()
    out = run_passes(before, EncodeBiases())
    assert not out.changed and out.codes() == ["bias-not-encoded"]
    assert out.ctx.report.notes[0].numbers["largest"] > 2**31
    parts = layer()
    parts.constants["b"][:] = -(2**31)
    parts.constants["b_zero"] = np.full(8, 2**31 - 1, np.int32)
    assert set(run_passes(parts.build(), EncodeBiases()).codes()) == {"bias-not-encoded"}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(-1000, 1000), st.floats(0.1, 10), st.booleans())
def test_values_move_by_half_a_step_at_most(zero: int, factor: float, per_channel: bool) -> None:
    parts = layer("Gemm")
    scale = (parts.constants["b_scale"] * factor).astype(np.float32)
    if not per_channel:
        parts.set("DequantizeLinear_bd", "axis", None)
        scale = scale[0]
    parts.constants |= {"b_scale": np.asarray(scale), "b_zero": np.full(scale.shape, zero, np.int32)}
    real = (parts.constants["b"].astype(np.float64) - zero) * scale
    model = ir.from_proto(parts.build())
    EncodeBiases()(model)
    _, (integers, step, zeros) = bias_of(ir.to_proto(model))
    assert not zeros.any()
    assert (np.abs(integers * step.astype(np.float64) - real) <= step * np.float64(0.5000001)).all()
