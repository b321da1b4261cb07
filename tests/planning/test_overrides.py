"""Regions of different types: overrides by selector, and the bridges between them, counted and computed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnxq import api
from onnxq.calibration.sources import open_source
from onnxq.cli._common import override_of
from onnxq.context import Context
from onnxq.errors import OnnxqError, OptionError, RecipeError
from onnxq.facts import Encodings, Feeds, Goal, Plan
from onnxq.passbase import run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.guard_bias import GuardBias
from onnxq.passes.insert_dynamic import InsertDynamic
from onnxq.passes.insert_qdq import InsertQdq
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.planfile import plan_json
from onnxq.planning import Planner
from onnxq.planning.overrides import Override
from onnxq.recipe import parse_recipe
from onnxq.session import Runtime
from onnxq.trials.trial import open_trial

Array = np.ndarray[Any, Any]

NET = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,8,8,8] x) => (float[1,8,4,4] y, float[1,8,8,8] s) {
  p = Conv<pads=[1,1,1,1]>(x, w1, b1)  q = Relu(p)  r = Conv<pads=[1,1,1,1]>(q, w2)  s = Add(r, q)
  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)  y = Conv(m, w3) }"""
NAMES = ("first", "relu", "second", "add", "pool", "last")


class Made:
    """A plan with overrides, carried out."""

    def __init__(
        self,
        *overrides: Override,
        text: str = NET,
        names: tuple[str, ...] = NAMES,
        target: str = "ort-cpu",
        **plan: Any,
    ) -> None:
        rng = np.random.default_rng(0)
        self.float_proto = parser.parse_model(text)
        shapes = {"w1": (8, 8, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 1, 1), "b1": (8,)}
        self.weights = {k: (rng.standard_normal(d) * 0.2).astype(np.float32) for k, d in shapes.items()}
        self.float_proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.weights.items())
        for node, name in zip(self.float_proto.graph.node, names, strict=False):
            node.name = name
        self.samples = [{"x": rng.standard_normal((1, 8, 8, 8)).astype(np.float32)} for _ in range(2)]
        self.model, self.ctx = ir.from_proto(self.float_proto), Context()
        self.ctx.put(Feeds(open_source(self.samples, model=self.model)))
        steps = MakePlan(overrides=overrides, target=target, **plan), Calibrate(), LeaveFloat(), ResolveAxes(), Encode()
        for step in steps:
            run_step(step, self.model, self.ctx)
        self.plan, self.encodings = self.ctx.get(Plan), self.ctx.get(Encodings)
        self.json = plan_json(self.plan)
        self.types = {v.name: spec.qtype.name for v, spec in self.plan.activations.items()}
        self.reads = {key: entry["type"] for key, entry in self.json["reads"].items()}

    def insert(self) -> onnx.ModelProto:
        for step in (GuardBias(), InsertDynamic(), InsertQdq(), ValidateQdq()):
            run_step(step, self.model, self.ctx)
        proto = ir.to_proto(self.model)
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def notes(self, code: str) -> list[str]:
        return [f"{n.place.node}: {n.message}" for n in self.ctx.report.of(code)]


def of(select: str, **wanted: Any) -> Override:
    return Override(select=select, **wanted)


def run(proto: onnx.ModelProto, feeds: dict[str, Array], true: bool = False) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if true:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    return list(ort.InferenceSession(proto.SerializeToString(), options).run(None, feeds))


