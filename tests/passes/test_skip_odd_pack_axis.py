"""skip-odd-pack-axis: which layers do not fit, and that such a layer stays float as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxq import api
from onnxq.context import Context
from onnxq.errors import OnnxqError, OptionError
from onnxq.facts import Goal, Plan, Skips
from onnxq.look import all_nodes
from onnxq.passbase import run_step
from onnxq.passes.plan import MakePlan
from onnxq.passes.skip_odd_pack_axis import SkipOddPackAxis, check_layer
from onnxq.passes.untranspose_gemm import UntransposeGemm
from onnxq.report.run import to_text
from onnxq.targets import load_target

RNG = np.random.default_rng(6)


def planned(
    body: str, inputs: str, weights: Mapping[str, tuple[int, ...]], *, target: str = "ascend",
    before: tuple[Any, ...] = (), plan: dict[str, Any] | None = None, opset: int = 21, **options: Any,
) -> tuple[ir.Model, Plan, Context]:  # fmt: skip
    """The model, its plan after the pass, the notes; nodes are called like their first output."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => (float y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, shape in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name))
    model, ctx = ir.from_proto(onnx.shape_inference.infer_shapes(proto)), Context()
    for node in all_nodes(model):
        node.name = node.outputs[0].name
    ctx.put(Goal(load_target(target)))
    bytes_before = {v.name: v.const_value.tobytes() for v in model.graph.initializers.values() if v.const_value}
    for step in (*before, MakePlan(**{"weights": "int4", **(plan or {})}), SkipOddPackAxis(**options)):
        run_step(step, model, ctx)
    if not before:
        assert {
            v.name: v.const_value.tobytes() for v in model.graph.initializers.values() if v.const_value
        } == bytes_before
    return model, ctx.get(Plan), ctx


X4, RECURRENT = "float[1,{},8,8] x", "y, h = {}<hidden_size={}>(x, w, r)"
VERDICTS = [
    # body, inputs, weights, verdict for ascend, for input-channel: axis and length, or None where it fits
    ("y = Conv(x, w)", X4.format(4), {"w": (6, 4, 3, 3)}, (-1, 3), None),
    ("y = Conv(x, w)", X4.format(5), {"w": (6, 5, 3, 4)}, None, (1, 5)),
    ("y = Conv(x, w)", X4.format(4), {"w": (5, 4, 3, 4)}, None, None),
    ("y = Conv(x, w)", X4.format(4), {"w": (6, 4, 1, 1)}, (-1, 1), None),
    ("y = Conv<group=4>(x, w)", X4.format(4), {"w": (4, 1, 4, 4)}, None, (1, 1)),
    ("y = Conv<group=2>(x, w)", X4.format(6), {"w": (4, 3, 4, 4)}, None, (1, 3)),
    ("y = Conv(x, w)", "float[1,4,9] x", {"w": (6, 4, 3)}, (-1, 3), None),
    ("y = Conv(x, w)", "float[1,4,9,9,9] x", {"w": (6, 4, 3, 3, 2)}, None, None),
    ("y = ConvTranspose(x, w)", X4.format(4), {"w": (4, 6, 3, 3)}, (-1, 3), None),
    ("y = ConvTranspose(x, w)", X4.format(5), {"w": (5, 6, 3, 2)}, None, (0, 5)),
    ("y = Gemm(x, w)", "float[2,6] x", {"w": (6, 5)}, (-1, 5), None),
    ("y = Gemm(x, w)", "float[2,5] x", {"w": (5, 6)}, None, (0, 5)),
    ("y = Gemm<transB=1>(x, w)", "float[2,6] x", {"w": (5, 6)}, (0, 5), None),
    ("y = Gemm<transB=1>(x, w)", "float[2,5] x", {"w": (6, 5)}, None, (1, 5)),
    ("y = MatMul(x, w)", "float[2,6] x", {"w": (6, 5)}, (-1, 5), None),
    ("y = MatMul(x, w)", "float[3,2,5] x", {"w": (3, 5, 6)}, None, (-2, 5)),
    ("y = MatMul(x, w)", "float[2,5] x", {"w": (5,)}, (-1, 5), (-1, 5)),
    ("t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)", "float[2,6] x", {"w": (5, 6)}, (-1, 5), None),
    (RECURRENT.format("LSTM", 4), "float[3,1,6] x", {"w": (1, 16, 6), "r": (1, 16, 4)}, None, None),
    (RECURRENT.format("LSTM", 4), "float[3,1,5] x", {"w": (1, 16, 5), "r": (1, 16, 4)}, (-1, 5), (-1, 5)),
    (RECURRENT.format("GRU", 3), "float[3,1,6] x", {"w": (1, 9, 6), "r": (1, 9, 3)}, (-1, 3), (-1, 3)),
    (RECURRENT.format("RNN", 3), "float[3,1,5] x", {"w": (1, 3, 5), "r": (1, 3, 3)}, (-1, 5), (-1, 5)),
]


