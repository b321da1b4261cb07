"""`calibrate`: right ranges by every method, on small graphs whose values are known."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.calibration.sources import open_source
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.errors import DataError, OptionError
from onnxq.facts import Edge, Feeds, Plan, Ranges, Wishes
from onnxq.numerics.spec import QTYPES, PerAxis, TensorSpec
from onnxq.passbase import run_step
from onnxq.passes.calibrate import Calibrate

U8 = TensorSpec(QTYPES["uint8"])
S8 = TensorSpec(QTYPES["int8"], True, PerAxis())
METHODS = ["minmax", "average", "percentile", "entropy", "mse"]


def load(text):
    return ir.from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))


def plan_all(model, spec=U8, *, without=()):
    """A plan that observes every float value of the main graph."""
    plan = Plan(Wishes(U8, S8))
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, None) and value.name not in without:
            plan.activations[value] = spec
    return plan


def calibrate(model, data, *, plan=None, ctx=None, **options):
    ctx = ctx or Context()
    ctx.put(plan or plan_all(model), Feeds(open_source(data, model)))
    assert run_step(Calibrate(**options), model, ctx) is False
    return ctx.get(Ranges), ctx


def by_name(ranges):
    return {v.name: r for v, r in ranges.of.items()}


RELU = "agraph (float[N, 3] x) => (float[N, 3] z) { y = Neg(x)  z = Relu(y) }"


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_any_shape_and_empty_ones(method):
    """Batch sizes differ, one sample is empty, and the result has the right extremes."""
    model = load(RELU)
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((n, 3)).astype(np.float32) for n in (8, 0, 1, 500)]
    ranges, _ = calibrate(model, data, method=method, percentile=100)
    values = np.concatenate(data)
    found = by_name(ranges)
    assert (found["x"].seen_lo, found["x"].seen_hi) == (values.min(), values.max())
    assert (found["y"].seen_lo, found["y"].seen_hi) == (-values.max(), -values.min())
    assert (found["z"].seen_lo, found["z"].seen_hi) == (0, -values.min())
    assert ranges.samples == 4
    for r in found.values():
        assert r.seen_lo <= r.lo <= r.hi <= r.seen_hi
        assert (r.sqnr_db is None) == (method in ("minmax", "average"))
        assert r.sqnr_db is None or 20 < r.sqnr_db < 60


def test_min_max_and_percentile_100_are_the_same():
    data = [np.random.default_rng(i).standard_t(2, (50, 3)).astype(np.float32) for i in range(5)]
    a, _ = calibrate(load(RELU), data)
    b, _ = calibrate(load(RELU), data, method="percentile", percentile=100)
    assert {k: (r.lo, r.hi) for k, r in by_name(a).items()} == {k: (r.lo, r.hi) for k, r in by_name(b).items()}


def test_average_is_the_mean_of_each_samples_ends():
    data = [np.float32([[-1, 0, 4]]), np.float32([[-3, 0, 2]]), np.float32([[-2, 0, 90]])]
    x = by_name(calibrate(load(RELU), data, method="average")[0])["x"]
    assert (x.lo, x.hi, x.seen_lo, x.seen_hi) == (-2, 32, -3, 90)


def test_entropy_is_not_min_max():
    """One value of 60 among normal ones: 128 bins for 128 levels would give min-max."""
    data = np.random.default_rng(0).standard_normal((10, 1000, 3)).astype(np.float32)
    data[3, 0, 0] = -60
    z = by_name(calibrate(load(RELU), list(data), method="entropy")[0])["z"]
    assert z.seen_hi == 60 and 2 < z.hi < 8 and z.lo == 0


@pytest.mark.parametrize("method", METHODS)
def test_order_of_the_samples_does_not_matter(method):
    rngs = [np.random.default_rng(i) for i in range(8)]
    data = [(rng.standard_normal((40, 3)) * 10.0 ** (i - 4)).astype(np.float32) for i, rng in enumerate(rngs)]
    a, b = (calibrate(load(RELU), d, method=method)[0] for d in (data, data[::-1]))
    for name, r in by_name(a).items():
        other = by_name(b)[name]
        assert (r.lo, r.hi) == pytest.approx((other.lo, other.hi), rel=1e-12)


def test_memory_limit_means_more_passes_and_the_same_ranges():
    text = "agraph (float[N, 256] x) => (float[N, 256] d) { a = Neg(x) b = Exp(a) c = Tanh(b) d = Relu(c) }"
    data = [np.random.default_rng(i).standard_normal((1000, 256)).astype(np.float32) for i in range(2)]
    (one, _), (many, ctx) = (calibrate(load(text), iter(data), memory=m) for m in (1024, 1))
    (note,) = ctx.report.of("calibration-memory")
    assert note.numbers == {"values": 4, "bytes": 4 * 1024000, "passes": 4, "peak": 1024000}
    assert "4.1 MB" in note.message and "4 passes over the data of at most 1.02 MB" in note.message
    assert by_name(one) == by_name(many) and one.samples == many.samples == 2


def test_fixed_ranges_come_from_the_plan_and_are_not_observed():
    model = load("agraph (float[2, 3] x) => (float[2, 3] y) { y = Softmax(x) }")
    plan = plan_all(model)
    y = model.graph.outputs[0]
    plan.fixed[y] = (0.0, 1.0)
    ranges, _ = calibrate(model, [np.ones((2, 3), np.float32)], plan=plan)
    assert (ranges.of[y].lo, ranges.of[y].hi) == (0, 1)


def test_dynamic_values_are_left_out_and_data_are_not_touched_when_nothing_is_to_be_seen():
    model = load(RELU)
    plan = plan_all(model, TensorSpec(QTYPES["uint8"], dynamic=True))

    def data():
        raise AssertionError("read")

    ranges, _ = calibrate(model, data, plan=plan)
    assert not ranges.of and ranges.samples == 0


def test_planned_constants_need_no_run():
    model = load(
        "agraph (float[2] x) => (float[2] y) <float[2] w = {-1, 3}> { c = Constant<value: tensor = float[2] {5, 7}>()"
        " v = Add(x, w) y = Add(v, c) }"
    )
    plan = plan_all(model)
    plan.activations[model.graph.initializers["w"]] = U8
    found = by_name(calibrate(model, [np.ones(2, np.float32)], plan=plan)[0])
    assert (found["w"].lo, found["w"].hi, found["c"].lo, found["c"].hi) == (-1, 3, 5, 7)
    assert (found["y"].lo, found["y"].hi) == (5, 11)


def test_optional_inputs_use_their_default():
    model = load("agraph (float[2] x, float[2] k = {1, 2}) => (float[2] y) { y = Add(x, k) }")
    ones = np.ones(2, np.float32)
    found = by_name(calibrate(model, [{"x": ones}, {"x": ones, "k": ones * 9}])[0])
    assert (found["k"].lo, found["k"].hi, found["y"].hi) == (1, 9, 10)


def test_float16_models():
    model = load("agraph (float16[N, 4] x) => (float16[N, 4] y) { y = Mul(x, x) }")
    x = np.float16([[0.5, -2, 3, 100]])
    found = by_name(calibrate(model, [x], method="mse")[0])
    assert (found["y"].seen_lo, found["y"].seen_hi) == (0.25, 10000)


def test_values_in_bodies_have_no_range_and_are_listed():
    model = load(
        "agraph (bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) },"
        " else_branch = e () => (float[2] b) { b = Abs(x) }> }"
    )
    plan = plan_all(model)
    (body_value,) = [n.outputs[0] for g in model.graph.subgraphs() for n in g if n.op_type == "Neg"]
    plan.activations[body_value] = U8
    data = [{"c": np.bool_(True), "x": np.float32([1, -2])}, {"c": np.bool_(False), "x": np.float32([1, -7])}]
    ranges, ctx = calibrate(model, data, plan=plan)
    assert body_value not in ranges.of
    (note,) = ctx.report.of("no-range")
    assert note.place.value == "a" and "subgraph" in note.message
    assert (by_name(ranges)["y"].lo, by_name(ranges)["y"].hi) == (-1, 7)


def test_values_that_are_always_empty_have_no_range():
    model = load("g (float[n,3] x, float[m,3] e) => (float[n,3] y, float[m,3] z) { y = Relu(x) z = Relu(e) }")
    ranges, ctx = calibrate(model, [{"x": np.ones((1, 3), np.float32), "e": np.zeros((0, 3), np.float32)}])
    assert set(by_name(ranges)) == {"x", "y"}
    assert {n.place.value: n.message for n in ctx.report.of("no-range")} == dict.fromkeys(
        "ez", "it was empty in every sample"
    )


def test_samples_that_are_all_empty_are_refused():
    with pytest.raises(DataError, match="a list: all samples are empty, a dimension of theirs is 0"):
        calibrate(load(RELU), [np.zeros((0, 3), np.float32)] * 2)


def test_nan_that_comes_from_an_infinite_input_names_it():
    model = load("g (float[3] x) => (float[3] y) { y = Sub(x, x) }")
    with pytest.raises(DataError, match="'y' is NaN in sample 0, where input 'x' is infinite: check the data"):
        calibrate(model, [np.array([1, np.inf, 2], np.float32)])


def test_constant_tensors_are_warned_about():
    """A blank image: the data, not the model, decides the scale."""
    _, ctx = calibrate(load(RELU), [np.zeros((2, 3), np.float32)] * 2)
    notes = ctx.report.of("constant-activation")
    assert [n.place.value for n in notes] == ["x", "y", "z"]
    assert all(n.severity is Severity.WARNING and n.numbers == {"value": 0} for n in notes)


def test_the_cache_round_trips():
    model = load(RELU)
    data = [np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)]
    ranges, _ = calibrate(model, data, method="percentile", percentile=99.5)
    text = json.dumps(ranges.to_json())
    again = Ranges.from_json(json.loads(text), model)
    assert again == ranges and again.method == "percentile 99.5"


def test_a_cache_file_stands_in_for_samples(tmp_path):
    model = load(RELU)
    ranges, _ = calibrate(model, [np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)])
    data = ranges.to_json()
    del data["ranges"]["y"]
    file = tmp_path / "ranges.json"
    file.write_text(json.dumps(data))
    step, ctx = Calibrate(ranges=str(file)), Context()
    assert Feeds in Calibrate().reads and Feeds not in step.reads
    plan = plan_all(model)
    plan.fixed[model.graph.outputs[0]] = (0.0, 6.0)
    run_step(step, model, ctx.put(plan))
    found = by_name(ctx.get(Ranges))
    assert found["x"] == by_name(ranges)["x"] and (found["z"].lo, found["z"].hi) == (0, 6)
    (note,) = ctx.report.of("no-range")
    assert note.place.value == "y" and note.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot read"), ("{", "cannot read"), ("{}", "not a calibration")]
)
def test_cache_files_that_are_none(tmp_path, text, message):
    file = tmp_path / "ranges.json"
    if text is not None:
        file.write_text(text)
    model = load(RELU)
    with pytest.raises(OptionError, match=rf"{message}.*|ranges\.json.*{message}"):
        run_step(Calibrate(ranges=str(file)), model, Context().put(plan_all(model)))


@pytest.mark.parametrize("damage", [{"ranges": None}, {"ranges": {"x": {"lo": 1}}}, {"ranges": {"x": {"nope": 1}}}])
def test_damaged_cache(damage):
    with pytest.raises(OptionError, match="damaged"):
        Ranges.from_json({"format": "onnxq-ranges-1", **damage}, load(RELU))


@pytest.mark.parametrize(
    "options", [{"percentile": 0.0}, {"percentile": 101.0}, {"bins": 1}, {"samples": 0}, {"memory": 0}]
)
def test_options_are_checked_at_once(options):
    with pytest.raises(OptionError):
        Calibrate(**options)


def test_samples_are_limited_and_progress_is_told():
    calls = []
    ctx = Context(progress=lambda *a: calls.append(a))
    ranges, _ = calibrate(load(RELU), [np.full((1, 3), i, np.float32) for i in range(5)], ctx=ctx, samples=2)
    assert ranges.samples == 2 and by_name(ranges)["x"].hi == 1
    assert calls == [("calibrate", 0, 2), ("calibrate", 1, 2), ("calibrate", 2, 2)]


def test_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def data():
        yield np.ones((1, 3), np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(load(RELU), data)
    assert list(tmp_path.iterdir()) == []


def test_channel_means_for_bias_correction():
    w4, w2 = np.zeros((2, 3, 1, 1), np.float32), np.zeros((5, 2), np.float32)
    inits = [onnx.numpy_helper.from_array(w4, "w4"), onnx.numpy_helper.from_array(w2, "w2")]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w4"], ["c"]), onnx.helper.make_node("MatMul", ["x", "w2"], ["m"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 3, 4, 5])],
        [onnx.helper.make_tensor_value_info("c", 1, None), onnx.helper.make_tensor_value_info("m", 1, None)],
        inits,
    )
    model = ir.from_proto(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    )
    plan = Plan(Wishes(U8, S8))
    plan.weights = {Edge(node, 1): S8 for node in model.graph}
    data = [np.random.default_rng(i).standard_normal((n, 3, 4, 5)).astype(np.float32) + i for i, n in enumerate((1, 6))]
    ranges, _ = calibrate(model, data, plan=plan, means=True)
    x = model.graph.inputs[0]
    both = np.concatenate(data).astype(np.float64)
    assert list(ranges.means) == [x] and sorted(ranges.means[x]) == [1, 3]
    np.testing.assert_allclose(ranges.means[x][1], both.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(ranges.means[x][3], both.mean(axis=(0, 1, 2)), rtol=1e-5)
    again = Ranges.from_json(json.loads(json.dumps(ranges.to_json())), model)
    np.testing.assert_array_equal(again.means[x][1], ranges.means[x][1])


# ------------------------------------------------------------------------------------------- NaN and infinities


def test_nan_stops_with_value_and_sample():
    good, bad = np.ones((1, 3), np.float32), np.float32([[1, np.nan, 0]])
    with pytest.raises(DataError, match="input 'x' is NaN in sample 1"):
        calibrate(load(RELU), [good, bad])
    model = load("agraph (float[N, 3] x) => (float[N, 3] y) { s = Sqrt(x) y = Relu(s) }")
    with pytest.raises(DataError, match="'s' is NaN in sample 2"):
        calibrate(model, [good, good, -good])


@pytest.mark.parametrize("samples", [1, 3])
def test_an_infinity_in_one_sample_stops(samples):
    data = [np.ones((3, 8), np.float32) for _ in range(samples)]
    data[-1][1, 2] = np.inf
    model = load("agraph (float[3, 8] x) => (float[3, 8] y) { y = Mul(x, x) }")
    with pytest.raises(DataError, match=f"input 'x' is infinite in .*{samples - 1}"):
        calibrate(model, data)


def test_an_overflow_in_one_sample_stops():
    model = load("agraph (float[2] x) => (float[2] y) { e = Exp(x) y = Sigmoid(e) }")
    with pytest.raises(DataError, match="'e' is infinite in sample 1, and nothing infinite flows into it"):
        calibrate(model, [np.float32([1, 2]), np.float32([1, 100])])


MASKED = (
    "agraph (float[2, 3] x, bool[2, 3] keep) => (float[2, 3] y) <float low = {%s}> "
    "{ s = Mul(x, x) m = Where(keep, s, low) p = Softmax(m) y = Mul(p, x) }"
)


@pytest.mark.parametrize("low", ["-inf", "-3.4028235e38"])
def test_masks_are_infinite_by_construction(low):
    """Only sample 1 masks anything; the softmax behind the mask has a normal range."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {MASKED % "0"}')
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.asarray(float(low), np.float32), "low"))
    model = ir.from_proto(proto)
    x, keep = np.float32([[1, 2, 3], [0, 1, 1]]), np.ones((2, 3), bool)
    masked = keep.copy()
    masked[0, 1] = False
    ranges, ctx = calibrate(model, [{"x": x, "keep": keep}, {"x": x, "keep": masked}])
    assert {v.name for v in ranges.infinite} == {"m"}
    assert "constant 'low' holds -" in next(iter(ranges.infinite.values()))
    assert [n.place.value for n in ctx.report.of("infinite-range")] == ["m"]
    found = by_name(ranges)
    assert set(found) == {"x", "s", "p", "y"}
    assert (found["s"].lo, found["s"].hi, found["p"].lo) == (0, 9, pytest.approx(0, abs=1e-30))
    assert Ranges.from_json(ranges.to_json(), model) == ranges


