"""encode: one encoding a sharing group, limits of Clip and Relu, known ranges, weights by channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.errors import DataError, FactError
from onnxq.facts import Axes, Edge, Encodings, Plan, Range, Ranges, Wishes
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.spec import PerAxis, PerTensor, QType, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.encode import Encode

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
U8, I8 = TensorSpec(QType.named("uint8")), TensorSpec(QType.named("int8"), True, PerAxis())


def w(*shape: int) -> Array:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


def graph(body: str, **constants: Array) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (y) {{ {body} }}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), k) for k, a in constants.items())
    return ir.from_proto(proto)


def value(model: ir.Model, name: str) -> ir.Value:
    return next(v for n in model.graph for v in (*n.inputs, *n.outputs) if v is not None and v.name == name)


def encode(model: ir.Model, plan: Plan, ranges: dict[str, tuple[float, float]], **options: Any) -> Context:
    of = {value(model, name): Range(lo, hi, lo, hi) for name, (lo, hi) in ranges.items()}
    ctx = Context().put(plan, Axes({e: PerAxis(0) for e in plan.weights}), Ranges(of))
    run_step(Encode(**options), model, ctx)
    return ctx


def plan_of(model: ir.Model, *names: str, shared: list[list[str]] | None = None, spec: TensorSpec = U8) -> Plan:
    plan = Plan(Wishes(spec, I8), {value(model, n): spec for n in names})
    plan.shared = [[value(model, n) for n in group] for group in shared or []]
    return plan


# -- activations -------------------------------------------------------------------------------------------------------


def test_a_group_covers_the_union_of_its_ranges() -> None:
    """Groups that overlap are one: a-b and b-c share with each other, d stands alone."""
    model = graph("a = Abs(x) b = Neg(a) c = Neg(b) y = Neg(c)")
    plan = plan_of(model, "x", "a", "b", "c", shared=[["a", "b"], ["c", "b"]])
    ctx = encode(model, plan, {"x": (-1, 1), "a": (0, 2), "b": (-0.5, 1), "c": (0.25, 0.5)})
    got = {v.name: e for v, e in ctx.get(Encodings).activations.items()}
    assert got["a"] is got["b"] is got["c"] and got["a"].scale == np.float32(2.5 / 255)
    assert got["a"].zero_point == round(0.5 / (2.5 / 255)) == 51
    assert got["x"].scale == np.float32(2 / 255) and got["x"].scale.dtype == np.float32 and got["x"].scale.ndim == 0


@pytest.mark.parametrize("limit", [6.0, 1.0, 0.1, 1 / 3, 5.9999995])
@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_never_beyond_a_clip(limit: float, kind: str) -> None:
    """float32(6 / 255) * 255 in float32 may be above 6: then the runtime keeps the Clip."""
    bound = np.float32(limit)
    model = graph("y = Clip(x, low, high)", low=np.float32(0), high=bound)
    plan = plan_of(model, "y", spec=TensorSpec(QType.named(kind)))
    (encoding,) = encode(model, plan, {"y": (0, float(bound))}).get(Encodings).activations.values()
    top = encoding.scale * np.float32(encoding.spec.qtype.qmax)
    assert encoding.zero_point == 0 and top <= bound and top > bound * (1 - 1e-6)


def test_a_clip_does_not_bound_what_it_shares_with_below_zero() -> None:
    """A group with negative values is no image of the Clip alone; its range stays the union."""
    model = graph("c = Clip(x, low, high) y = Neg(c)", low=np.float32(0), high=np.float32(6))
    plan = plan_of(model, "c", "y", shared=[["c", "y"]])
    ctx = encode(model, plan, {"c": (0, 6), "y": (-6, 0)})
    assert next(iter(ctx.get(Encodings).activations.values())).scale == np.float32(12 / 255)


@pytest.mark.parametrize(("kind", "qmin"), [("uint8", 0), ("uint16", 0), ("int16", -32768), ("int8", -128)])
@pytest.mark.parametrize("lo", [0.0, 1e-8, 0.7])
def test_zero_point_behind_relu(kind: str, qmin: int, lo: float) -> None:
    """Ranges that start above zero still start at qmin, or the Relu cannot be dropped."""
    model = graph("y = Relu(x)")
    plan = plan_of(model, "y", spec=TensorSpec(QType.named(kind)))
    (encoding,) = encode(model, plan, {"y": (lo, 3)}).get(Encodings).activations.values()
    assert encoding.zero_point == qmin and encoding.scale == np.float32(3 / (2**encoding.spec.qtype.bits - 1))


@pytest.mark.parametrize(("kind", "top"), [("uint8", 255), ("uint16", 65535)])
def test_known_ranges_fit_the_type(kind: str, top: int, quantized: Callable[..., Any]) -> None:
    """Softmax and Sigmoid end at 1 whatever the data say, in the planned type (not 8-bit constants)."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[a,b] y, float[c,d] z) {
      a = MatMul(x, w1) s = Softmax(a) y = MatMul(s, w2) b = MatMul(x, w2) t = Sigmoid(b) z = MatMul(t, w1) }"""
    made = quantized(text, {"w1": w(4, 4), "w2": w(4, 4)}, activations=kind, dynamic="never")
    params = made.initializers()
    assert params["s_scale"] == np.float32(1 / top) and params["s_zero_point"] == 0
    assert params["t_scale"] == np.float32(1 / top) and params["t_zero_point"] == 0
    assert params["s_zero_point"].dtype == params["t_zero_point"].dtype == np.dtype(kind)


def test_missing_ranges_are_named() -> None:
    model = graph("a = Abs(x) b = Neg(a) c = Neg(b) y = Neg(c)")
    plan = plan_of(model, "x", "a", "b", "c", "y")
    with pytest.raises(FactError, match=r"no range for 4 planned values \(a, b, c, …\): run calibrate"):
        encode(model, plan, {"x": (-1, 1)})


def test_float16_scales() -> None:
    """Scales take the type of the values, and are rounded up so that both ends stay inside."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 19]> g (float16[2,4] x) => (float16[2,4] y) {
             a = Abs(x) y = MatMul(a, w) }"""
    )
    weight = w(4, 4).astype(np.float16)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model = ir.from_proto(proto)
    model.graph[0].outputs[0].dtype = ir.DataType.FLOAT16
    plan = plan_of(model, "a")
    edge = Edge(model.graph[1], 1)
    plan.weights[edge] = I8
    out = encode(model, plan, {"a": (0, 3)}).get(Encodings)
    (a,) = out.activations.values()
    assert a.scale.dtype == out.weights[edge].scale.dtype == np.float16
    assert float(a.scale) * 255 >= 3 and float(a.scale) < 3 / 255 * 1.002
    tops = out.weights[edge].scale.astype(np.float64) * 127
    assert (tops >= np.abs(weight).max(axis=1)).all() and (tops <= np.abs(weight).max(axis=1) * 1.002).all()


# -- weights -----------------------------------------------------------------------------------------------------------


def weights_of(array: Array, **options: Any) -> tuple[Context, Any]:
    model = graph("y = MatMul(x, w)", w=array)
    plan, edge = plan_of(model), Edge(model.graph[0], 1)
    plan.weights[edge] = I8
    ctx = encode(model, plan, {}, **options)
    return ctx, ctx.get(Encodings).weights[edge]


def test_scales_of_a_weight_by_channel() -> None:
    array = w(4, 6)
    _, encoding = weights_of(array)
    np.testing.assert_array_equal(encoding.scale, (np.abs(array.astype(np.float64)).max(axis=1) / 127).astype("f4"))
    assert encoding.spec.granularity == PerAxis(0) and not encoding.zero_point.any()


def test_mse_is_better_than_minmax_on_outliers() -> None:
    array = w(4, 4096)
    array[:, 7] = 6
    error = {}
    for method in ("minmax", "mse"):
        _, encoding = weights_of(array, weight_method=method)
        error[method] = ((fake_quantize(array, encoding) - array) ** 2).sum(axis=1)
    assert (error["mse"] < error["minmax"]).all()
    _, plain = weights_of(w(4, 64), weight_method="mse")
    assert plain.scale.shape == (4,)


def test_dead_channels_are_listed() -> None:
    array = w(5, 6)
    array[1], array[3] = 0, 1e-42
    ctx, encoding = weights_of(array)
    (note,) = ctx.report.of("dead-channels")
    assert note.numbers["channels"] == [1, 3] and note.numbers["count"] == 2
    assert note.message == "'w' is (nearly) zero in 2 of 5 channels"
    assert encoding.scale[1] == 1 and encoding.scale[3] == np.finfo(np.float32).smallest_normal


def test_one_encoding_for_all_uses_alike_and_one_for_each_axis() -> None:
    model = graph("a = MatMul(x, w) b = MatMul(a, w) c = Transpose(w) y = Gemm(b, w)", w=w(4, 4))
    edges = [Edge(model.graph[i], 1) for i in (0, 1, 3)]
    plan = plan_of(model)
    plan.weights = dict.fromkeys(edges, I8)
    ctx = Context().put(plan, Axes({edges[0]: PerAxis(1), edges[1]: PerAxis(1), edges[2]: PerAxis(0)}), Ranges())
    run_step(Encode(), model, ctx)
    out = ctx.get(Encodings).weights
    assert out[edges[0]] is out[edges[1]] and out[edges[2]] is not out[edges[0]]
    array = model.graph.initializers["w"].const_value.numpy()
    np.testing.assert_array_equal(out[edges[0]].scale, np.float32(np.abs(array).max(axis=0) / np.float64(127)))


def test_an_edge_without_an_axis_is_per_tensor() -> None:
    model = graph("y = MatMul(x, w)", w=w(4, 4))
    plan, edge = plan_of(model), Edge(model.graph[0], 1)
    plan.weights[edge] = I8
    ctx = Context().put(plan, Axes())  # and without ranges, which only activations need
    run_step(Encode(), model, ctx)
    encoding = ctx.get(Encodings).weights[edge]
    assert encoding.scale.ndim == 0 and encoding.spec.granularity == PerTensor()


def test_a_weight_that_is_not_finite_stops() -> None:
    array = w(4, 4)
    array[2, 1] = np.nan
    with pytest.raises(DataError, match=r"MatMul\), weight 'w': weight of shape \[4, 4\] is not finite at \[2, 1\]"):
        weights_of(array)