@pytest.mark.parametrize("rule", ["target", "flat", "input-channel"])
@pytest.mark.parametrize(("body", "inputs", "weights", "ascend", "channel"), VERDICTS)
def test_verdicts(
    body: str, inputs: str, weights: dict[str, tuple[int, ...]], ascend: Any, channel: Any, rule: Any
) -> None:
    wanted = {"target": ascend, "flat": None, "input-channel": channel}[rule]
    _, plan, ctx = planned(body, inputs, weights, pack_axis=rule)
    if wanted is None:
        assert len(plan.weights) == len(weights) and plan.activations and not ctx.report.of("odd-pack-axis")
        return
    (note,), (node,) = ctx.report.of("odd-pack-axis"), ctx.get(Skips).nodes
    assert plan.decisions[node].status == "float" and plan.decisions[node].code == "odd-pack-axis"
    assert not plan.weights and not plan.activations and not plan.biases
    first = note.numbers["weights"][0]
    assert (first["axis"], first["length"]) == wanted
    assert f"{wanted[1]} long on pack axis {wanted[0]}, which has to be even" in note.message


TWO = {"w": (6, 4, 3, 3), "v": (6, 4, 4, 4)}


def test_whole_layer_stays_float() -> None:
    """Its pair on the activation goes, too, unless another layer needs it; nothing becomes 8 bits."""
    body = "a = Relu(x) b = Conv(a, w, c) d = Relu(b) y = MatMul(d, m)"
    weights = {"w": (6, 4, 3, 3), "c": (6,), "m": (6, 8)}
    _, plan, ctx = planned(body, "float[1,4,8,8] x", weights)
    assert {e.node.name for e in plan.weights} == {"y"} and {e.node.name for e in plan.readers} == {"y"}
    assert {v.name for v in plan.activations} == {"d"} and not plan.biases
    assert {s.qtype.name for s in plan.weights.values()} == {"int4"}
    assert [n.name for n in ctx.get(Skips).nodes] == ["b"]
    assert plan.wishes.banned.keys() == ctx.get(Skips).nodes.keys()


def test_shared_activation_keeps_its_pair() -> None:
    _, plan, _ = planned("a = Conv(x, w) b = Conv<pads=[0,0,1,1]>(x, v) y = Add(a, b)", "float[1,4,8,8] x", TWO)
    assert [v.name for v in plan.activations] == ["x"] and [e.node.name for e in plan.readers] == ["b"]


def test_note() -> None:
    """Layer, shape, axis as the rule says it, length, remedy; no word on activations."""
    _, _, ctx = planned("y = Conv(x, w)", "float[1,4,8,8] x", {"w": (6, 4, 3, 3)})
    (note,) = ctx.report.of("odd-pack-axis")
    assert str(note) == (
        "y (Conv): weight 'w' of shape [6, 4, 3, 3] is 3 long on pack axis -1, which has to be even: the layer stays "
        "float (on-odd: pad widens it, or choose another pack-axis) [odd-pack-axis]"
    )
    assert note.numbers == {"weights": [{"weight": "w", "shape": [6, 4, 3, 3], "axis": -1, "length": 3}]}
    assert note.severity.value == "warning"


def test_one_note_for_two_weights() -> None:
    _, _, ctx = planned("y, h = LSTM<hidden_size=3>(x, w, r)", "float[3,1,5] x", {"w": (1, 12, 5), "r": (1, 12, 3)})
    (note,) = ctx.report.of("odd-pack-axis")
    assert "'w' of shape [1, 12, 5] is 5 long" in note.message and "'r' of shape [1, 12, 3] is 3 long" in note.message


