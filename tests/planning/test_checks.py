"""What a plan may be asked for: types, granularity and combinations, refused before any work is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq import api
from onnxq.context import Context
from onnxq.errors import CapabilityError, OnnxqError, OptionError
from onnxq.facts import Goal
from onnxq.numerics.spec import Blocked, PerAxis, PerTensor
from onnxq.passbase import Pass, Pipeline
from onnxq.passes.plan import MakePlan
from onnxq.planning import checks
from onnxq.planning.checks import Request
from onnxq.recipe import load_recipe
from onnxq.targets import load_target

NO_INT4 = checks.native_types() - {"INT4", "UINT4"}


def model(opset: int = 21) -> onnx.ModelProto:
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g (float[2,64] x) => (float[2,32] y) {{ y = MatMul(x, w) }}'
    )
    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto


@pytest.mark.parametrize(
    ("target", "request_", "words"),
    [
        (
            "ascend",
            {"activations": "int16"},
            r"ascend takes int4 weights with int8 activations only, .*int16.*\(A16W4\)",
        ),
        ("ascend", {"weight_only": True}, "int4 weights with int8 activations only, not with float activations"),
        ("ascend", {"weights": "uint4"}, "ascend does not take uint4 weights; did you mean int4"),
        ("ascend", {"activations": "uint8"}, "ascend does not take uint8 activations"),
        ("ascend", {"block_size": 32}, "ascend takes weights per tensor or per channel, not in blocks"),
        ("ort-cpu", {"weights": "int2"}, "ort-cpu does not take int2 weights"),
        ("ort-cpu", {"granularity": "blocked"}, "need a block size of at least 1, got block-size: 0"),
        ("ort-cpu", {"block_size": -1}, "at least 1, got block-size: -1"),
        ("ort-cpu", {"granularity": "per-channel", "block_size": 32}, "does not go with granularity: per-channel"),
        ("ort-cpu", {"activations": "uint8", "weight_only": True}, "uint8 does not go with weight-only"),
    ],
)
def test_what_a_target_does_not_take(target: str, request_: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Request(**request_).specs(load_target(target))


def test_a16w8_and_a8w4_are_fine_for_ascend() -> None:
    for activations, weights in (("int8", "int4"), ("int16", "int8"), ("int8", "int8")):
        a, w = Request(activations=activations, weights=weights).specs(load_target("ascend"))
        assert (a.qtype.name, w.qtype.name) == (activations, weights)
        assert a.granularity == PerTensor() and w.granularity == PerAxis() and w.symmetric


def test_activations_per_channel_are_refused() -> None:
    target = load_target("ascend")
    target = replace(target, activations=replace(target.activations, granularity="per-channel"))
    with pytest.raises(OptionError, match="ascend asks for activations per channel"):
        Request().specs(target)


@pytest.mark.parametrize(
    ("request_", "granularity", "symmetric"),
    [
        ({}, PerAxis(), True),
        ({"block_size": 64}, Blocked(64), True),
        ({"granularity": "blocked", "block_size": 16}, Blocked(16), True),
        ({"granularity": "per-tensor", "symmetric": "no"}, PerTensor(), False),
        ({"granularity": "per-channel", "symmetric": "yes"}, PerAxis(), True),
    ],
)
def test_granularity_and_symmetry(request_: dict[str, Any], granularity: Any, symmetric: bool) -> None:
    _, weight = Request(**request_).specs(load_target("ort-cpu"))
    assert (weight.granularity, weight.symmetric) == (granularity, symmetric)


def test_a_target_with_one_scale_a_tensor() -> None:
    target = load_target("ort-cpu")
    target = replace(target, weights=replace(target.weights, granularity="per-tensor"))
    assert Request().specs(target)[1].granularity == PerTensor()
    with pytest.raises(OptionError, match="takes weights per tensor only"):
        Request(granularity="per-channel").specs(target)


class Bomb(Pass):
    """A step that must not be reached."""

    def run(self, model: ir.Model, ctx: Context) -> bool:
        raise AssertionError("work before the check")


@pytest.mark.parametrize("options", [{"activations": "int16"}, {"weights": "int9"}, {"block_size": 8}])
def test_nothing_runs_before_the_check(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Pipeline(steps=(Bomb(), MakePlan(target="ascend", **options))).run(ir.from_proto(model()), Context())


def test_steps_in_front_know_the_target() -> None:
    seen = []

    class Look(Pass):
        def run(self, model: ir.Model, ctx: Context) -> bool:
            seen.append(ctx.get(Goal).target.name)
            return False

    Pipeline(steps=(Look(), MakePlan(target="ascend"))).run(ir.from_proto(model()), Context())
    given = Context().put(Goal(load_target("onnx")))
    Pipeline(steps=(Look(), MakePlan(target="ascend"))).run(ir.from_proto(model()), given)
    assert seen == ["ascend", "onnx"], "the caller's target goes before the recipe's"


def test_an_onnx_without_int4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else keeps working; four bits name the version that brings them."""
    monkeypatch.setattr(checks, "native_types", lambda: NO_INT4)
    feeds = [{"x": np.ones((2, 64), np.float32)}]
    for recipe, data in (("a8w4", feeds), ("w4-blocked", None)):
        with pytest.raises(CapabilityError, match=r"has no native INT4: that needs onnx 1\.16 or newer"):
            api.quantize(model(), data, recipe=recipe)
    with pytest.raises(CapabilityError, match="UINT4"):
        api.quantize(model(), recipe="w4-blocked", weights="uint4")
    assert api.quantize(model(), recipe="w8").plan["nodes"]["MatMul_y"]["status"] == "weight-only"
    assert api.quantize(model(), feeds, recipe="int8", search=False).plan["weights"]
    assert api.quantize(model(), feeds, recipe="a8w4", weights="int8").plan["weights"]


def test_an_onnx_without_int2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "native_types", lambda: frozenset({"INT4", "UINT4"}))
    with pytest.raises(CapabilityError, match=r"no native INT2: that needs onnx 1\.20"):
        Request(weights="int2", weight_only=True).specs(load_target("onnx"))
    with pytest.raises(CapabilityError, match=r"no native INT4"):
        monkeypatch.setattr(checks, "native_types", frozenset)
        Request(weights="int8", activations="int4").specs(load_target("onnx"))


def test_the_installed_onnx_has_all() -> None:
    assert {"INT4", "UINT4", "INT2", "UINT2"} <= checks.native_types()


def test_two_bits_need_a_newer_opset() -> None:
    with pytest.raises(OnnxqError, match=r"model has opset 21; pairs of int2 exist from opset 25 on"):
        api.quantize(model(), recipe="w4-blocked", target="onnx", weights="int2")
    made = api.quantize(model(), recipe="w4-blocked", target="onnx", weights="int2", opset=25)
    (weight,) = (t for t in made.model.graph.initializer if t.name == "w_quantized")
    assert weight.data_type == onnx.TensorProto.INT2 and list(weight.dims) == [64, 32]


def test_shipped_recipes_have_their_own_target() -> None:
    steps = {name: load_recipe(name).steps for name in ("a8w4", "w4-blocked", "w8", "int8")}
    targets = {name: next(s.target for s in steps[name] if isinstance(s, MakePlan)) for name in steps}
    assert targets == {"a8w4": "ascend", "w4-blocked": "ort-cpu", "w8": "ort-cpu", "int8": "ort-cpu"}