def test_masks_in_bodies_constants_and_constant_of_shape():
    helper, inf = onnx.helper, float("-inf")
    then = helper.make_graph(
        [helper.make_node("Constant", [], ["k"], value_float=inf), helper.make_node("Add", ["x", "k"], ["a"])],
        "t", [], [helper.make_tensor_value_info("a", 1, [2])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["b"])], "e", [], [helper.make_tensor_value_info("b", 1, [2])]
    )
    fill = helper.make_tensor("v", 1, [1], [inf])
    graph = helper.make_graph(
        [
            helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
            helper.make_node("ConstantOfShape", ["n"], ["f"], value=fill),
            helper.make_node("Max", ["x", "f"], ["g"]),
            helper.make_node("Add", ["x", "f"], ["z"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("c", 9, []),
            helper.make_tensor_value_info("x", 1, [2]),
            helper.make_tensor_value_info("n", 7, [1]),
        ],
        [helper.make_tensor_value_info(n, 1, [2]) for n in "ygz"],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    feeds = {"c": np.bool_(True), "x": np.float32([1, 2]), "n": np.int64([2])}
    ranges, _ = calibrate(model, [feeds], plan=plan_all(model))
    assert {v.name for v in ranges.infinite} == {"y", "f", "z"}
    assert by_name(ranges)["g"].hi == 2


def test_padded_embedding_rows():
    table = np.float32([[1, 2], [3, 4], [-np.inf, -np.inf]])
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["t", "ids"], ["e"]),
            onnx.helper.make_node("Add", ["e", "e"], ["a"]),
            onnx.helper.make_node("Softmax", ["a"], ["p"], axis=0),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("ids", 7, ["N"])],
        [onnx.helper.make_tensor_value_info("p", 1, ["N", 2])],
        [onnx.numpy_helper.from_array(table, "t")],
    )
    model = ir.from_proto(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    )
    ranges, _ = calibrate(model, [np.int64([0, 1]), np.int64([0, 2]), np.int64([1, 0])])
    assert {v.name: why for v, why in ranges.infinite.items()} == dict.fromkeys("ea", "constant 't' holds -inf")
    assert 0 <= by_name(ranges)["p"].lo < by_name(ranges)["p"].hi == 1


