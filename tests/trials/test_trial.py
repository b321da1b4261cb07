"""Trials: switches in a float session say what the pairs of a plan would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.facts import Decision, Edge, Encodings, Feeds, Goal, Plan
from onnxq.numerics.spec import Encoding
from onnxq.passbase import Context, run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.insert_qdq import InsertQdq
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.planning import Planner
from onnxq.recipe import load_recipe
from onnxq.session import Runtime
from onnxq.trials.trial import decibels, measured_values, open_trial

Array = np.ndarray[Any, Any]

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[a,b,c,d] y, float[e,f,g,h] z) {
  p = Conv<pads=[1,1,1,1]>(x, w1) q = Relu(p) r = Conv<pads=[1,1,1,1]>(q, w2) s = Add(r, q)
  m = MaxPool<kernel_shape=[2,2]>(s) y = Conv(m, w3) z = Conv(m, w4) }"""


class Net:
    """A prepared model with plan and activation encodings."""

    def __init__(self, text: str = NET, scale: float = 0.3, **plan: Any) -> None:
        rng = np.random.default_rng(0)
        self.proto = parser.parse_model(text)
        shapes = {"w1": (8, 4, 3, 3), "w2": (8, 8, 3, 3), "w3": (6, 8, 1, 1), "w4": (6, 8, 1, 1)}
        for name, shape in shapes.items():
            array = (rng.standard_normal(shape) * scale).astype(np.float32)
            self.proto.graph.initializer.append(numpy_helper.from_array(array, name))
        self.samples = [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(3)]
        self.model, self.ctx = ir.from_proto(self.proto), Context()
        self.ctx.put(Feeds(open_source(self.samples, model=self.model)))
        for step in (load_recipe("prepare"), MakePlan(**plan), Calibrate(), LeaveFloat(), ResolveAxes(), Encode()):
            run_step(step, self.model, self.ctx)
        self.plan, self.encodings = self.ctx.get(Plan), self.ctx.get(Encodings)

    def without_weights(self) -> onnx.ModelProto:
        """The model with its activation pairs and float weights: what a trial with all switches on should compute."""
        plan = self.ctx.get(Plan)
        self.ctx.put(replace(plan, weights={}, biases={}), replace(self.encodings, weights={}, biases={}))
        run_step(InsertQdq(), self.model, self.ctx)
        return ir.to_proto(self.model)


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    return list(ort.InferenceSession(proto.SerializeToString(), options).run(None, dict(feeds)))


def noise_of(exact: list[list[Array]], got: list[list[Array]]) -> float:
    """Mean over the outputs of noise energy over signal energy, over all samples."""
    shares = []
    for i in range(len(exact[0])):
        signal = sum(float((e[i].astype(np.float64) ** 2).sum()) for e in exact)
        shares.append(
            sum(float(((e[i] - g[i]).astype(np.float64) ** 2).sum()) for e, g in zip(exact, got, strict=True))
        )
        shares[-1] /= signal
    return float(np.mean(shares))


def off(plan: Plan) -> Plan:
    return replace(plan, activations={})


@pytest.mark.parametrize("activations", ["uint8", "uint16", "int16"])
def test_all_off_is_float_and_all_on_is_the_inserted_model(activations: str) -> None:
    net = Net(activations=activations)
    before = ir.to_proto(net.model).SerializeToString(deterministic=True)
    assert len(net.plan.activations) >= 7 and {v.name for v in net.plan.outputs} == {"y", "z"}
    with open_trial(net.model, net.plan, net.samples, Runtime()) as trial:
        nothing = trial.noise(off(net.plan), Encodings())
        everything = trial.noise(net.plan, net.encodings)
        assert trial.noise(net.plan, net.encodings) == everything
    assert nothing < 1e-12, "only the order of sums may differ between the sessions"
    assert ir.to_proto(net.model).SerializeToString(deterministic=True) == before
    exact = [run(net.proto, f) for f in net.samples]
    quantized = net.without_weights()
    wanted = noise_of(exact, [run(quantized, f) for f in net.samples])
    assert everything == pytest.approx(wanted, rel=0.02)
    assert (0.01 > everything > 1e-6) if activations == "uint8" else everything < 1e-7


