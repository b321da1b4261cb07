"""set-axis: the axis is written where it follows from the shapes, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxq.chosen import Chosen
from onnxq.context import Context
from onnxq.passbase import run_step
from onnxq.passes.set_axis import SetAxis

Run = Callable[..., Any]


def stored(shape: tuple[int, ...], scales: int | tuple[int, ...], **attributes: int) -> onnx.ModelProto:
    """``int8 -> DequantizeLinear -> y``."""
    tensors = [
        numpy_helper.from_array(np.ones(shape, np.int8), "w"),
        numpy_helper.from_array(np.ones(scales, np.float32), "s"),
    ]
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"], "dq", **attributes)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, shape)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("shape", "scales", "given", "wanted"),
    [
        ((8,), 8, None, 0),  # a bias: the default of 1 is outside
        ((8,), 8, -1, 0),
        ((4, 8), 8, None, 1),
        ((4, 8), 8, -1, 1),
        ((4, 8), 4, None, 0),
        ((4, 8), 4, 5, 0),
        ((8, 8), 8, -2, 0),  # square: what is written counts
        ((8, 8), 8, None, 1),
        ((2, 3, 4), 3, -3, 1),
    ],
)
def test_the_axis_is_written(
    shape: tuple[int, ...], scales: int, given: int | None, wanted: int, run_passes: Run, run_model: Run
) -> None:
    attributes = {} if given is None else {"axis": given}
    out = run_passes(stored(shape, scales, **attributes), SetAxis())
    assert out.codes() == ["axis-set"]
    assert helper.get_node_attr_value(out.proto.graph.node[0], "axis") == wanted
    assert run_model(out.proto, {}, optimised=False)[0].shape == shape


@pytest.mark.parametrize(
    ("shape", "scales", "attributes"),
    [
        ((4, 8), 8, {"axis": 1}),
        ((4, 8), 4, {"axis": 0}),
        ((4, 8), 1, {}),
        ((4, 8), (4, 2), {"axis": 1, "block_size": 4}),
    ],
)
def test_a_right_axis_stays(
    shape: tuple[int, ...], scales: int | tuple[int, ...], attributes: dict[str, int], run_passes: Run
) -> None:
    out = run_passes(stored(shape, scales, **attributes), SetAxis())
    assert not out.changed and not out.codes()


@pytest.mark.parametrize(("shape", "scales"), [((8, 8), 8), ((4, 8), 3)])
def test_where_none_or_several_fit_it_stays(shape: tuple[int, ...], scales: int, run_passes: Run) -> None:
    out = run_passes(stored(shape, scales, axis=7), SetAxis())
    assert not out.changed and out.codes() == ["axis-kept"]


def test_blocks_are_counted_from_the_front(run_passes: Run) -> None:
    out = run_passes(stored((4, 8), (4, 2), axis=-1, block_size=4), SetAxis())
    assert helper.get_node_attr_value(out.proto.graph.node[0], "axis") == 1


def test_shapes_of_activations_are_inferred(run_passes: Run) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,3,5] x) => (float[2,3,5] y)
        <float[3] s = {1, 1, 1}, int8[3] z = {0, 0, 0}> {
            r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) }"""
    out = run_passes(text, SetAxis())
    assert [helper.get_node_attr_value(n, "axis") for n in out.proto.graph.node[1:]] == [1, 1]


def test_only_what_is_chosen() -> None:
    model = ir.from_proto(stored((8,), 8))
    assert not run_step(SetAxis(), model, Context().put(Chosen()))
    assert run_step(SetAxis(), model, Context().put(Chosen(nodes={model.graph[0]})))
