"""gptq: closer to float than nearest rounding, in every form of layer, within its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.errors import OptionError
from onnxq.facts import Axes, Edge, Encodings, Feeds, Plan, Wishes
from onnxq.numerics.affine import dequantize, fake_quantize, quantize
from onnxq.numerics.gptq import Curvature
from onnxq.numerics.gptq import gptq as round_weights
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, PerAxis, TensorSpec
from onnxq.ops import contraction_axis
from onnxq.passbase import Context, run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.gptq import Gptq
from onnxq.passes.guard_bias import GuardBias
from onnxq.passes.insert_dynamic import InsertDynamic
from onnxq.passes.insert_qdq import InsertQdq
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.recipe import load_recipe
from onnxq.weights import weight_tensor

Array = np.ndarray[Any, Any]
INT4 = QTYPES["int4"]


class Run:
    """A model brought up to its encodings, then rounded; what every test needs to look at."""

    def __init__(self, text: str, constants: dict[str, Array], samples: list[dict[str, Array]], **plan: Any) -> None:
        self.proto = parser.parse_model(text)
        for name, array in constants.items():
            self.proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        self.samples, self._plan = samples, plan

    def at(self, with_samples: bool = True, **options: Any) -> Run:
        self.model, self.ctx = ir.from_proto(self.proto), Context()
        feeds = Feeds(open_source(self.samples, model=self.model))
        self.ctx.put(feeds)
        steps = (load_recipe("prepare"), MakePlan(**self._plan), Calibrate(), LeaveFloat(), ResolveAxes(), Encode())
        for step in (*steps, GuardBias()):
            run_step(step, self.model, self.ctx)
        if not with_samples:
            del self.ctx._facts[Feeds]
        self.before = self.ctx.get(Encodings)
        self.graph = ir.to_proto(self.model).SerializeToString(deterministic=True)
        run_step(Gptq(**options), self.model, self.ctx)
        self.after = self.ctx.get(Encodings)
        assert ir.to_proto(self.model).SerializeToString(deterministic=True) == self.graph, "the graph was changed"
        return self

    def written(self) -> onnx.ModelProto:
        for step in (InsertDynamic(), InsertQdq()):
            run_step(step, self.model, self.ctx)
        return ir.to_proto(self.model)

    def chosen(self) -> dict[str, Array]:
        """Integers by node name, of the layers that were rounded by GPTQ."""
        return {e.node.name or "": w.integers for e, w in self.after.weights.items() if w.integers is not None}

    def notes(self) -> dict[str, Any]:
        return {n.code: n.numbers for n in self.ctx.report.notes}


def head(signature: str, body: str) -> str:
    return f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}'


def smooth(*shape: int, seed: int = 0) -> Array:
    """Images (or rows) whose neighbours look alike, as features do."""
    x = np.random.default_rng(seed).standard_normal(shape)
    for axis in range(1, len(shape)):
        x = np.cumsum(x, axis=axis)
    return (x / np.abs(x).max()).astype(np.float32)


def samples(*shape: int, name: str = "x", count: int = 4) -> list[dict[str, Array]]:
    return [{name: smooth(*shape, seed=i)} for i in range(count)]


RNG = np.random.default_rng(0)
FORMS: dict[str, tuple[str, dict[str, Array], tuple[int, ...]]] = {
    "conv": ("y = Conv<pads=[1,1,1,1]>(x, w, b)", {"w": RNG.standard_normal((8, 4, 3, 3)), "b": np.ones(8)},
             (1, 4, 12, 12)),
    "grouped": ("y = Conv<group=2>(x, w)", {"w": RNG.standard_normal((8, 2, 3, 3))}, (1, 4, 12, 12)),
    "depthwise": ("y = Conv<group=4>(x, w)", {"w": RNG.standard_normal((4, 1, 3, 3))}, (1, 4, 12, 12)),
    "conv1d": ("y = Conv<strides=[2]>(x, w)", {"w": RNG.standard_normal((6, 4, 5))}, (2, 4, 60)),
    "gemm": ("y = Gemm(x, w, b)", {"w": RNG.standard_normal((24, 8)), "b": np.ones(8)}, (64, 24)),
    "gemm-transb": ("y = Gemm<transB=1>(x, w)", {"w": RNG.standard_normal((8, 24))}, (64, 24)),
    "matmul": ("y = MatMul(x, w)", {"w": RNG.standard_normal((24, 8))}, (4, 16, 24)),
}  # fmt: skip


def form(name: str, **plan: Any) -> Run:
    body, constants, dims = FORMS[name]
    out = ",".join("abcd"[: len(dims)])
    text = head(f"(float[{','.join(map(str, dims))}] x) => (float[{out}] y)", body)
    return Run(
        text, constants, samples(*dims), dynamic="never", force=(f"op:{body[4:].split('<')[0].split('(')[0]}",), **plan
    )


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_layer(name: str, kind: str, run_model: Callable[..., Any]) -> None:
    """The integers are those of the formula on an oracle's Hessian, and the weights alone lose less output."""
    case = form(name, weights=kind).at()
    (integers,) = case.chosen().values()
    encoding, nearest = (next(iter(e.weights.values())) for e in (case.after, case.before))
    weight = FORMS[name][1]["w"].astype(np.float32)
    assert integers.shape == weight.shape and integers.dtype == np.int8
    np.testing.assert_array_equal(encoding.scale, nearest.scale)
    errors = []
    for q in (quantize(weight, nearest), integers):
        proto = onnx.ModelProto.FromString(case.proto.SerializeToString())
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(dequantize(q, nearest), "w"))
        error = 0.0
        for feeds in case.samples:
            error += float(((run_model(proto, feeds)[0] - run_model(case.proto, feeds)[0]) ** 2).sum())
        errors.append(error)
    assert errors[1] < errors[0] / 3
    assert case.notes()["gptq"]["layers"] == 1 and case.notes()["gptq"]["times"] > 3


