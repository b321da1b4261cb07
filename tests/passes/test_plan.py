"""plan: a decision with its reason for every node, selectors, and what a caller is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.api import quantize
from onnxq.context import Context
from onnxq.errors import OptionError, UnsupportedError
from onnxq.facts import Decision, Goal, Plan
from onnxq.passbase import run_step
from onnxq.passes.plan import MakePlan
from onnxq.targets import load_target

RNG = np.random.default_rng(0)
C4 = "(float[1,4,8,8] x) => (float[a,b,c,d] y)"


def w(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * 0.3).astype(dtype)


def build(signature: str, body: str, weights: dict[str, Any], opset: int = 21, imports: str = "") -> onnx.ModelProto:
    head = f'<ir_version: 10, opset_import: ["" : {opset}{imports}]>'
    proto = parser.parse_model(f"{head} g {signature} {{ {body} }}")
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for i, node in enumerate(proto.graph.node):
        node.name = node.name or f"n{i}"
    return proto


def plan(proto: onnx.ModelProto, **options: Any) -> tuple[Plan, Context, ir.Model]:
    model, ctx = ir.from_proto(onnx.shape_inference.infer_shapes(proto)), Context()
    assert not run_step(MakePlan(**options), model, ctx)
    return ctx.get(Plan), ctx, model


def by_name(made: Plan) -> dict[str, Decision]:
    return {node.name or "": decision for node, decision in made.decisions.items()}


CONV = {"k": w(16, 4, 3, 3), "k2": w(8, 16, 3, 3), "b": w(16)}
TWO = "c = Conv(x, k, b) r = Relu(c) y = Conv(r, k2)"
LINEAR = "c = MatMul(x, w) d = Add(c, v) r = Relu(d) e = MatMul(r, u) y = Exp(e)"
DENSE = {"w": w(16, 8), "v": w(8), "u": w(8, 8)}
X2 = "(float[6,16] x) => (float[a,b] y)"


# -- types of models --------------------------------------------------------------------------------------------------


def test_nothing_to_quantize() -> None:
    proto = build("(float[2] x) => (float[2] y)", "y = Exp(x)", {})
    made, ctx, _ = plan(proto)
    assert not made.activations and [n.code for n in ctx.report.notes] == ["nothing-to-quantize"]
    result = quantize(proto, [{"x": np.ones(2, np.float32)}])
    after = result.model
    assert {p.key for p in after.metadata_props} >= {"onnxq.version", "onnxq.recipe"}
    del after.metadata_props[:]
    proto.graph.node[0].ClearField("domain")  # the parser writes an empty one
    assert after == proto
    passthrough = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] x) {}')
    assert not plan(passthrough)[0].decisions


def test_a_quantized_model_stays_as_it_is(quantized: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    feeds = [{"x": RNG.standard_normal((1, 4, 8, 8)).astype("f")} for _ in range(2)]
    body = TWO.replace("y =", "z =") + " f = Flatten(z) m = MatMul(f, w) e = Exp(m) n = MatMul(e, u) y = Exp(n)"
    weights = {**CONV, "w": w(128, 16), "u": w(16, 16)}
    first = quantized(build("(float[1,4,8,8] x) => (float[a,b] y)", body, weights), feeds=feeds)
    again = quantized(first.proto, feeds=feeds)
    assert [n.op_type for n in again.proto.graph.node] == first.ops()
    note = next(n for n in again.ctx.report.notes if n.code == "already-quantized")
    assert note.numbers["nodes"] == sum(e["code"] == "already-quantized" for e in again.plan["nodes"].values()) > 10
    assert again.status(first.maker("c").name) == "integer/already-quantized"
    np.testing.assert_array_equal(run_model(first.proto, feeds[0])[0], run_model(again.proto, feeds[0])[0])


def test_what_stands_inside_a_quantized_layer_is_quantized(quantized: Callable[..., Any]) -> None:
    """Bias Add, Relu and MaxPool before the Q of their layer; a Relu that no Q follows is float."""
    body = "c = Conv(x, k) r = Relu(c) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) d = Conv(p, k2)"
    body += " f = Flatten(d) m = MatMul(f, w) a = Add(m, b) s = Relu(a) n = MatMul(s, u) y = Relu(n)"
    weights = {"k": w(8, 4, 3, 3), "k2": w(8, 8, 3, 3), "w": w(8, 16), "b": w(16), "u": w(16, 8)}
    feeds = [{"x": RNG.standard_normal((1, 4, 8, 8)).astype("f")} for _ in range(2)]
    first = quantized(build("(float[1,4,8,8] x) => (float[a,b] y)", body, weights), feeds=feeds, dynamic="never")
    nodes = quantized(first.proto, feeds=feeds, dynamic="never").plan["nodes"].values()
    found = [(n["op"], n["status"], n["code"]) for n in nodes if not n["op"].endswith("izeLinear")]
    inside = ["Conv", "Relu", "MaxPool", "Conv", "Flatten", "MatMul", "Add", "Relu", "MatMul"]
    assert found == [*((op, "integer", "already-quantized") for op in inside), ("Relu", "float", "float-operand")]


def test_weight_only_layers_are_left_alone() -> None:
    """MatMul with a float input and a weight that is stored as integers."""
    weights = {"q": np.ones((16, 8), np.int8), "s": np.ones(8, "f"), "z": np.zeros(8, np.int8)}
    made, ctx, _ = plan(build(X2, "d = DequantizeLinear<axis=1>(q, s, z) y = MatMul(x, d)", weights))
    assert by_name(made)["n1"] == Decision("weight-only", "already-quantized", "stands between Q/DQ pairs already")
    assert [n.code for n in ctx.report.notes] == ["already-quantized"] and not made.weights


def test_opset_beyond_the_target() -> None:
    with pytest.raises(UnsupportedError, match="opset 28; ort-cpu runs Q/DQ pairs up to opset 27"):
        plan(build(C4, TWO, CONV, opset=28))
    plan(build(C4, "y = Exp(x)", {}, opset=28))


# -- options ----------------------------------------------------------------------------------------------------------


def test_the_callers_target_wins() -> None:
    proto = build(C4.replace("float", "float16"), TWO, {k: v.astype("e") for k, v in CONV.items()})
    model, ctx = ir.from_proto(proto), Context()
    ctx.put(Goal(load_target("onnx")))
    run_step(MakePlan(target="ort-cpu"), model, ctx)
    made = ctx.get(Plan)
    assert len(made.weights) == 2 and len(made.biases) == 1, "guard-bias sees what float16 scales can hold"
    assert by_name(made)["n0"].status == "integer"


def test_types() -> None:
    made, _, _ = plan(build(C4, TWO, CONV), activations="uint16", weights="int4")
    assert {s.qtype.name for s in made.activations.values()} == {"uint16"}
    assert {s.qtype.name for s in made.weights.values()} == {"int4"}
    with pytest.raises(OptionError, match="ort-cpu does not take int8 activations"):
        plan(build(C4, TWO, CONV), activations="int8")


@pytest.mark.parametrize("types", [{"activations": "uint16"}, {"weights": "int16"}, {"weights": "int4"}])
def test_no_dynamic_layers_beyond_8_bits(types: dict[str, str]) -> None:
    """DynamicQuantizeLinear writes uint8, and MatMulInteger takes 8 bits."""
    made, _, _ = plan(build(X2, LINEAR, DENSE), **types)
    assert not [d for d in made.decisions.values() if d.status == "dynamic"] and made.activations


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["layer", "part-of-layer", "part-of-layer", "layer"]),
        ({"exclude": ("n1",)}, ["layer", "excluded", "float-operand", "layer"]),
        ({"exclude": ("op:Relu",)}, ["layer", "part-of-layer", "excluded", "layer"]),
        ({"exclude": ("n0",)}, ["excluded", "float-operand", "float-operand", "layer"]),
        ({"exclude": ("n0", "n3")}, ["excluded", "float-operand", "float-operand", "excluded"]),
        ({"include": ("n0", "n1")}, ["layer", "part-of-layer", "not-included", "not-included"]),
        ({"include": ("op:MatMul",), "exclude": ("n3",)}, ["layer", "not-included", "not-included", "excluded"]),
    ],
)
def test_selectors(options: dict[str, Any], expected: list[str]) -> None:
    """Whatever is excluded inside a layer is taken out of the layer; exclude beats include."""
    made, _, _ = plan(build(X2, LINEAR, DENSE), dynamic="never", **options)
    found = by_name(made)
    assert [found[f"n{i}"].code for i in range(4)] == expected


def test_an_excluded_bias_is_no_bias(
    quantized: Callable[..., Any], fused: Callable[..., Any], close: Callable[..., None]
) -> None:
    """The product gets its Q: onnxruntime would merge it with the Add and fuse nothing."""
    made = quantized(build(X2, LINEAR, DENSE), dynamic="never", exclude=["op:Add"])
    assert made.readers("c") == ["QuantizeLinear"] and "v" in made.initializers()
    assert "QLinearMatMul" in fused(made.proto) and not {"Gemm", "FusedGemm"} & set(fused(made.proto))
    close(made)


def test_one_weight_behind_identities(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    """The excluded reader keeps the float weight, the other one gets integers."""
    proto = build(X2, "i = Identity(w) j = Identity(i) a = MatMul(x, i) e = Exp(a) y = MatMul(e, j)", {"w": w(16, 16)})
    made = quantized(proto, exclude=["n4"], dynamic="never")
    assert made.status("n2") == "integer/layer" and made.status("n4") == "float/excluded"
    assert {"w", "w_quantized"} <= set(made.initializers()) and made.readers("w") == ["MatMul"]
    close(made)


def test_selectors_that_match_nothing() -> None:
    for option in ("exclude", "include", "force"):
        with pytest.raises(OptionError, match="selector 'n9' matches no node; did you mean n"):
            plan(build(X2, LINEAR, DENSE), **{option: ("n9",)})


@pytest.mark.parametrize("group", [1, 2])
def test_force(group: int, quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    """A forced ConvTranspose has one scale for each entry of axis 1; groups share them, the bias has one a channel."""
    weights = {"k": w(8, 4 // group, 2, 2), "v": w(4)}
    text = build("(float[1,8,8,8] x) => (float[a,b,c,d] y)", f"y = ConvTranspose<group={group}>(x, k, v)", weights)
    made = quantized(text, force=["op:ConvTranspose"])
    assert made.status("n0") == "integer/layer"
    found = made.initializers()
    assert found["k_scale"].shape == (4 // group,) and found["v_quantized"].shape == found["v_scale"].shape == (4,)
    np.testing.assert_array_equal(found["v_scale"], found["x_scale"] * np.tile(found["k_scale"], group))
    assert [a.i for a in made.maker("k_dequantized").attribute if a.name == "axis"] == [1]
    close(made)


def test_force_of_a_layer_with_a_mask(quantized: Callable[..., Any], close: Callable[..., None]) -> None:
    """Only what holds floats becomes integers: the mask of an Attention stays what it is."""
    signature = "(float[2,5,16] x, int32[2] m) => (float[a,b,c] y)"
    body = "y = com.microsoft.Attention<num_heads=2>(x, w, b, m)"
    text = build(signature, body, {"w": w(16, 48), "b": w(48)}, imports=', "com.microsoft" : 1')
    feeds = [{"x": w(2, 5, 16), "m": np.array([5, 3], np.int32)} for _ in range(3)]
    made = quantized(text, force=["op:com.microsoft:Attention"], feeds=feeds)
    assert made.status("n0") == "integer/layer" and made.maker("x_quantized").op_type == "QuantizeLinear"
    assert made.initializers()["w_scale"].shape == made.initializers()["b_scale"].shape == (48,)
    close(made)


def test_force_that_cannot_be_met() -> None:
    body = "e = Exp(x) y = Conv(e, k)"
    made, ctx, _ = plan(build("(float[1,4,8,8] x, float[8,4,3,3] k) => (float[a,b,c,d] y)", body, {}), force=("*",))
    assert not made.activations
    unmet = {n.place.node: n.message for n in ctx.report.of("force-not-met")}
    assert unmet == {
        "n0": "it stays float all the same: ort-cpu has no integer kernel for Exp",
        "n1": "it stays float all the same: its weight is computed at run time",
    }


def test_forced_layers_are_not_too_small() -> None:
    proto = build(C4, "e = Exp(x) c = Conv(e, k) y = Exp(c)", CONV)
    assert by_name(plan(proto)[0])["n1"].code == "too-little-work"
    assert by_name(plan(proto, force=("op:Conv",))[0])["n1"].code == "layer"


def test_without_ranges() -> None:
    body = "c = Conv(x, k) f = Flatten(c) m = MatMul(f, w) d = Add(m, v) r = Relu(d) y = MatMul(r, r)"
    weights = {"k": w(16, 4, 3, 3), "w": w(576, 1), "v": w(1)}
    made, _, _ = plan(build("(float[1,4,8,8] x) => (float[a,b] y)", body, weights), static=False)
    found = by_name(made)
    assert found["n0"].code == "no-ranges" and found["n2"].status == "dynamic" and found["n5"].code == "no-ranges"
    assert not made.activations and found["n3"].code == "behind-dynamic-layer"


# -- plan files -------------------------------------------------------------------------------------------------------


def test_a_plan_comes_back(tmp_path: Path) -> None:
    """Written, read and made again: the same decisions; an edited node and what hangs on it stay float."""
    import json

    from onnxq.planfile import plan_json

    weights = {"k": w(8, 4, 3, 3), "k2": w(8, 8, 3, 3), "t": w(8, 4, 2, 2)}
    proto = build(C4, "c = Conv(x, k) r = Relu(c) d = Conv(r, k2) s = Relu(d) y = ConvTranspose(s, t)", weights)
    made, _, _ = plan(proto, force=("op:ConvTranspose",))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan_json(made)))
    same, ctx, _ = plan(proto, file=str(file))
    assert by_name(same) == by_name(made) and not ctx.report.of("plan-not-met")
    data = plan_json(made)
    data["nodes"]["n2"]["status"] = "float"
    file.write_text(json.dumps(data))
    edited, ctx, _ = plan(proto, file=str(file))
    assert {k: d.status for k, d in by_name(edited).items()} == {
        "n0": "integer", "n1": "integer", "n2": "float", "n3": "float", "n4": "integer"
    }  # fmt: skip
    (note,) = ctx.report.of("plan-not-met")
    assert note.place.node == "n3" and "the plan file says integer, it becomes float: its operand 'd'" in note.message
    assert len(edited.activations) == len(made.activations) and len(edited.weights) == 2
    kept, ctx, _ = plan(proto, file=str(file), weights="uint8", activations="uint16")
    assert list(kept.weights.values()) == list(edited.weights.values()), "the file counts for more than the options"
    assert [n.message for n in ctx.report.of("plan-file-counts")] == [
        "the plan file says otherwise than activations: uint16, weights: uint8, and counts for more"
    ]
