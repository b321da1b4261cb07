"""leave-float: what calibration has shown to be unfit for integers goes back to float, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.context import Context
from onnxq.facts import Goal, Plan, Range, Ranges
from onnxq.look import all_nodes
from onnxq.passbase import run_step
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.plan import MakePlan
from onnxq.targets import load_target

RNG = np.random.default_rng(0)
HEAD = "(float[1,4,8,8] x) => (float[a,b,c,d] y)"


def w(*shape: int, scale: float = 0.3) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


WEIGHTS = {"k": w(16, 4, 4, 4), "k2": w(16, 4, 4, 4), "k3": w(8, 16, 1, 1), "k4": w(8, 32, 1, 1)}


def left(
    body: str, ranges: dict[str, tuple[float, float]], infinite: dict[str, str] | None = None, **options: Any
) -> tuple[Plan, Context]:
    """The plan after the pass, for given ranges; values that are not named have [-1, 1]."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> g {HEAD} {{ {body} }}')
    for name, array in WEIGHTS.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    model, ctx = ir.from_proto(onnx.shape_inference.infer_shapes(proto)), Context()
    ctx.put(Goal(load_target("ort-cpu")))
    for node in all_nodes(model):
        node.name = node.outputs[0].name
    run_step(MakePlan(), model, ctx)
    found = Ranges()
    for value in ctx.get(Plan).activations:
        if infinite and value.name in infinite:
            found.infinite[value] = infinite[value.name]
        elif value not in ctx.get(Plan).fixed and value.name not in (infinite or {"": ""}).get("missing", ""):
            lo, hi = ranges.get(value.name or "", (-1.0, 1.0))
            found.of[value] = Range(lo, hi, lo, hi)
    ctx.put(found)
    assert not run_step(LeaveFloat(**options), model, ctx)
    return ctx.get(Plan), ctx


def codes(made: Plan) -> dict[str, str]:
    return {node.name or "": decision.code for node, decision in made.decisions.items()}


JOIN = (
    "a = Conv(x, k) b = Conv(x, k2) j = {join} z = Relu(a) s = Sub(z, b) t = Conv(s, k3) u = Conv(j, {k}) y = Add(t, u)"
)


@pytest.mark.parametrize(
    ("join", "kernel", "stays"),
    [
        ("Concat<axis=1>(a, b)", "k4", True),
        ("Add(a, b)", "k3", True),
        ("Where(m, a, b)", "k3", True),
        ("Mul(a, b)", "k3", False),
    ],
)
def test_joins_of_unlike_ranges(join: str, kernel: str, stays: bool) -> None:
    """One output scale for boxes in pixels and scores in 0..1; the operands of a product keep their own."""
    body = JOIN.format(join=join, k=kernel)
    if "Where" in join:
        body = "o = Constant<value_float=0.0>() m = Greater(x0, o) ".replace("x0", "xs") + body
        body = "xs = ReduceMean(x) " + body
    plan, ctx = left(body, {"a": (-5, 635), "b": (0, 1), "j": (-5, 635)})
    assert (codes(plan)["j"] == "unlike-ranges") == stays
    if stays:
        (note,) = ctx.report.of("unlike-ranges")
        assert note.message == "its ranges differ 640 times: one scale would leave 'b' few steps"
        assert codes(plan)["a"] == "layer", "what makes the operands may stay on integers"
    like, _ = left(body, {"a": (-5, 45), "b": (0, 1), "j": (-5, 45)})
    assert codes(like)["j"] in ("join", "binary")


def test_the_limit_is_an_option() -> None:
    body = JOIN.format(join="Add(a, b)", k="k3")
    ranges = {"a": (0.0, 20.0), "b": (0.0, 1.0), "j": (0.0, 20.0)}
    assert codes(left(body, ranges)[0])["j"] == "binary"
    assert codes(left(body, ranges, unlike=10.0)[0])["j"] == "unlike-ranges"


def test_ranges_known_without_data_count() -> None:
    """Boxes beside a Sigmoid: nobody observed the Sigmoid."""
    body = "a = Conv(x, k) b = Conv(x, k2) s = Sigmoid(b) j = Concat<axis=1>(a, s) y = Conv(j, k4)"
    plan, _ = left(body, {"a": (0, 640), "j": (0, 640)})
    assert codes(plan)["j"] == "unlike-ranges" and codes(plan)["s"] == "no-integer-reader"


def test_a_sum_that_cancels_and_a_folded_relu() -> None:
    """The narrow one may be the result; behind a Relu that is what the Relu lets through."""
    body = "a = Conv(x, k) b = Conv(x, k2) s = Add(a, b) j = Relu(s) y = Conv(j, k3)"
    plan, _ = left(body, {"a": (-900, 900), "b": (-900, 900), "j": (0, 2)})
    assert codes(plan)["s"] == "unlike-ranges" and codes(plan)["j"] == "float-operand"
    fine, _ = left(body, {"a": (-900, 900), "b": (-900, 900), "j": (0, 900)})
    assert codes(fine)["s"] == "binary" and codes(fine)["j"] == "part-of-layer"