def test_the_integers_are_those_of_the_formula() -> None:
    case = form("matmul", weights="int4").at()
    (integers,), (encoding,) = case.chosen().values(), case.after.weights.values()
    (seen,) = case.after.activations.values()
    x = np.concatenate([fake_quantize(s["x"], seen).reshape(-1, 24) for s in case.samples]).astype(np.float64)
    weight = FORMS["matmul"][1]["w"].astype(np.float32).T[None]
    scale, zero = (np.reshape(p, (1, -1, 1)) for p in (encoding.scale, encoding.zero_point))
    wanted = round_weights(weight, Curvature.of((x.T @ x)[None]), scale, zero, encoding.spec.qtype)[0].T
    assert np.mean(integers != wanted) < 0.02  # sums in float32 and float64 may differ at a half


CHAIN = head(
    "(float[1,4,12,12] x) => (float[a,b,c,d] y)",
    "p = Conv<pads=[1,1,1,1]>(x, w1, b1) q = Relu(p) r = Conv<pads=[1,1,1,1]>(q, w2, b2) s = Relu(r) y = Conv(s, w3)",
)


def chain(**plan: Any) -> Run:
    rng = np.random.default_rng(1)
    shapes = {"w1": (16, 4, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (4, 16, 1, 1)}
    return Run(CHAIN, {k: rng.standard_normal(v) * 0.3 for k, v in shapes.items()}, samples(1, 4, 12, 12), **plan)


def test_a_whole_model_comes_closer_to_float(run_model: Callable[..., Any]) -> None:
    """In onnxruntime, on samples that were not used."""
    found = {}
    for rounding in ("nearest", "gptq"):
        case = chain(weights="int4", activations="uint16", target="onnx").at(rounding=rounding)
        proto, noise = case.written(), 0.0
        for i in range(50, 53):
            feeds = {"x": smooth(1, 4, 12, 12, seed=i)}
            exact = run_model(case.proto, feeds)[0]
            noise += float(((exact - run_model(proto, feeds, true=True)[0]) ** 2).sum() / (exact**2).sum())
        found[rounding] = noise
    assert found["gptq"] < found["nearest"] / 1.5


def test_the_same_bytes_twice() -> None:
    one, two = (chain().at().written().SerializeToString(deterministic=True) for _ in range(2))
    assert one == two


def test_biases_and_activations_stay() -> None:
    case = chain().at()
    assert case.after.activations == case.before.activations and case.after.biases == case.before.biases
    for edge, encoding in case.before.weights.items():
        assert case.after.weights[edge].same(encoding)


@pytest.mark.parametrize("options", [{"rounding": "nearest"}, {"with_samples": False}])
def test_switched_off_or_without_samples(options: dict[str, Any]) -> None:
    case = chain().at(**options)
    assert case.after is case.before and not case.chosen() and "gptq" not in case.notes()
    assert ("gptq-skipped" in case.notes()) == ("with_samples" in options)


def test_effort() -> None:
    """The cheapest layers first; the rest stays nearest, with one note."""
    work = {name: inputs**3 * 1.5 + rows * inputs**2 * 6 for name, inputs, rows in (("w1", 36, 16), ("w3", 16, 4))}
    case = chain().at(effort=(sum(work.values()) + 1) / 1e9)
    found = {e.value.name for e, w in case.after.weights.items() if w.integers is not None}
    assert found == {"w1", "w3"}
    assert case.notes()["gptq-effort"] == {"layers": 1} and case.notes()["gptq"]["layers"] == 2
    none = chain().at(effort=0.0)
    assert not none.chosen() and none.notes()["gptq-effort"] == {"layers": 3} and "gptq" not in none.notes()


def test_parts_by_memory_give_the_same() -> None:
    """One megabyte holds one of these Hessians (288 inputs) at a time: a run for each layer."""
    text = head("(float[1,32,6,6] x) => (float[a,b,c,d] y)",
                "p = Conv<pads=[1,1,1,1]>(x, w1) q = Relu(p) y = Conv<pads=[1,1,1,1]>(q, w2)")  # fmt: skip
    rng = np.random.default_rng(2)
    constants = {k: rng.standard_normal((32, 32, 3, 3)) * 0.1 for k in ("w1", "w2")}
    whole = Run(text, constants, samples(1, 32, 6, 6)).at()
    parts = Run(text, constants, samples(1, 32, 6, 6)).at(memory=1)
    runs = [len(c.ctx.report.of("calibration-memory")) for c in (whole, parts)]
    assert runs == [2, 3], "one of them is calibrate's"
    assert whole.chosen().keys() == parts.chosen().keys() and len(whole.chosen()) == 2
    for name, integers in whole.chosen().items():
        np.testing.assert_array_equal(integers, parts.chosen()[name])


def test_a_shared_weight_sees_the_inputs_of_both() -> None:
    """One copy in the file, so one set of integers, good for both inputs."""
    text = head("(float[64,24] x, float[64,24] z) => (float[a,b] y, float[c,d] v)",
                "y = MatMul(x, w) v = MatMul(z, w)")  # fmt: skip
    w = np.random.default_rng(3).standard_normal((24, 8))
    feeds = [{"x": smooth(64, 24, seed=i), "z": smooth(64, 24, seed=i + 10)[:, ::-1].copy()} for i in range(3)]
    case = Run(text, {"w": w}, feeds, dynamic="never").at()
    one, two = case.chosen().values()
    assert one is two
    seen = {v.name: e for v, e in case.after.activations.items()}
    rows = np.concatenate([fake_quantize(a, seen[n]).astype(np.float64) for f in feeds for n, a in f.items()])
    encoding = next(iter(case.after.weights.values()))
    scale, zero = (np.reshape(p, (1, -1, 1)) for p in (encoding.scale, encoding.zero_point))
    wanted = round_weights(
        w.T[None].astype("f4"), Curvature.of((rows.T @ rows)[None]), scale, zero, encoding.spec.qtype
    )[0].T
    assert np.mean(one != wanted) < 0.03  # sums in float32 and float64 may differ at a half
    written = case.written()
    assert len([t for t in written.graph.initializer if t.data_type == onnx.TensorProto.INT8 and t.dims]) == 1 + (
        sum(t.name.endswith("zero_point") and len(t.dims) > 0 for t in written.graph.initializer)
    )


def test_dynamic_layers_are_rounded_too(run_model: Callable[..., Any]) -> None:
    text = head("(float[64,24] x) => (float[a,b] y)", "a = Tanh(x) m = MatMul(a, w) y = Erf(m)")
    case = Run(text, {"w": np.random.default_rng(4).standard_normal((24, 8))}, samples(64, 24)).at()
    assert len(case.chosen()) == 1
    written = case.written()
    assert "DynamicQuantizeLinear" in [n.op_type for n in written.graph.node]
    feeds = case.samples[0]
    np.testing.assert_allclose(run_model(written, feeds)[0], run_model(case.proto, feeds)[0], atol=0.05)


def test_a_weight_behind_a_transpose() -> None:
    """An embedding that is the output layer, too: the table stays as it lies, the product reads it transposed."""
    text = head("(int64[2,6] i) => (float[a,b,c] y)", "e = Gather(w, i) h = Tanh(e) t = Transpose(w) y = MatMul(h, t)")
    w = smooth(40, 24, seed=9) * 5
    feeds = [{"i": np.random.default_rng(i).integers(0, 40, (2, 6))} for i in range(4)]
    case = Run(text, {"w": w}, feeds).at()
    chosen = case.chosen()
    assert [a.shape for a in chosen.values()] == [(24, 40)]


def test_a_weight_used_in_a_body_keeps_one_copy() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[64,24] x, bool p) => (float[a,b] y, float[c,d] v) {
      h = Relu(x) y = MatMul(h, w)
      v = If(p) <then_branch = t () => (float[e,f] r) { r = MatMul(h, w) },
                else_branch = u () => (float[e,f] s) { s = MatMul(h, w) }> }"""
    feeds = [{**f, "p": np.array(True)} for f in samples(64, 24)]
    case = Run(text, {"w": np.random.default_rng(5).standard_normal((24, 8))}, feeds, dynamic="never").at()
    found = {id(w.integers) for w in case.after.weights.values()}
    assert len(found) == 1 and all(w.integers is not None for w in case.after.weights.values())


def test_layers_that_it_leaves_alone() -> None:
    """A weight of rank 3 and a ConvTranspose: nearest, unchanged."""
    text = head("(float[2,16,24] x) => (float[a,b,c] y, float[d,e,f] z)", "y = MatMul(x, w) z = ConvTranspose(x, k)")
    rng = np.random.default_rng(6)
    given = {"w": rng.standard_normal((2, 24, 8)), "k": rng.standard_normal((16, 4, 3))}
    case = Run(text, given, samples(2, 16, 24), dynamic="never", force=("*",)).at()
    assert len(case.after.weights) == 2 and not case.chosen() and "gptq" not in case.notes()


def test_at_most_so_many_samples() -> None:
    """Rounding on the first two of four is rounding on two."""
    case, two = form("matmul"), form("matmul")
    limited = case.at(samples=2).chosen()
    model, ctx = two.at(rounding="nearest").model, two.ctx
    ctx.put(Feeds(open_source(two.samples[:2], model=model)))
    run_step(Gptq(), model, ctx)
    (wanted,) = [w.integers for w in ctx.get(Encodings).weights.values()]
    np.testing.assert_array_equal(next(iter(limited.values())), wanted)


def test_zero_points_of_asymmetric_weights() -> None:
    case = form("gemm", weights="uint8")
    chosen = case.at().chosen()
    (integers,), (encoding,) = chosen.values(), case.after.weights.values()
    assert integers.dtype == np.uint8
    weight = FORMS["gemm"][1]["w"].astype(np.float32)
    step = np.broadcast_to(encoding.scale, (1, 8))
    assert np.abs(dequantize(integers, replace(encoding, integers=None)) - weight).max() < 8 * step.max()


def test_edges_of_one_weight_with_two_axes_are_apart() -> None:
    text = head("(float[24,24] x) => (float[a,b] y, float[c,d] v)", "y = Gemm(x, w) v = Gemm<transB=1>(x, w)")
    case = Run(text, {"w": np.random.default_rng(7).standard_normal((24, 24))}, samples(24, 24), dynamic="never").at()
    assert isinstance(next(iter(case.after.weights)), Edge)
    one, two = case.chosen().values()
    assert (one != two).any()


# -- granularities, recurrent layers, scales ---------------------------------------------------------------------------


def weight_only(
    text: str, constants: dict[str, Array], feeds: list[dict[str, Array]], block: int, **options: Any
) -> Any:
    """Encodings before and after, notes; activations stay float."""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), k) for k, a in constants.items())
    model, ctx = ir.from_proto(proto), Context()
    ctx.put(Feeds(open_source(feeds, model=model)))
    plan, axes = Plan(Wishes(TensorSpec(INT4), TensorSpec(INT4))), Axes()
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if index and value is not None and value.const_value is not None and value.name != "b":
                edge, rank = Edge(node, index), len(value.shape or ())
                plan.weights[edge] = TensorSpec(INT4, True, PerAxis())
                axis = contraction_axis(node, index, [int(d) for d in value.const_value.shape.numpy()])
                axes.of[edge] = Blocked(block, axis) if block and axis is not None else PerAxis(min(rank - 1, 1))
    ctx.put(plan, axes)
    run_step(Encode(), model, ctx)
    before = ctx.get(Encodings)
    run_step(Gptq(**options), model, ctx)
    return before, ctx.get(Encodings), ctx


def decoded(edge: Edge, encoding: Encoding) -> Array:
    w = weight_tensor(edge.value).numpy()  # type: ignore[union-attr]
    return dequantize(quantize(w, encoding) if encoding.integers is None else encoding.integers, encoding)


@pytest.mark.parametrize("block", [8, 10, 24, 100])
@pytest.mark.parametrize("trans", [0, 1])
def test_blocks(block: int, trans: int) -> None:
    """Also with a short last block; scales stay, and the output comes closer."""
    text = head("(float[64,24] x) => (float[a,b] y)", f"y = Gemm<transB={trans}>(x, w)")
    w, feeds = np.random.default_rng(8).standard_normal((24, 16)), samples(64, 24)
    before, after, _ = weight_only(text, {"w": w.T if trans else w}, feeds, block)
    (edge, encoding), (nearest,) = *after.weights.items(), before.weights.values()
    assert encoding.same(nearest) and encoding.integers.shape == ((16, 24) if trans else (24, 16))
    errors = []
    for e in (encoding, nearest):
        d = decoded(edge, e)
        errors.append(sum(((f["x"] @ ((d.T if trans else d) - w)) ** 2).sum() for f in feeds))
    assert errors[0] < errors[1] / 3


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(op: str, run_model: Callable[..., Any]) -> None:
    """Both weights are rounded by what they multiply with; the outputs come closer to float."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    more = ", linear_before_reset=1" if op == "GRU" else ""
    text = head(
        "(float[20,2,12] x) => (float[a,b,c,d] y)",
        f'y = {op}<hidden_size=8, direction="bidirectional"{more}>(x, w, r)',
    )
    rng = np.random.default_rng(9)
    constants = {"w": rng.standard_normal((2, gates * 8, 12)), "r": 0.3 * rng.standard_normal((2, gates * 8, 8))}
    feeds = samples(20, 2, 12)
    before, after, ctx = weight_only(text, constants, feeds, 100)
    assert all(e.integers is not None for e in after.weights.values()) and len(after.weights) == 2
    proto = parser.parse_model(text)
    errors = []
    for encodings in (after, before, None):
        del proto.graph.initializer[:]
        for edge in after.weights:
            name = edge.value.name or ""
            a = decoded(edge, encodings.weights[edge]) if encodings else constants[name].astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(a, name))
        errors.append(np.concatenate([run_model(proto, f)[0].ravel() for f in feeds]))
    gptq, nearest = (float(((e - errors[2]) ** 2).sum()) for e in errors[:2])
    assert gptq < nearest / 1.5 and ctx.report.of("gptq")[0].numbers["times"] > 1.5


