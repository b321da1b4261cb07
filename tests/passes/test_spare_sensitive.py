"""spare-sensitive: the layer that spoils a model is found, measured and left float; nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.facts import Feeds, Goal, Plan, Ranges
from onnxq.passbase import Context, run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.guard_bias import GuardBias
from onnxq.passes.insert_dynamic import InsertDynamic
from onnxq.passes.insert_qdq import InsertQdq
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.passes.spare_sensitive import SpareSensitive
from onnxq.planfile import plan_json
from onnxq.recipe import load_recipe
from onnxq.session import Runtime
from onnxq.trials.sensitivity import Search
from onnxq.trials.trial import open_trial
from onnxq.wording import plural

Array = np.ndarray[Any, Any]
DIMS = (1, 8, 12, 12)

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,12,12] x) => (float[a,b,c,d] y) {
  c0 = Conv<pads=[1,1,1,1]>(x, w0, b0) r0 = Relu(c0)
  c1 = Conv<pads=[1,1,1,1]>(r0, w1) r1 = Relu(c1)
  wide = Conv(r1, spread) back = Conv(wide, narrow)
  c2 = Conv<pads=[1,1,1,1]>(back, w2) r2 = Relu(c2)
  y = Conv(r2, w3) }"""


class Net:
    """Eight channels; ``wide`` blows the first one up a thousandfold and ``back`` takes it down again.

    So ``wide`` needs three decades more than 8 bits have: all other channels vanish in its steps.
    """

    def __init__(self, blow: float = 1000.0, text: str = NET, **plan: Any) -> None:
        rng = np.random.default_rng(0)
        gain = np.ones(8)
        gain[0] = blow
        eye = np.eye(8)[:, :, None, None]
        arrays = {f"w{i}": rng.standard_normal((8, 8, 3, 3)) / 9 for i in range(3)}
        arrays |= {"w3": rng.standard_normal((8, 8, 1, 1)), "b0": rng.standard_normal(8)}
        arrays |= {"spread": eye * gain[:, None, None, None], "narrow": eye / gain[None, :, None, None]}
        self.proto = parser.parse_model(text)
        for name, array in arrays.items():
            self.proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        for node in self.proto.graph.node:
            node.name = node.output[0]
        self.samples = [{"x": rng.standard_normal(DIMS).astype(np.float32)} for _ in range(8)]
        self._plan = plan

    def start(self, method: str = "minmax", samples: list[dict[str, Array]] | None = None) -> None:
        self.model, self.ctx = ir.from_proto(self.proto), Context()
        self.ctx.put(Feeds(open_source(samples or self.samples, model=self.model)))
        steps = (load_recipe("prepare"), MakePlan(**self._plan), Calibrate(method=method), LeaveFloat(), ResolveAxes())  # type: ignore[arg-type]
        for step in steps:
            run_step(step, self.model, self.ctx)

    def spare(self, method: str = "minmax", *, with_samples: bool = True, **options: Any) -> Net:
        self.start(method)
        if not with_samples:
            del self.ctx._facts[Feeds]
        before = ir.to_proto(self.model).SerializeToString(deterministic=True)
        self.first, self.ranges = self.ctx.get(Plan), self.ctx.get(Ranges)
        run_step(SpareSensitive(**options), self.model, self.ctx)
        assert ir.to_proto(self.model).SerializeToString(deterministic=True) == before
        return self

    def written(self) -> onnx.ModelProto:
        for step in (ResolveAxes(), Encode(), GuardBias(), InsertDynamic(), InsertQdq()):
            run_step(step, self.model, self.ctx)
        return ir.to_proto(self.model)

    def spared(self) -> list[str]:
        return [
            n.name or ""
            for n, d in self.ctx.get(Plan).decisions.items()
            if (d.status, d.code) == ("float", "sensitive")
        ]

    def note(self, code: str) -> Any:
        (note,) = self.ctx.report.of(code)
        return note