def test_chains_of_joins() -> None:
    """Planned again until nothing is found: the second join is unlike only by what the first would have been."""
    body = """a = Conv(x, k) b = Conv(x, k2) p = Add(a, b) q = Add(p, b) r = Conv(q, k3) c = Conv(x, k2)
    t = Conv(c, k3) y = Add(r, t)"""
    plan, ctx = left(body, {"a": (0, 500), "b": (0, 1), "p": (0, 500), "q": (0, 500)})
    assert codes(plan)["p"] == "unlike-ranges" and codes(plan)["q"] == "unlike-ranges"
    assert [n.place.node for n in ctx.report.of("unlike-ranges")] == ["p", "q"]


@pytest.mark.parametrize(
    ("value", "gone"),
    [
        ("x", {"c", "d"}),
        ("r", {"c", "m"}),
        ("m", {"m", "y"}),
        ("y", {"y"}),
        ("d", {"d"}),
    ],
)
def test_values_without_a_range(value: str, gone: set[str]) -> None:
    """Whoever makes the value, and whoever reads it from integers."""
    body = "c = Conv(x, k) r = Relu(c) m = MaxPool<kernel_shape=[2,2]>(r) y = Conv(m, k3) d = Conv(x, k2)"
    proto = body + " e = Abs(d) f = Exp(e)"
    plan, ctx = left(proto, {}, {value: "constant 'mask' holds -inf"})
    reasons = {n.name: d for n, d in plan.decisions.items() if d.code == "infinite-range"}
    assert gone <= set(reasons)
    assert all(f"'{value}' has no range: constant 'mask' holds -inf" == d.reason for d in reasons.values())
    assert not [v for v in plan.activations if v.name == value]
    assert {n.place.node for n in ctx.report.of("infinite-range")} == set(reasons)


def test_values_nobody_saw() -> None:
    plan, _ = left("c = Conv(x, k) r = Relu(c) y = Conv(r, k3)", {}, {"missing": "r"})
    decision = {n.name: d for n, d in plan.decisions.items()}["c"]
    assert (decision.code, decision.reason) == ("no-range", "'r' has no range: calibration saw no value of it")


def test_masked_attention(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    """A mask of -Inf is healthy: what it flows through stays float, the products around it stay on integers."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,6,16] x) => (float[a,b,c] y) {
      q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm=[0,2,1]>(k)
      s = MatMul(q, t) z = Add(s, mask) p = Softmax(z) o = MatMul(p, v) y = MatMul(o, wo) }"""
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    weights = {name: w(16, 16) for name in ("wq", "wk", "wv", "wo")}
    made = quantized(text, {**weights, "mask": mask})
    assert made.status("MatMul_s") == "integer/layer" and made.status("Add_z") == "float/constant-operand"
    assert made.status("MatMul_o") == "integer/layer"
    assert all(np.isfinite(v).all() for k, v in made.initializers().items() if k.endswith("_scale"))
    close(made)


def test_a_detector_head(quantized: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Boxes 0..640 beside scores 0..1: the scores keep their values (a shared scale would round them to 0)."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g {HEAD} {{
      f = Conv(x, k) r = Relu(f) b = Conv(r, kb, bb) s = Conv(r, ks) p = Sigmoid(s) j = Concat<axis=1>(b, p)
      y = Conv(j, keep) }}"""
    weights = {"k": w(16, 4, 3, 3), "kb": w(4, 16, 1, 1, scale=60), "bb": np.full(4, 320, np.float32),
               "ks": w(4, 16, 1, 1), "keep": np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)}  # fmt: skip
    made = quantized(text, weights)
    assert made.status("Concat_j") == "float/unlike-ranges" and made.status("Conv_b") == "integer/layer"
    feeds = made.feeds[0]
    (exact,), (got,) = run_model(made.float_proto, feeds), run_model(made.proto, feeds)
    assert np.abs(exact[:, 4:] - got[:, 4:]).max() < 0.05


def test_a_float_layer_between_pairs_is_told() -> None:
    """Its own ranges are fine; its neighbours stay integers, and onnxruntime would round its weight all the same."""
    body = "a = Conv(x, k) b = Conv(a, n) y = Conv(b, n)"
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> g {HEAD} {{ {body} }}')
    for name, array in {"k": WEIGHTS["k"], "n": w(16, 16, 3, 3)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    model, ctx = ir.from_proto(onnx.shape_inference.infer_shapes(proto)), Context()
    ctx.put(Goal(load_target("ort-cpu")))
    for node in all_nodes(model):
        node.name = node.outputs[0].name
    run_step(MakePlan(exclude=("b",)), model, ctx)
    ctx.put(Ranges(of={value: Range(-1, 1, -1, 1) for value in ctx.get(Plan).activations}))
    run_step(LeaveFloat(), model, ctx)
    (note,) = ctx.report.of("requantized-by-runtime")
    assert note.place.node == "b" and note.severity.value == "warning"
    assert note.message.endswith("leave its neighbours float, too")