def test_switches_are_one_by_one() -> None:
    """With one layer banned, the noise is that of the plan made without it, whatever the other switches."""
    net = Net()
    banned = {n: Decision("float", "x", "x") for n in net.plan.decisions if n.name == "" or n.op_type == "Add"}
    less = Planner(net.ctx.get(Goal).target, replace(net.plan.wishes, banned=banned)).make(net.model)
    assert set(less.activations) < set(net.plan.activations)
    with open_trial(net.model, net.plan, net.samples, Runtime()) as big:
        got = big.noise(less, net.encodings)
    with open_trial(net.model, less, net.samples, Runtime()) as small:
        assert small.noise(less, net.encodings) == pytest.approx(got, rel=1e-3)


def test_other_ranges_need_no_other_session() -> None:
    net = Net()
    twice = {v: replace(e, scale=np.float32(2) * e.scale) for v, e in net.encodings.activations.items()}
    with open_trial(net.model, net.plan, net.samples, Runtime()) as trial:
        fine, coarse = (trial.noise(net.plan, e) for e in (net.encodings, Encodings(_centred(twice))))
    assert 2 < coarse / fine < 8


def _centred(encodings: dict[ir.Value, Encoding]) -> dict[ir.Value, Encoding]:
    """The zero point moved as far as the scale was widened."""
    return {v: replace(e, zero_point=(e.zero_point // 2).astype(e.zero_point.dtype)) for v, e in encodings.items()}


@pytest.mark.parametrize(
    ("tail", "measured"),
    [
        ("y = Softmax(r)", ["r"]),
        ("s = Softmax(r) y = Identity(s)", ["r"]),
        ("s = Sigmoid(r) t = Transpose<perm=[0,2,3,1]>(s) y = Flatten(t)", ["r"]),
        ("y = Relu(r)", ["y"]),
        ("y = ArgMax<axis=1>(r)", ["r"]),
        ("y = Tanh(x)", []),
    ],
)
def test_measured_in_front_of_what_squashes(tail: str, measured: list[str]) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (y) {{ r = Abs(x) {tail} }}'
    assert [v.name for v in measured_values(ir.from_proto(parser.parse_model(text)))] == measured


def test_one_value_in_front_of_two_outputs_counts_once() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (y, z) { r = Abs(x) y = Softmax(r) z = Tanh(r) }'
    assert [v.name for v in measured_values(ir.from_proto(parser.parse_model(text)))] == ["r"]


def test_decibels() -> None:
    assert decibels(0.01) == 20 and decibels(1) == 0 and decibels(0.0) == np.inf


def test_nothing_measurable_is_no_noise() -> None:
    """Outputs of integers only, or straight from an input."""
    net = Net()
    with open_trial(net.model, net.plan, [{"x": np.zeros((1, 4, 8, 8), np.float32)}], Runtime()) as trial:
        assert trial.noise(net.plan, net.encodings) == 0.0


def test_no_planned_value() -> None:
    net = Net()
    with open_trial(net.model, off(net.plan), net.samples, Runtime()) as trial:
        assert trial.pairs == [] and trial.noise(off(net.plan), Encodings()) < 1e-12


def test_readers_outside_the_plan_keep_float() -> None:
    """Only the uses named in the plan read the pair."""
    net = Net()
    some = dict(list(net.plan.readers.items())[:1])
    assert all(isinstance(e, Edge) for e in some)
    partial = replace(net.plan, readers=some, outputs=set())
    with open_trial(net.model, partial, net.samples, Runtime()) as trial:
        small = trial.noise(partial, net.encodings)
    with open_trial(net.model, net.plan, net.samples, Runtime()) as trial:
        assert 0 < small < trial.noise(net.plan, net.encodings)


def test_a_nested_if_reads_what_it_read() -> None:
    """Values read in bodies, and pairs for them: the copy finds the same nodes."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[a,b,c,d] y) {
      p = Conv<pads=[1,1,1,1]>(x, w1) q = Relu(p) k = ReduceSum<keepdims=0>(q) c = Cast<to=9>(k)
      y = If(c) <then_branch = t () => (float[e,f,g,h] r) { r = Conv<pads=[1,1,1,1]>(q, w2) },
                 else_branch = u () => (float[e,f,g,h] s) { s = Neg(q) }> }"""
    net = Net(text)
    with open_trial(net.model, net.plan, net.samples, Runtime()) as trial:
        assert trial.noise(off(net.plan), Encodings()) < 1e-12
        assert trial.noise(net.plan, net.encodings) >= 0