def quality(net: Net, run_model: Callable[..., Any]) -> float:
    """dB on fresh samples, in onnxruntime's own way of running it."""
    proto, rng = net.written(), np.random.default_rng(99)
    feeds = [{"x": rng.standard_normal(DIMS).astype(np.float32)} for _ in range(3)]
    exact, got = (np.stack([run_model(p, f)[0] for f in feeds]) for p in (net.proto, proto))
    return float(-10 * np.log10(((exact - got) ** 2).sum() / (exact**2).sum()))


def test_the_layer_that_spoils_it_stays_float(run_model: Callable[..., Any]) -> None:
    plain, spared = Net().spare(search=False), Net().spare(budget=0.2)
    assert spared.spared() == ["wide", "back"], "the value between them is quantized until both are float"
    note = spared.note("sensitive")
    assert note.place.node == "wide" and note.message.startswith("left float with back: the outputs' signal to noise")
    assert note.numbers["after_db"] > note.numbers["before_db"] + 10 and 0 < note.numbers["work"] <= 0.2
    measured = spared.note("measured").numbers
    assert measured["last_db"] > measured["first_db"] + 10
    assert quality(spared, run_model) > quality(plain, run_model) + 10


def test_a_healthy_model_stays_as_planned() -> None:
    net = Net(blow=1.0).spare(enough=20.0)
    assert not net.spared() and plan_json(net.ctx.get(Plan)) == plan_json(net.first)
    assert net.note("measured").numbers["first_db"] == net.note("measured").numbers["last_db"] > 20


def test_the_budget_is_kept() -> None:
    """The spoiler takes two of 148 parts of the work; a smaller budget leaves it as it is."""
    tight = Net().spare(budget=0.001)
    assert not tight.spared() and not tight.ctx.report.of("sensitive")
    assert tight.note("measured").numbers["first_db"] == tight.note("measured").numbers["last_db"]
    loose = Net().spare(budget=0.2)
    assert sum(n.numbers["work"] for n in loose.ctx.report.of("sensitive")) <= 0.2


def test_enough_stops_the_search() -> None:
    assert not Net().spare(enough=-50.0).spared()


def test_a_wide_input(run_model: Callable[..., Any]) -> None:
    """The layer that reads a hopeless graph input is enough by itself."""
    made = []
    for search in (False, True):
        net = Net(blow=1.0)
        for sample in net.samples:
            sample["x"][:, 3] *= 1000
        net.proto.graph.initializer[0].CopyFrom(damped(net.proto.graph.initializer[0]))
        made.append(net.spare(search=search, budget=0.5))
    plain, spared = made
    assert spared.spared() == ["c0"] and not plain.spared()
    assert spared.note("measured").numbers["last_db"] > spared.note("measured").numbers["first_db"] + 10


def damped(weight: onnx.TensorProto) -> onnx.TensorProto:
    array = numpy_helper.to_array(weight).copy()
    array[:, 3] /= 1000
    return numpy_helper.from_array(array, weight.name)