def test_a_mask_that_comes_in_is_infinite_in_every_sample():
    model = load("agraph (float[2] x, float[2] mask) => (float[2] p) { s = Add(x, mask) p = Softmax(s) }")
    x, mask = np.float32([1, 2]), np.float32([0, -np.inf])
    ranges, _ = calibrate(model, [{"x": x, "mask": mask}, {"x": x, "mask": mask[::-1]}])
    assert {v.name: why for v, why in ranges.infinite.items()} == dict.fromkeys(
        ("mask", "s"), "input 'mask' is infinite in every sample"
    )
    none = np.zeros(2, np.float32)
    for data in ([mask, none], [none, mask], [mask]):
        with pytest.raises(DataError, match="input 'mask' is infinite in"):
            calibrate(model, [{"x": x, "mask": m} for m in data])


def test_an_overflow_behind_a_softmax_is_not_excused_by_the_mask():
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> agraph (float[2] x) => (float[2] y) <float low = {0}> '
        "{ a = Add(x, low) p = Softmax(a) q = Mul(p, x) y = Exp(q) }"
    )
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.asarray([0, -np.inf], np.float32), "low"))
    with pytest.raises(DataError, match="'y' is infinite in sample 0"):
        calibrate(ir.from_proto(proto), [np.float32([1000, 1])])
