"""Expected noise against what a trial and the weights themselves say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.encoding import activation_encodings
from onnxq.facts import Decision, Edge, Encodings, Feeds, Goal, Plan, Ranges
from onnxq.numerics.spec import Blocked
from onnxq.passbase import Context, run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.plan import MakePlan
from onnxq.recipe import load_recipe
from onnxq.session import Runtime
from onnxq.trials.trial import Trial, open_trial
from onnxq.tuning import noise as module
from onnxq.tuning.noise import Noise, probe

TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,4,8,8] x) => (float[1,8,8,8] y)
  { a = Conv<pads=[1,1,1,1]>(x, w1) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w2) d = Add(c, b) y = Conv(d, w3) }"""


class Net:
    """A calibrated model with an open trial."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        proto = parser.parse_model(TEXT)
        for name, shape in {"w1": (8, 4, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 1, 1)}.items():
            array = (rng.standard_normal(shape) * 0.3).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        self.samples = [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
        self.model, ctx = ir.from_proto(proto), Context()
        ctx.put(Feeds(open_source(self.samples, model=self.model)))
        for step in (load_recipe("prepare"), MakePlan(dynamic="never"), Calibrate(method="mse")):
            run_step(step, self.model, ctx)
        self.plan, self.ranges, self.target = ctx.get(Plan), ctx.get(Ranges).of, ctx.get(Goal).target

    def probe(self, trial: Trial) -> Noise:
        return probe(self.model, self.target, self.plan, self.ranges, trial, lambda *_: None)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def trial(net: Net) -> Iterator[Trial]:
    with open_trial(net.model, net.plan, net.samples, Runtime()) as opened:
        yield opened


def without_weights(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, **{"weights": {}, **changes})


def test_pairs_add_up_to_what_all_of_them_do(net: Net, trial: Trial) -> None:
    expected = net.probe(trial)(without_weights(net.plan))
    assert expected == pytest.approx(trial.noise(net.plan, activation_encodings(net.plan, net.ranges)), rel=0.3)


def test_one_pair_is_what_was_measured(net: Net, trial: Trial) -> None:
    found, encodings = net.probe(trial), activation_encodings(net.plan, net.ranges)
    for value, spec in net.plan.activations.items():
        only = without_weights(net.plan, activations={value: spec}, bridges={})
        assert found(only) == pytest.approx(trial.noise(only, encodings), rel=1e-9)


def test_eight_more_bits_are_two_to_the_sixteenth_of_the_noise(net: Net, trial: Trial) -> None:
    found = net.probe(trial)
    wide = dict.fromkeys(net.plan.activations, net.target.activation_spec("uint16"))
    eight, sixteen = found(without_weights(net.plan)), found(without_weights(net.plan, activations=wide))
    assert sixteen == pytest.approx(eight / 2**16, rel=1e-9)


def test_probes_are_bounded(net: Net, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours are then probed together, and share the noise as calibration expects it."""
    single = net.probe(trial)(without_weights(net.plan))
    calls: list[int] = []
    monkeypatch.setattr(module, "MOST_PROBES", 2)
    kept = trial.noise

    def counted(plan: Plan, encodings: Encodings) -> float:
        calls.append(1)
        return kept(plan, encodings)

    monkeypatch.setattr(trial, "noise", counted)
    assert net.probe(trial)(without_weights(net.plan)) == pytest.approx(single, rel=0.3)
    assert len(calls) == 2


def test_rounding_of_weights(net: Net, trial: Trial) -> None:
    """By hand: rint(w / s) * s with s = max|w| / 127 a channel, and max|w| / 7 a block."""
    found = net.probe(trial)
    edge = Edge(next(n for n in net.model.graph if n.op_type == "Conv"), 1)
    value = edge.value.const_value
    assert value is not None
    w = value.numpy().astype(np.float64)
    scale = np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 127
    wanted = ((np.rint(w / scale) * scale - w) ** 2).sum() / (w**2).sum()
    assert found.rounding(edge, net.target.weight_spec()) == pytest.approx(wanted, rel=1e-3)
    last = Edge(next(n for n in net.model.graph if n.outputs[0].name == "y"), 1)
    four = found.rounding(last, net.target.weight_spec("int4").at(Blocked(32)))
    assert 50 < four / found.rounding(last, net.target.weight_spec()) < 1000


def test_weights_count_by_the_gain_of_their_input(net: Net, trial: Trial) -> None:
    found = net.probe(trial)
    everything, pairs = found(net.plan), found(without_weights(net.plan))
    rounding = 0.0
    for edge, spec in net.plan.weights.items():
        source = edge.node.inputs[0]
        assert source is not None
        rounding += found.gains[source] * found.rounding(edge, spec)
    assert everything - pairs == pytest.approx(rounding, rel=1e-6)


def test_exact_values_say_nothing_of_weights() -> None:
    """A mask of whole steps makes no noise as a pair; the weights behind it still do."""
    net = Net()
    net.samples = [{"x": np.round(s["x"]).clip(0, 1)} for s in net.samples]
    ctx = Context().put(Feeds(open_source(net.samples, model=net.model)), net.plan)
    run_step(Calibrate(method="minmax"), net.model, ctx)
    net.ranges = ctx.get(Ranges).of
    with open_trial(net.model, net.plan, net.samples, Runtime()) as trial:
        found = net.probe(trial)
    first = next(n for n in net.model.graph if n.op_type == "Conv")
    assert first.inputs[0] not in found.gains
    edge, spec = Edge(first, 1), net.target.weight_spec()
    alone = without_weights(net.plan, activations={}, readers={}, bridges={}, weights={edge: spec})
    assert found(alone) == pytest.approx(found.rounding(edge, spec))


def test_an_input_that_is_quantized_at_run_time_counts_like_a_pair_once(net: Net, trial: Trial) -> None:
    """However many layers read it."""
    found = net.probe(trial)
    first, second = (edge for edge in list(net.plan.weights)[:2])
    source = first.node.inputs[0]
    assert source is not None
    dynamic = Decision("dynamic", "x", "x")
    nothing: dict[str, Any] = {"activations": {}, "readers": {}, "bridges": {}}
    pair = without_weights(net.plan, **{**nothing, "activations": {source: net.plan.activations[source]}})
    decisions = {**net.plan.decisions, first.node: dynamic, second.node: dynamic}
    weight = net.plan.weights[first]
    one = replace(net.plan, **nothing, weights={first: weight}, decisions=decisions)
    assert found(one) == pytest.approx(found(replace(pair, weights={first: weight})))
    second.node.replace_input_with(0, source)
    both = replace(one, weights={first: weight, second: net.plan.weights[second]})
    rounding = found.gains[source] * found.rounding(second, net.plan.weights[second])
    assert found(both) - found(one) == pytest.approx(rounding)
