"""canonical-axis: channel axes at 1 by Transposes; numbers over every op are in `test_weight_axes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.context import Context
from onnxq.facts import Goal
from onnxq.passbase import run_step
from onnxq.passes.cancel_transposes import CancelTransposes
from onnxq.passes.canonical_axis import CanonicalAxis
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.targets import load_target

Array = np.ndarray[Any, Any]
CANONICAL = CanonicalAxis(axis_form="canonical")
INT4 = {"q": np.arange(-8, 8, dtype=np.int8).repeat(6).reshape(4, 6, 2, 2), "s": np.geomspace(0.1, 1, 4).astype("f")}
BODIES = {
    "deploy": "w = DequantizeLinear<axis=0>(q, s, z) y = Conv(x, w)",
    "shared": "w = DequantizeLinear<axis=0>(q, s, z) a = Conv(x, w) b = Conv(x, w) y = Add(a, b)",
    "fake-quant": "i = QuantizeLinear<axis=0>(f, s, z) w = DequantizeLinear<axis=0>(i, s, z) y = Conv(x, w)",
    "no-zero-point": """i = QuantizeLinear<axis=0, output_dtype=22>(f, s) w = DequantizeLinear<axis=0>(i, s)
        y = Conv(x, w)""",
    "two-dq": """i = QuantizeLinear<axis=0>(f, s, z) w = DequantizeLinear<axis=0>(i, s, z)
        v = DequantizeLinear<axis=0>(i, s, z) a = Conv(x, w) b = Conv(x, v) y = Add(a, b)""",
    "body": """w = DequantizeLinear<axis=0>(q, s, z) y = If(p) <
        then_branch = t () => (float[a,b,c,d] g) { g = Conv(x, w) }, else_branch = u () => (float[a,b,c,d] h) {
          v = DequantizeLinear<axis=0>(q, s, z) h = Conv(x, v) }>""",
    "output": "w = DequantizeLinear<axis=0>(q, s, z) y = Conv(x, w)",
}


def build(case: str, body: str = "") -> onnx.ModelProto:
    outputs = "float y, float w" if case == "output" else "float y"
    head = f'<ir_version: 10, opset_import: ["": 21]> g (float[1,6,5,5] x, bool p) => ({outputs})'
    proto = parser.parse_model(f"{head} {{ {body or BODIES[case]} }}")
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    for i, node in enumerate(proto.graph.node):
        node.name = f"n{i}"
    q = np.asarray(INT4["q"])
    scale = np.asarray(INT4["s"]).reshape(4, 1, 1, 1)
    proto.graph.initializer.append(onnx.helper.make_tensor("q", onnx.TensorProto.INT4, q.shape, q.reshape(-1)))
    proto.graph.initializer.append(onnx.helper.make_tensor("z", onnx.TensorProto.INT4, (4,), [0, 1, -1, 0]))
    proto.graph.initializer.append(numpy_helper.from_array(INT4["s"], "s"))
    proto.graph.initializer.append(numpy_helper.from_array((q * scale * 0.97).astype(np.float32), "f"))
    return onnx.shape_inference.infer_shapes(proto)


@pytest.mark.parametrize("case", BODIES)
def test_same_numbers_and_back(
    case: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None], run_model: Callable[..., list[Array]]
) -> None:
    proto = build(case)
    made = run_passes(proto, CANONICAL)
    same_numbers(proto, made.proto, rtol=0, atol=0)
    assert made.changed and made.codes() == ["axis-moved"]
    pairs = [n for g in made.model.graphs() for n in g if n.op_type.endswith("eLinear")]
    assert pairs and all(n.attributes["axis"].as_int() == 1 for n in pairs)
    assert all(tuple(n.outputs[0].shape or ()) == (6, 4, 2, 2) for n in pairs if n.op_type == "DequantizeLinear")
    run_step(ValidateQdq(), made.model, Context())
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 6, 5, 5)).astype(np.float32), "p": np.array(False)}
    for got, wanted in zip(run_model(made.proto, feeds, true=True), run_model(proto, feeds, true=True), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert run_step(CancelTransposes(), made.model, Context())
    assert ir.to_proto(made.model) == ir.to_proto(ir.from_proto(proto)), "the very same model"


def test_matmul_and_gather(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """A table by row takes a Transpose of its own; a MatMul's axis is 1 anyway."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (int64[3] x) => (float[3,5] y)
      <int8[5,5] q = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25}, float[5] s = {1,2,3,4,5}> {
      t = DequantizeLinear<axis=0>(q, s) e = Gather(t, x) w = DequantizeLinear<axis=-1>(q, s) y = MatMul(e, w) }"""
    made = run_passes(text, CANONICAL)
    assert made.ops() == ["Transpose", "DequantizeLinear", "Transpose", "Gather", "DequantizeLinear", "MatMul"]
    same_numbers(text, made.proto)


def test_form(run_passes: Callable[..., Any]) -> None:
    """Nothing without a target, with a native one, or when asked so; a canonical target decides."""
    proto = build("deploy")
    assert not run_passes(proto, CanonicalAxis()).changed
    assert not run_passes(proto, CanonicalAxis(axis_form="native")).changed
    for form, changes in (("native", False), ("canonical", True)):
        target = replace(load_target("ort-cpu"), axis_form=form)
        model = ir.from_proto(proto)
        assert run_step(CanonicalAxis(), model, Context().put(Goal(target))) is changes


UNTOUCHED = {
    "blocks": ("w = DequantizeLinear<axis=1, block_size=3>(q, sb) y = Conv(x, w)", ["axis-not-moved"]),
    "per-tensor": ("w = DequantizeLinear<axis=0>(q, s1) y = Conv(x, w)", []),
    "bias": ("b = DequantizeLinear<axis=0>(bq, s) y = Conv(x, f, b)", []),
    "activation": ("i = QuantizeLinear<axis=2>(x, s5) d = DequantizeLinear<axis=2>(i, s5) y = Exp(d)", []),
    "at-1": ("w = DequantizeLinear(q, s6) y = Exp(w)", []),
    "odd-reader": ("i = QuantizeLinear<axis=0>(f, s) c = Cast<to=1>(i) y = Conv(x, c)", ["axis-not-moved"]),
    "computed-scale": ("c = Identity(s) e = Exp(c) w = DequantizeLinear<axis=0>(q, e) y = Conv(x, w)", []),
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_untouched(case: str, run_passes: Callable[..., Any]) -> None:
    body, codes = UNTOUCHED[case]
    proto = build("", body)
    for name, array in {
        "sb": np.ones((4, 2, 2, 2), "f"), "s1": np.ones((), "f"), "s5": np.ones(5, "f"), "s6": np.ones(6, "f"),
        "bq": np.ones(4, np.int32),
    }.items():  # fmt: skip
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    made = run_passes(proto, CANONICAL)
    assert not made.changed and made.codes() == codes