@pytest.mark.parametrize("shape", [(5, 6), (6, 5), (6, 6)])
def test_untransposed_gemm_has_the_same_verdict(shape: tuple[int, ...]) -> None:
    found = []
    for before in ((), (UntransposeGemm(when="always"),)):
        _, plan, ctx = planned(
            "y = Gemm<transB=1>(x, w)", f"float[2,{shape[1]}] x", {"w": shape}, before=before, pack_axis="ascend"
        )
        lengths = [w["length"] for n in ctx.report.of("odd-pack-axis") for w in n.numbers["weights"]]
        found.append((len(plan.weights), lengths))
    assert found[0] == found[1] == ((0, [5]) if shape[0] == 5 else (1, []))


@pytest.mark.parametrize(("weights", "skipped"), [("int8", 0), ("int4", 1)])
def test_eight_bits_always_fit(weights: str, skipped: int) -> None:
    _, plan, ctx = planned("y = Conv(x, w)", "float[1,4,8,8] x", {"w": (6, 4, 3, 3)}, plan={"weights": weights})
    assert len(ctx.report.of("odd-pack-axis")) == skipped == 1 - len(plan.weights)


def test_two_bits_need_a_multiple_of_four() -> None:
    for length, fits in ((4, True), (6, False), (8, True), (5, False)):
        options: dict[str, Any] = {"target": "onnx", "plan": {"weights": "int2", "weight_only": True}, "opset": 25}
        _, plan, ctx = planned("y = MatMul(x, w)", "float[2,6] x", {"w": (6, length)}, pack_axis="ascend", **options)
        assert bool(plan.weights) is fits
        assert [("multiple of 4" in n.message) for n in ctx.report.of("odd-pack-axis")] == [True] * (not fits)


def test_error_lists_all_layers() -> None:
    with pytest.raises(OptionError) as caught:
        planned(
            "a = Conv(x, w) y = Conv(a, v)", "float[1,4,8,8] x", {"w": (4, 4, 3, 3), "v": (6, 4, 1, 1)}, on_odd="error"
        )
    assert str(caught.value).splitlines() == [
        "2 layers cannot be packed (on-odd: pad widens it, or choose another pack-axis):",
        "  a (Conv): weight 'w' of shape [4, 4, 3, 3] is 3 long on pack axis -1, which has to be even",
        "  y (Conv): weight 'v' of shape [6, 4, 1, 1] is 1 long on pack axis -1, which has to be even",
    ]
    planned("y = Conv(x, v)", "float[1,4,8,8] x", {"v": (6, 4, 4, 4)}, on_odd="error")


def test_bodies() -> None:
    body = """y = If(c) <then_branch = yes () => (float p) { p = MatMul(x, w) },
      else_branch = no () => (float r) { r = MatMul(x, v) }>"""
    _, plan, ctx = planned(body, "float[2,6] x, bool c", {"w": (6, 5), "v": (6, 8)})
    assert [n.place.node for n in ctx.report.of("odd-pack-axis")] == ["p"]
    assert [e.node.name for e in plan.weights] == ["r"]


def test_old_opset_cannot_pad() -> None:
    """Planned by hand: no recipe gets 4 bits below opset 21."""
    model, _, ctx = planned("y = MatMul(x, w)", "float[2,6] x", {"w": (6, 5)}, pack_axis="flat")
    model.opset_imports[""] = 17
    with pytest.raises(OptionError, match="needs opset 18"):
        run_step(SkipOddPackAxis(on_odd="pad"), model, ctx)


def test_twice_is_once() -> None:
    model, plan, ctx = planned("a = Conv(x, w) y = Conv(x, v)", "float[1,4,8,8] x", TWO)
    assert not run_step(SkipOddPackAxis(), model, ctx)
    assert len(ctx.report.of("odd-pack-axis")) == 1
    assert ctx.get(Plan).weights.keys() == plan.weights.keys()