def pairs(proto: onnx.ModelProto) -> Counter[str]:
    """How many QuantizeLinear, DequantizeLinear, and Q behind a DQ (bridges) there are."""
    made = {name: node for node in proto.graph.node for name in node.output}
    out = Counter(n.op_type for n in proto.graph.node if n.op_type.endswith("eLinear"))
    q = [n for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    out["bridges"] = sum(n.input[0] in made and made[n.input[0]].op_type == "DequantizeLinear" for n in q)
    return out


def count(q: int, dq: int, bridges: int) -> Counter[str]:
    return Counter({"QuantizeLinear": q, "DequantizeLinear": dq, "bridges": bridges})


def check_outputs(made: Made, proto: onnx.ModelProto, bound: float = 0.05) -> None:
    """Both sessions stay near the float model, and the outputs keep their names."""
    assert [o.name for o in proto.graph.output] == [o.name for o in made.float_proto.graph.output]
    exact = run(made.float_proto, made.samples[0])
    for true in (False, True):
        for wanted, got in zip(exact, run(proto, made.samples[0], true), strict=True):
            assert got.shape == wanted.shape and np.abs(got - wanted).max() <= bound * np.abs(wanted).max()


# -- bridges ----------------------------------------------------------------------------------------------------------


def test_without_overrides_there_is_no_bridge() -> None:
    made = Made()
    assert set(made.types.values()) == {"uint8"} and not made.reads
    proto = made.insert()
    # Six values; three weights and a bias besides.
    assert pairs(proto) == count(6, 10, 0)
    check_outputs(made, proto)


def test_a_layer_of_16_bits_between_layers_of_8() -> None:
    """It reads its input over a bridge and hands on 16 bits, which the Add reads over another one."""
    made = Made(of("second", activations="uint16"))
    assert made.types == {"x": "uint8", "q": "uint8", "r": "uint16", "s": "uint8", "m": "uint8", "y": "uint8"}
    assert made.reads == {"second:0": "uint16", "add:0": "uint8"}
    assert made.json["nodes"]["second"]["types"] == "uint16 x int8"
    assert made.json["nodes"]["second"]["reason"] == "Conv on integers, uint16 x int8"
    proto = made.insert()
    assert pairs(proto) == count(8, 12, 2)
    check_outputs(made, proto)


def test_the_numbers_behind_a_bridge() -> None:
    """Rounded to 8 bits, then to 16: an own oracle in float64, down to the step."""
    made = Made(of("last", activations="uint16", weights="int16"))
    assert made.reads == {"last:0": "uint16"} and made.types["y"] == "uint16" and made.types["m"] == "uint8"
    proto = made.insert()
    assert pairs(proto) == count(7, 11, 1)
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    by_output = {name: node for node in proto.graph.node for name in node.output}
    (conv,) = [n for n in proto.graph.node if n.name == "last"]
    chain, value = [], conv.input[0]
    while by_output[value].op_type in ("QuantizeLinear", "DequantizeLinear"):
        chain.append(by_output[value])
        value = chain[-1].input[0]
    assert [n.op_type[:1] for n in chain] == ["D", "Q", "D", "Q"] and by_output[value].op_type == "MaxPool"
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    probe.graph.output.extend(onnx.helper.make_tensor_value_info(n, 1, None) for n in (value, conv.input[0]))
    *_, before, after = run(probe, made.samples[0], true=True)
    x = before.astype(np.float64)
    for q in (chain[3], chain[1]):
        scale, zero = stored[q.input[1]], stored[q.input[2]].astype(np.int64)
        top = np.iinfo(stored[q.input[2]].dtype).max
        x = (np.clip(np.rint(x.astype(np.float32) / scale) + zero, 0, top) - zero) * np.float64(scale)
    np.testing.assert_allclose(after, x, rtol=1e-6)
    wide, narrow = (stored[q.input[1]] for q in (chain[1], chain[3]))
    assert narrow / wide == pytest.approx(65535 / 255, rel=1e-5), "the same range"
    check_outputs(made, proto)


def test_one_bridge_for_all_readers_of_a_type() -> None:
    text = NET.replace("y = Conv(m, w3)", "y0 = Conv(m, w3) y1 = Conv(m, w3) y = Add(y0, y1)")
    made = Made(of("op:Conv", activations="int16"), text=text, names=(*NAMES[:5], "a", "b", "sum"))
    reads = {key: type_ for key, type_ in made.reads.items() if key in ("a:0", "b:0")}
    assert reads == {"a:0": "int16", "b:0": "int16"}
    one, other = (e for edge, e in made.encodings.bridges.items() if edge.node.name in ("a", "b"))
    assert one is other
    before = len(made.plan.activations)
    proto = made.insert()
    distinct = {(edge.value.name, spec) for edge, spec in made.plan.bridges.items()}
    assert len(distinct) < len(made.plan.bridges) and pairs(proto)["bridges"] == len(distinct)
    assert pairs(proto)["QuantizeLinear"] == before + len(distinct)
    check_outputs(made, proto)


def test_moved_data_keep_the_type_of_their_region() -> None:
    """The pool behind a 16-bit Add is 16 bits with the very same encoding; the 8-bit reader has the bridge."""
    made = Made(of("add", activations="uint16"))
    assert made.types["s"] == made.types["m"] == "uint16" and made.types["y"] == "uint8"
    assert made.reads == {"add:0": "uint16", "add:1": "uint16", "last:0": "uint8"}
    names = {v.name: e for v, e in made.encodings.activations.items()}
    assert names["s"] is names["m"]
    proto = made.insert()
    assert pairs(proto) == count(9, 13, 3)
    check_outputs(made, proto)


def test_an_output_delivers_the_type_of_its_maker() -> None:
    """The graph output s is made in 8 bits and read in 16: it is not what the bridge makes."""
    made = Made(of("pool", activations="uint16"), of("last", activations="uint16"))
    proto = made.insert()
    (dq,) = [n for n in proto.graph.node if "s" in n.output]
    zero = {t.name: t.data_type for t in proto.graph.initializer}[dq.input[2]]
    assert dq.op_type == "DequantizeLinear" and zero == onnx.TensorProto.UINT8
    check_outputs(made, proto)
    made = Made(of("add", activations="int16"))
    proto = made.insert()
    (dq,) = [n for n in proto.graph.node if "s" in n.output]
    assert {t.name: t.data_type for t in proto.graph.initializer}[dq.input[2]] == onnx.TensorProto.INT16


def test_a_graph_input_is_as_wide_as_its_widest_reader() -> None:
    """Nobody makes x: it is 16 bits, and the reader that wants 8 has the bridge."""
    text = NET.replace("r = Conv<pads=[1,1,1,1]>(q, w2)", "r = Conv<pads=[1,1,1,1]>(x, w2)")
    for names in (("first", "relu", "second"), ("second", "relu", "first")):
        made = Made(of("second", activations="uint16"), text=text, names=(*names, *NAMES[3:]))
        assert made.types["x"] == "uint16" and made.reads["first:0"] == "uint8"
        check_outputs(made, made.insert())


def test_same_type_other_symmetry() -> None:
    made = Made(of("second", activations_symmetric="yes"))
    assert made.reads == {"second:0": "uint8", "add:0": "uint8"}
    (spec,) = {made.plan.bridges[e] for e in made.plan.bridges if e.node.name == "second"}
    assert spec.symmetric and next(iter(made.encodings.bridges.values())).zero_point == 128
    proto = made.insert()
    assert pairs(proto) == count(8, 12, 2)
    check_outputs(made, proto)


def test_wide_model_with_one_narrow_layer() -> None:
    made = Made(of("last", activations="uint8"), activations="uint16")
    assert made.types["m"] == "uint16" and made.types["y"] == "uint8" and made.reads == {"last:0": "uint8"}
    assert len(made.notes("runs-in-float")) == 1
    check_outputs(made, made.insert())


def test_a_layer_in_a_body_reads_its_bridge_there() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,8,8,8] x, bool c) => (float[1,8,8,8] y) {
      p = Conv<pads=[1,1,1,1]>(x, w1, b1)  q = Relu(p)  r = Conv<pads=[1,1,1,1]>(q, w2)
      z = If(c) <then_branch = t () => (float[1,8,8,8] f) { f = MatMul(q, wm) },
                 else_branch = e () => (float[1,8,8,8] h) { h = Neg(q) }>
      y = Add(r, z) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, dims in {"w1": (8, 8, 3, 3), "w2": (8, 8, 3, 3), "b1": (8,), "wm": (8, 8)}.items():
        array = (rng.standard_normal(dims) * 0.2).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    data = [{"x": rng.standard_normal((1, 8, 8, 8)).astype(np.float32), "c": np.array(True)} for _ in range(2)]
    overrides = [{"select": "op:MatMul", "activations": "uint16"}]
    out = api.quantize(proto, data, search=False, rounding="nearest", overrides=overrides)
    assert any(entry["type"] == "uint16" for entry in out.plan["reads"].values())
    (branch,) = [n for n in out.model.graph.node if n.op_type == "If"]
    body = branch.attribute[0].g
    assert [n.op_type for n in body.node].count("DequantizeLinear") >= 1
    exact = run(proto, data[0])[0]
    for true in (False, True):
        assert np.abs(run(out.model, data[0], true)[0] - exact).max() <= 0.05 * np.abs(exact).max()


def test_planning_again_keeps_the_regions() -> None:
    made = Made(of("second", activations="uint16"), of("add", range=(-2.0, 9.0)))
    again = Planner(made.ctx.get(Goal).target, made.plan.wishes).make(made.model)
    assert plan_json(again) == made.json


def test_a_trial_has_switches_for_bridges() -> None:
    made = Made(of("second", activations="uint16"), of("last", activations="float8e5m2"), target="onnx")
    with open_trial(made.model, made.plan, made.samples, Runtime()) as trial:
        assert len(trial.pairs) == len(made.plan.activations) + 3
        noise = trial.noise(made.plan, made.encodings)
    with open_trial(made.model, made.plan, made.samples, Runtime()) as trial:
        assert trial.noise(made.plan, made.encodings) == noise
    eight = Made(target="onnx")
    with open_trial(eight.model, eight.plan, eight.samples, Runtime()) as trial:
        assert 0 < trial.noise(eight.plan, eight.encodings) < noise, "5 bits of float8e5m2 weigh more"


# -- what can be overridden -------------------------------------------------------------------------------------------


def test_weights_alone() -> None:
    made = Made(of("last", weights="int16", granularity="per-tensor", symmetric="no"), of("op:Conv", weights="uint8"))
    weights = {edge.node.name: spec for edge, spec in made.plan.weights.items()}
    assert str(weights["first"]) == "uint8 symmetric per-channel" and not made.reads
    assert str(weights["last"]) == "uint8 asymmetric per-tensor", "key by key, the last one counts"
    check_outputs(made, made.insert())


def test_blocks_for_one_layer_and_back() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,64] x) => (float[2,32] y) {
      h = MatMul(x, w1) r = Relu(h) y = MatMul(r, w2) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, dims in {"w1": (64, 64), "w2": (64, 32)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(dims).astype(np.float32), name))
    for node, name in zip(proto.graph.node, ("one", "relu", "two"), strict=True):
        node.name = name
    overrides = [
        {"select": "two", "weights": "int4", "block-size": 16},
        {"select": "one", "granularity": "per-channel"},
    ]
    out = api.quantize(proto, recipe="w4-blocked", overrides=overrides).plan["weights"]
    assert out["two:1"] == {"value": "w2", "type": "int4", "symmetric": False, "axis": None, "block_size": 16}
    assert out["one:1"] == {"value": "w1", "type": "int4", "symmetric": False, "axis": None}