def test_a_recurrence_weight_without_states_stays_nearest() -> None:
    text = head("(float[20,2,12] x) => (float[a,b,c] y)", "n, y = GRU<hidden_size=8>(x, w, r)")
    rng = np.random.default_rng(10)
    constants = {"w": rng.standard_normal((1, 24, 12)), "r": rng.standard_normal((1, 24, 8))}
    _, after, ctx = weight_only(text, constants, samples(20, 2, 12), 100)
    chosen = {e.value.name for e, w in after.weights.items() if w.integers is not None}
    (note,) = ctx.report.of("gptq-nearest")
    assert chosen == {"w"} and "'r' is rounded to nearest" in note.message and "linear_before_reset=0" in note.message


@pytest.mark.parametrize("scales", ["search", "mse", "hqq"])
def test_scales_chosen_again(scales: str) -> None:
    """By the energy of the inputs: an outlier in an input that is nearly zero is clipped away."""
    text = head("(float[64,24] x) => (float[a,b] y)", "y = MatMul(x, w)")
    w, feeds = np.random.default_rng(11).standard_normal((24, 16)), samples(64, 24)
    w[3] *= 20
    for f in feeds:
        f["x"][:, 3] *= 1e-3
    before, after, _ = weight_only(text, {"w": w}, feeds, 24, scales=scales)
    (edge, encoding), (nearest,) = *after.weights.items(), before.weights.values()
    assert (encoding.scale < nearest.scale).all()
    errors = [sum(((f["x"] @ (decoded(edge, e) - w)) ** 2).sum() for f in feeds) for e in (encoding, nearest)]
    assert errors[0] < errors[1] / 10


def test_scales_stay_once_biases_are_encoded() -> None:
    with pytest.raises(OptionError, match="put guard-bias behind it"):
        chain().at(scales="mse")


def test_layers_with_one_input_share_its_moments() -> None:
    """Query, key and value: one factorization, the same integers as each alone."""
    rng = np.random.default_rng(12)
    w = {k: rng.standard_normal((24, 8)) for k in "qkv"}
    feeds = samples(64, 24)
    text = head("(float[64,24] x) => (float[a,b] y, float[c,d] z, float[e,f] u)",
                "y = MatMul(x, q) z = MatMul(x, k) u = MatMul(x, v)")  # fmt: skip
    _, after, _ = weight_only(text, w, feeds, 8)
    for edge, encoding in after.weights.items():
        name = edge.value.name or ""
        alone = head("(float[64,24] x) => (float[a,b] y)", f"y = MatMul(x, {name})")
        _, one, _ = weight_only(alone, {name: w[name]}, feeds, 8)
        np.testing.assert_array_equal(encoding.integers, next(iter(one.weights.values())).integers)