@pytest.mark.parametrize("trials", [1, 3, 8])
def test_few_trials_are_kept(trials: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of neighbours and their members, together at most so many; then the ones tried together."""
    counts: list[int] = []
    original = Search._singles

    def counted(self: Search, limit: int) -> Any:
        before = self.runs
        out = original(self, limit)
        counts.append(self.runs - before)
        return out

    monkeypatch.setattr(Search, "_singles", counted)
    Net().spare(trials=trials, budget=0.2)
    assert counts[0] <= trials


def test_the_same_twice() -> None:
    one, two = (Net().spare("auto", budget=0.2) for _ in range(2))
    assert plan_json(one.ctx.get(Plan)) == plan_json(two.ctx.get(Plan))
    bytes_of = [n.written().SerializeToString(deterministic=True) for n in (one, two)]
    assert bytes_of[0] == bytes_of[1]
    assert one.note("measured").numbers == two.note("measured").numbers


def test_the_better_method_is_taken(run_model: Callable[..., Any]) -> None:
    """One sample in eight has a spike; a range that ignores it suits the others better."""
    found = {}
    for search in (True, False):
        net = Net(blow=1.0)
        for sample in net.samples:
            sample["x"][0, 0, 0, 0] = 60.0
        net.spare("auto", search=search, enough=0.0)
        found[search] = net
    numbers = found[True].note("measured").numbers
    best = max(numbers["methods_db"], key=lambda k: numbers["methods_db"][k])
    assert numbers["last_db"] == max(numbers["first_db"], numbers["methods_db"][best])
    assert len(numbers["methods_db"]) >= 2
    before, after = found[True].ranges, found[True].ctx.get(Ranges)
    for value, known in before.of.items():
        taken = (after.of[value].lo, after.of[value].hi)
        assert taken in {(known.lo, known.hi), *known.candidates.values()}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"with_samples": False}, "no samples to measure on"),
        ({"max_layers": 3}, "6 layers, more than max-layers (3)"),
    ],
)
def test_why_it_was_skipped(options: dict[str, Any], why: str) -> None:
    net = Net().spare(**options)
    assert net.note("search-skipped").message == why
    assert net.ctx.get(Plan) is net.first and net.ctx.get(Ranges) is net.ranges


def test_switched_off_says_nothing() -> None:
    net = Net().spare(search=False)
    assert not net.ctx.report.of("search-skipped") and not net.ctx.report.of("measured")


def test_nothing_planned() -> None:
    net = Net(exclude=("*",)).spare()
    assert net.note("search-skipped").message == "no planned activations"


@pytest.mark.parametrize(("samples", "measured"), [(1, 1), (6, 6), (20, 8)])
def test_samples_are_spread(samples: int, measured: int) -> None:
    net = Net().spare(samples=samples, enough=-50.0)
    assert net.note("measured").message.startswith(f"outputs measured on {plural(measured, 'sample')}: ")


def test_samples_of_unknown_number() -> None:
    net = Net()
    net.start(samples=iter(net.samples))  # type: ignore[arg-type]
    run_step(SpareSensitive(samples=3, enough=-50.0), net.model, net.ctx)
    assert "on 3 samples" in net.note("measured").message


def test_quantized_already_is_no_candidate() -> None:
    """Nodes between pairs that are in the file stay as they are."""
    net = Net()
    net.start()
    plan, goal = net.ctx.get(Plan), net.ctx.get(Goal)
    ranges = dict(net.ctx.get(Ranges).of)
    with open_trial(net.model, plan, net.samples[:1], Runtime()) as trial:
        search = Search(net.model, goal.target, trial, ranges, plan)
        names = [n.name for n in search._candidates()]
    assert names == ["c0", "c1", "wide", "back", "c2", "y"]


DENSE = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,12,12] x) => (float[a,b] y) {
  c = Conv<pads=[1,1,1,1]>(x, w0, b0) f = Flatten(c) y = MatMul(f, dense) }"""


@pytest.mark.parametrize(
    ("text", "target", "products"),
    [
        (NET, "ort-cpu", [72, 72, 8, 8, 72, 8]),
        (DENSE, "ort-cpu", [72, 10 / 1152 * 1152]),  # nobody observes the output of the MatMul, which stays float
        (NET, "ascend", [72, 72, 8, 8, 72, 8]),
    ],
)
def test_work_counts_layers_whose_output_stays_float(text: str, target: str, products: list[float]) -> None:
    net = Net(text=text, target=target, dynamic="never")
    net.proto.graph.initializer.append(numpy_helper.from_array(np.ones((1152, 10), "f"), "dense"))
    net.start()
    plan, goal = net.ctx.get(Plan), net.ctx.get(Goal)
    with open_trial(net.model, plan, net.samples[:1], Runtime()) as trial:
        search = Search(net.model, goal.target, trial, dict(net.ctx.get(Ranges).of), plan)
    layers = [node for node, decision in plan.decisions.items() if decision.code == "layer"]
    assert len(layers) == len(products)
    last = next(v for v in net.model.graph.outputs)
    assert (last in plan.activations) == ((text, target) == (NET, "ort-cpu"))
    assert search._work(plan) == sum(1152 * n for n in products)