def test_float() -> None:
    made = Made(of("last", float=True))
    decision = made.plan.decisions[made.model.graph[5]]
    assert (decision.status, decision.code, decision.reason) == (
        "float",
        "excluded",
        "left float by the override of 'last'",
    )
    assert "y" not in made.types and made.insert()


def test_weights_only_for_one_layer() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2,64] x) => (float[2,32] y) {
      h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, dims in {"w": (64, 64), "v": (64, 32)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(dims).astype(np.float32), name))
    for node, name in zip(proto.graph.node, ("one", "relu", "two"), strict=True):
        node.name = name
    data = [{"x": rng.standard_normal((2, 64)).astype(np.float32)} for _ in range(2)]
    out = api.quantize(
        proto,
        data,
        search=False,
        dynamic="never",
        overrides=[{"select": "two", "activations": "float", "weights": "int4"}],
    )
    nodes = out.plan["nodes"]
    assert (nodes["one"]["status"], nodes["two"]["status"]) == ("integer", "weight-only")
    assert nodes["two"]["types"] == "float x int4"
    exact, got = run(proto, data[0])[0], run(out.model, data[0], true=True)[0]
    assert np.abs(got - exact).max() <= 0.2 * np.abs(exact).max()


def test_a_range_instead_of_the_calibrated_one() -> None:
    made = Made(of("second", range=(-3.0, 5.0)), of("tensor:x", range=(0.0, 2.55)))
    found = {v.name: e for v, e in made.encodings.activations.items()}
    assert found["r"].scale == np.float32(8 / 255) and found["x"].scale == np.float32(0.01)
    assert made.json["activations"]["r"] == {"type": "uint8", "symmetric": False, "range": [-3.0, 5.0]}
    made = Made(of("first", range=(0.0, 6.0)), of("tensor:m", range=(-1.0, 1.0)))
    found = {v.name: e for v, e in made.encodings.activations.items()}
    assert found["q"].scale == np.float32(6 / 255), "what the layer hands on lies behind its Relu"
    assert found["s"] is found["m"] and found["m"].scale == np.float32(2 / 255), "whoever shares the encoding"