@pytest.mark.parametrize(
    ("op", "shape", "options", "message"),
    [
        ("Conv", (4, 3, 3, 3), {}, r"Conv: int4 weight of shape \[4, 3, 3, 3\] is 3 long on pack axis -1"),
        ("Conv", (4, 3, 3, 4), {}, None),
        ("Conv", (4, 3, 3, 4), {"pack_axis": "input-channel"}, "3 long on pack axis 1"),
        ("Gemm", (5, 6), {"trans_b": True}, "5 long on pack axis 0"),
        ("Gemm", (6, 5), {"trans_b": True}, None),
        ("Gemm", (6, 5), {}, "5 long on pack axis -1"),
        ("LSTM", (1, 12, 3), {}, "3 long on pack axis -1"),
        ("Conv", (4, 3, 3, 3), {"qtype": "int8"}, None),
        ("Conv", (4, 3, 3, 3), {"pack_axis": "flat"}, None),
        ("Conv", (4, 3, 3, 2), {"qtype": "uint2"}, "multiple of 4"),
        ("MatMul", (), {}, None),
    ],
)
def test_single_layer(op: str, shape: tuple[int, ...], options: dict[str, Any], message: str | None) -> None:
    if message is None:
        check_layer(op, shape, **options)
        return
    for kind in (ValueError, OnnxqError):
        with pytest.raises(kind, match=message):
            check_layer(op, shape, **options)


def test_single_node() -> None:
    x = ir.Value(name="x")
    node = ir.node("Gemm", [x, ir.Value(name="w")], attributes={"transB": 1}, name="fc")
    with pytest.raises(ValueError, match=r"fc \(Gemm\): int4 weight of shape \[5, 6\] is 5 long on pack axis 0"):
        check_layer(node, (5, 6))
    check_layer(node, (6, 5))


def recipe_model(length: int) -> onnx.ModelProto:
    """Conv, depthwise Conv, Gemm with transB=1 and MatMul, all of them ``length`` long on their pack axis."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,4,8,8] x) => (float[1,o] y) <int64[2] ax = {2, 3}> {
      a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) c = Conv<group=6>(r, d) s = ReduceMean<keepdims=0>(c, ax)
      e = Gemm<transB=1>(s, g, h) f = Relu(e) y = MatMul(f, m) }"""
    proto = onnx.parser.parse_model(text)
    shapes = {"w": (6, 4, 3, length), "b": (6,), "d": (6, 1, 3, length), "g": (length, 6), "h": (length,)}
    for name, shape in {**shapes, "m": (length, length)}.items():
        array = (RNG.standard_normal(shape) * 0.3).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def test_recipe_leaves_an_odd_model_alone() -> None:
    """Every weight keeps its bytes, each layer has one note, and the report says so."""
    proto = recipe_model(5)
    data = [{"x": RNG.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(2)]
    result = api.quantize(proto, data, recipe="a8w4", target="ascend")
    assert [n.op_type for n in result.model.graph.node] == [n.op_type for n in proto.graph.node]
    wanted = {t.name: t.SerializeToString() for t in proto.graph.initializer}
    assert {t.name: t.SerializeToString() for t in result.model.graph.initializer} == wanted
    notes = result.report.of("odd-pack-axis")
    assert sorted(n.place.op_type for n in notes) == ["Conv", "Conv", "Gemm", "MatMul"]
    assert "0 of 4 layers quantized" in to_text(result.report)


@pytest.mark.parametrize(("length", "on_odd"), [(5, "pad"), (4, "skip"), (4, "error")])
def test_recipe_quantizes_what_fits(length: int, on_odd: str, run_model: Callable[..., list[Any]]) -> None:
    proto = recipe_model(length)
    data = [{"x": RNG.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
    result = api.run("a8w4", proto, data, parameters={"on-odd": on_odd})
    assert "4 of 4 layers quantized" in to_text(result.report)
    four = [t for t in result.model.graph.initializer if t.data_type == onnx.TensorProto.INT4]
    assert len(four) == 4 and all(t.dims[-1] % 2 == 0 for t in four)
    wanted = run_model(proto, data[0])[0]
    for true in (False, True):
        got = run_model(result.model, data[0], true=true)[0]
        assert got.shape == wanted.shape
        assert np.dot(got[0], wanted[0]) / np.linalg.norm(got) / np.linalg.norm(wanted) > 0.9
