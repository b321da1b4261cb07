"""repair-pairs: the DequantizeLinear follows its QuantizeLinear, whatever differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxq.chosen import Chosen
from onnxq.context import Context
from onnxq.passbase import run_step
from onnxq.passes.repair_pairs import RepairPairs, differences
from onnxq.passes.validate_qdq import ValidateQdq

Run = Callable[..., Any]


def pair(
    q: dict[str, Any], dq: dict[str, Any], *, opset: int = 21, kind: int = onnx.TensorProto.FLOAT, out: int = 0
) -> onnx.ModelProto:
    """``x [2, 4] -> Q(scale, zero, attributes) -> DQ(scale, zero, attributes) -> y``."""
    tensors, nodes = [], []
    for op, data, made, given in (("QuantizeLinear", "x", "q", dict(q)), ("DequantizeLinear", "q", "y", dict(dq))):
        names = []
        for what in ("scale", "zero"):
            value = given.pop(what, None)
            if value is not None:
                names.append(f"{op}_{what}")
                tensors.append(numpy_helper.from_array(np.asarray(value), names[-1]))
        nodes.append(helper.make_node(op, [data, *names], [made], op, **given))
    ends = [helper.make_tensor_value_info("x", kind, [2, 4]), helper.make_tensor_value_info("y", out or kind, [2, 4])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


F, CHANNELS = np.float32, np.array([0.1, 0.2, 0.3, 0.4], np.float32)
MISMATCHES = {
    "scale": ({"scale": F(0.1), "zero": np.uint8(3)}, {"scale": F(0.15), "zero": np.uint8(3)}),
    "zero point": ({"scale": F(0.1), "zero": np.uint8(3)}, {"scale": F(0.1), "zero": np.uint8(5)}),
    "zero point left out": ({"scale": F(0.1), "zero": np.int8(3)}, {"scale": F(0.1)}),
    "zero point too many": ({"scale": F(0.1)}, {"scale": F(0.1), "zero": np.uint8(3)}),
    "zero point of another type": ({"scale": F(0.1), "zero": np.int8(0)}, {"scale": F(0.1), "zero": np.uint8(0)}),
    "type by attribute": ({"scale": F(0.1), "output_dtype": 3}, {"scale": F(0.1), "zero": np.uint8(0)}),
    "one channel": (
        {"scale": CHANNELS, "zero": np.zeros(4, np.int8)},
        {"scale": CHANNELS * np.array([1, 1, 2, 1], F), "zero": np.zeros(4, np.int8)},
    ),
    "granularity": (
        {"scale": CHANNELS, "zero": np.zeros(4, np.int8), "axis": 1},
        {"scale": F(0.25), "zero": np.int8(0)},
    ),
    "axis": (
        {"scale": CHANNELS, "zero": np.zeros(4, np.int8), "axis": 1},
        {"scale": CHANNELS, "zero": np.zeros(4, np.int8), "axis": 0},
    ),
    "blocks": (
        {"scale": np.full((2, 2), 0.1, F), "zero": np.zeros((2, 2), np.int8), "axis": 1, "block_size": 2},
        {"scale": np.full((2, 2), 0.1, F), "zero": np.zeros((2, 2), np.int8), "axis": 1, "block_size": 3},
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_dequantizer_takes_what_made_its_integers(what: str, run_passes: Run, run_model: Run) -> None:
    q, dq = MISMATCHES[what]
    out = run_passes(pair(q, dq), RepairPairs(), ValidateQdq())
    assert out.codes() == ["pair-repaired"]
    onnx.checker.check_model(out.proto, full_check=True)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    same = {k: v for k, v in q.items() if k != "output_dtype"}
    if "output_dtype" in q:
        same["zero"] = np.int8(0)
    wanted = run_model(pair(q, same), {"x": x}, optimised=False)
    for optimised in (False, True):
        np.testing.assert_array_equal(run_model(out.proto, {"x": x}, optimised=optimised)[0], wanted[0])
    assert {t.name for t in out.proto.graph.initializer} == {n for node in out.proto.graph.node for n in node.input} - {
        "x",
        "q",
    }, "what the DequantizeLinear read is gone"


@pytest.mark.parametrize(
    ("q", "dq"),
    [
        ({"scale": F(0.1), "zero": np.uint8(0)}, {"scale": np.array([0.1], F)}),
        ({"scale": F(0.1)}, {"scale": F(0.1), "zero": np.uint8(0)}),
        ({"scale": CHANNELS, "axis": 1}, {"scale": CHANNELS, "axis": -1}),
        ({"scale": F(0.1), "axis": 0}, {"scale": F(0.1), "axis": 1}),
    ],
)
def test_equal_pairs_stay(q: dict[str, Any], dq: dict[str, Any], run_passes: Run) -> None:
    out = run_passes(pair(q, dq), RepairPairs())
    assert not out.changed and not out.codes()


def test_the_type_that_comes_out_stays(run_passes: Run, run_model: Run) -> None:
    q = {"scale": F(0.1), "zero": np.uint8(3)}
    dq = {"scale": np.float16(0.2), "zero": np.uint8(3)}
    half = onnx.TensorProto.FLOAT16
    out = run_passes(pair(q, dq, opset=23, out=half), RepairPairs())
    assert helper.get_node_attr_value(out.proto.graph.node[1], "output_dtype") == half
    onnx.checker.check_model(out.proto, full_check=True)
    out = run_passes(pair(q, dq, out=half), RepairPairs())
    assert not out.changed and out.codes() == ["pair-not-repaired"]


def test_only_what_is_chosen() -> None:
    import onnx_ir as ir

    model = ir.from_proto(pair({"scale": F(0.1)}, {"scale": F(0.2)}))
    assert not run_step(RepairPairs(), model, Context().put(Chosen()))
    assert run_step(RepairPairs(), model, Context().put(Chosen(nodes={model.graph[1]})))
    assert differences(model.graph[0], model.graph[1]) == []