def test_a_method_of_its_own() -> None:
    plain, made = Made(), Made(of("second", method="average"), of("tensor:x", method="average"))
    before, after = ({v.name: r for v, r in m.encodings.activations.items()} for m in (plain, made))
    assert after["r"].scale < before["r"].scale and after["x"].scale < before["x"].scale
    assert after["s"].same(before["s"]) and made.json["activations"]["r"]["method"] == "average"


def test_a_tensor() -> None:
    """Its readers follow, except those of which something else was asked."""
    made = Made(of("tensor:x", activations="uint16"))
    assert made.types["x"] == "uint16" and not made.reads and made.types["q"] == "uint8"
    made = Made(of("tensor:q", activations="uint16"), of("second", activations="int16"))
    assert made.types["q"] == "uint16" and made.reads == {"second:0": "int16", "add:0": "uint8"}
    check_outputs(made, made.insert())


def test_overrides_count_for_more_than_a_plan_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(Made(of("second", activations="uint16")).json))
    same = Made(file=str(file))
    assert same.types["r"] == "uint16" and same.reads == {"second:0": "uint16", "add:0": "uint8"}
    made = Made(of("second", activations="int16"), of("last", weights="uint8"), file=str(file))
    assert made.types["r"] == "int16" and made.reads == {"second:0": "int16", "add:0": "uint8"}
    assert made.json["weights"]["last:1"]["type"] == "uint8" and not made.notes("plan-not-met")
    made = Made(of("second", range=(-1.0, 1.0)), file=str(file))
    assert made.types["r"] == "uint16", "an override of the range leaves the types of the file"


# -- spelling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("conv1:activations=uint16", {"select": "conv1", "activations": "uint16"}),
        ("op:Conv:activations=uint16,weights=int8", {"select": "op:Conv", "activations": "uint16", "weights": "int8"}),
        ("/a/*:range=[-1, 2.5],symmetric=yes", {"select": "/a/*", "range": (-1.0, 2.5), "symmetric": "yes"}),
        ("tensor:x:0:range=[0,6],method=mse", {"select": "tensor:x:0", "range": (0.0, 6.0), "method": "mse"}),
        ("path:/head:float=true", {"select": "path:/head", "float": True}),
        ("a:block-size=32,activations-symmetric=no", {"select": "a", "block_size": 32, "activations_symmetric": "no"}),
    ],
)
def test_on_the_command_line(text: str, expected: dict[str, Any]) -> None:
    recipe = "parameters: {overrides: {default: [], description: d}}\nsteps: [{plan: {overrides: $overrides}}]"
    (step,) = parse_recipe(recipe, {"overrides": [override_of(text)]}).steps
    assert isinstance(step, MakePlan) and step.overrides == (Override(**expected),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("conv1", "expected SELECTOR:key=value"),
        ("conv1:", "expected SELECTOR:key=value"),
        ("activations=uint16", "expected SELECTOR:key=value"),
        ("a:weights=int8,weights=int4", "'weights' is given twice"),
        ("a:wieghts=int8", "no option 'wieghts'; did you mean weights"),
        ("a:method=msee", "did you mean mse"),
        ("a:range=[1]", "expected 2 values, got 1"),
        ("a:float=perhaps", "expected true or false"),
    ],
)
def test_misspelt(text: str, words: str) -> None:
    recipe = "parameters: {overrides: {default: [], description: d}}\nsteps: [{plan: {overrides: $overrides}}]"
    with pytest.raises(RecipeError, match=words):
        parse_recipe(recipe, {"overrides": [override_of(text)]})


# -- refused, and told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (of("seond", activations="uint16"), "selector 'seond' matches no node; did you mean second"),
        (of("second", activations="int8"), "override of 'second': target ort-cpu does not take int8 activations"),
        (of("second", weights="int2"), "override of 'second': target ort-cpu does not take int2 weights"),
        (of("second", weights="int9"), "override of 'second': unknown quantized type 'int9'"),
        (of("second", granularity="blocked"), "override of 'second': blocked weights need a block size"),
        (of("second", range=(1.0, -1.0)), "override of 'second': a range is finite and ordered"),
        (of("tensor:xx", range=(0.0, 1.0)), "override of 'tensor:xx': the model has no such tensor; did you mean x"),
        (of("tensor:x", weights="int8"), "override of 'tensor:x': weights goes with nodes, not with tensors"),
        (of("tensor:x", float=True), "override of 'tensor:x': float goes with nodes"),
        (of("tensor:x", activations="float"), "override of 'tensor:x': activations: float goes with nodes"),
    ],
)
def test_refused(override: Override, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Made(override)


def test_refused_before_any_step_runs() -> None:
    with pytest.raises(OnnxqError, match="override of 'a': target ort-cpu does not take int8 activations"):
        run_step(
            parse_recipe("steps: [{plan: {overrides: [{select: a, activations: int8}]}}]"), Made().model, Context()
        )


def test_combinations_are_refused_by_node() -> None:
    with pytest.raises(OptionError, match=r"override of 'last': .*int4 weights with int8 activations only.*\(A16W4\)"):
        Made(of("last", activations="int16"), target="ascend")
    made = Made(of("last", activations="int16", weights="int8"), target="ascend")
    assert made.json["nodes"]["last"]["types"] == "int16 x int8"
    with pytest.raises(OptionError, match=r"last \(Conv\): target ascend takes int4 weights .* not with int16"):
        Made(of("tensor:m", activations="int16"), target="ascend")


def test_a_type_that_the_op_lacks() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (int64[4] i) => (float[4,8] y) { y = Gather(t, i) }"""
    proto = parser.parse_model(text)
    proto.graph.node[0].name = "table"
    table = np.random.default_rng(0).standard_normal((1024, 8)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(table, "t"))
    with pytest.raises(OptionError, match="table: ort-cpu takes no int16 data in Gather: int8 or uint8"):
        api.quantize(proto, recipe="w8", overrides=[{"select": "table", "weights": "int16"}])
    with pytest.raises(OptionError, match="override of 'table': activations stay float in a weight-only plan"):
        api.quantize(proto, recipe="w8", overrides=[{"select": "table", "activations": "uint8"}])


def test_without_effect() -> None:
    made = Made(of("pool", activations="uint16"), of("op:Conv", activations="uint8"))
    assert made.notes("override-not-met") == [
        "pool: override of 'pool': it moves data, which keep the type they come with"
    ]
    made = Made(of("last", activations="float"), of("tensor:b1", range=(0.0, 1.0)))
    assert made.notes("override-not-met") == [
        "last: override of 'last': it stays float: ort-cpu takes no weight-only form of Conv",
        ": override of 'tensor:b1': the tensor stays float",
    ]
    text = NET.replace("y = Conv(m, w3)", "n = Neg(m) y = Conv(n, w3)")
    made = Made(of("neg", weights="int8"), text=text, names=(*NAMES[:5], "neg", "last"))
    (note,) = made.notes("override-not-met")
    assert note == "neg: override of 'neg': it stays float: ort-cpu has no integer kernel for Neg"
