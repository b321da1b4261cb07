"""skip-odd-pack-axis with on-odd: pad: weights grow by zeros, numbers stay."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxq.context import Context
from onnxq.facts import Goal, Plan
from onnxq.passbase import run_step
from onnxq.passes.plan import MakePlan
from onnxq.passes.skip_odd_pack_axis import SkipOddPackAxis
from onnxq.targets import load_target
from onnxq.weights import weight_tensor

RNG = np.random.default_rng(5)
Padded = Callable[..., tuple[onnx.ModelProto, Plan, Context]]


def w(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def model(body: str, inputs: str, outputs: str, opset: int = 21, /, **constants: Any) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), k) for k, a in constants.items())
    return onnx.shape_inference.infer_shapes(proto)


def pad(proto: onnx.ModelProto, qtype: str = "int4", **options: Any) -> tuple[onnx.ModelProto, Plan, Context]:
    """The float model with its weights padded, the plan, the notes."""
    graph, ctx = ir.from_proto(proto), Context()
    target = load_target("ascend" if qtype == "int4" else "onnx")
    ctx.put(Goal(target))
    run_step(MakePlan(weights=qtype, weight_only=qtype != "int4"), graph, ctx)
    run_step(SkipOddPackAxis(on_odd="pad", **options), graph, ctx)
    return ir.to_proto(graph), ctx.get(Plan), ctx


def lengths(plan: Plan, axis: int = -1) -> list[int]:
    tensors = [weight_tensor(edge.value) for edge in plan.weights]
    return [int(t.shape.numpy()[axis]) for t in tensors if t is not None]


def check(proto: onnx.ModelProto, same_numbers: Callable[..., None], **options: Any) -> tuple[onnx.ModelProto, Plan]:
    after, plan, ctx = pad(proto, **options)
    assert [n.code for n in ctx.report.notes] == ["pack-axis-padded"] * len(ctx.report.notes)
    assert ctx.report.notes and plan.weights
    same_numbers(proto, after)
    # Shapes that the graph states are those that inference finds.
    stated = {v.name: v for v in (*after.graph.value_info, *after.graph.output)}
    del after.graph.value_info[:]
    for value in onnx.shape_inference.infer_shapes(after, strict_mode=True, data_prop=True).graph.value_info:
        if value.name in stated and value.type.tensor_type.HasField("shape"):
            assert stated[value.name].type.tensor_type.shape == value.type.tensor_type.shape, value.name
    return after, plan


CONVS = [
    (rank, stride, dilation, group, kernel)
    for rank, stride, dilation, group, kernel in itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (1, 4), (1, 3))
    if rank == 2 or stride != 3
]


@pytest.mark.parametrize(("rank", "stride", "dilation", "group", "kernel"), CONVS)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_kernels(
    op: str, rank: int, stride: int, dilation: int, group: int, kernel: int, same_numbers: Callable[..., None]
) -> None:
    strides, dilations, ends = [stride] * rank, [dilation, 1, 2][:rank], [0, 1, 1][:rank]
    kernels = [2, 3, 4][:rank]
    kernels[-1], dilations[-1] = kernel, dilation
    extra = f", output_padding={[stride - 1] * rank}" if op == "ConvTranspose" and group == 4 else ""
    stated = f", kernel_shape={kernels}" if stride == 2 else ""
    attributes = f"strides={strides}, dilations={dilations}, group={group}, pads={ends[::-1] + ends}{extra}{stated}"
    weight = w(4, 8 // group if op == "ConvTranspose" else 4 // group, *kernels)
    size = ", ".join(["9", "8", "7"][:rank])
    outputs = "float[" + ",".join("abcde"[: rank + 2]) + "] y"
    proto = model(f"y = {op}<{attributes}>(x, w, b)", f"float[2,4,{size}] x", outputs, w=weight,
                  b=w(8 if op == "ConvTranspose" else 4))  # fmt: skip
    after, plan = check(proto, same_numbers)
    assert lengths(plan) == [kernel + 1] and [n.op_type for n in after.graph.node] == [op]


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (2, 5), (3, 1), (4, 3)])
def test_auto_pad(auto: str, stride: int, kernel: int, same_numbers: Callable[..., None]) -> None:
    proto = model(
        f'y = Conv<auto_pad="{auto}", strides=[{stride}, {stride}]>(x, w)', "float[1,3,8,9] x", "float[a,b,c,d] y",
        w=w(4, 3, 2, kernel),
    )  # fmt: skip
    after, _ = check(proto, same_numbers)
    assert "auto_pad" not in [a.name for a in after.graph.node[0].attribute]


def test_auto_pad_of_unknown_size(same_numbers: Callable[..., None]) -> None:
    """With stride 1 the padding follows from the kernel alone."""
    proto = model('y = Conv<auto_pad="SAME_UPPER">(x, w)', "float[1,3,h,v] x", "float[a,b,c,d] y", w=w(4, 3, 3, 5))
    after, plan, _ = pad(proto)
    feeds = {"x": w(1, 3, 6, 7)}
    same_numbers(proto, after, feeds)
    assert lengths(plan) == [6]


@pytest.mark.parametrize(
    ("body", "shape", "why"),
    [
        ('y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)', (4, 3, 3, 3), "unknown size"),
        ('y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)', (3, 4, 3, 3), "auto_pad=SAME_UPPER"),
        ("y = ConvTranspose<output_shape=[8,8], strides=[2,2]>(x, w)", (3, 4, 3, 3), "output_shape"),
    ],
)
def test_unknown_padding_is_refused(body: str, shape: tuple[int, ...], why: str) -> None:
    proto = model(body, "float[1,3,h,v] x", "float[a,b,c,d] y", w=w(*shape))
    after, plan, ctx = pad(proto)
    (note,) = ctx.report.notes
    assert note.code == "odd-pack-axis" and why in note.message and not plan.weights
    assert untouched(proto, after)


def untouched(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    same = ir.to_proto(ir.from_proto(before))
    return all(list(getattr(same.graph, k)) == list(getattr(after.graph, k)) for k in ("node", "initializer"))


FLAT = {
    "gemm": ("y = Gemm(x, w, b)", (6, 5), (5,)),
    "gemm, transposed": ("y = Gemm<transB=1>(x, w, b)", (5, 6), (1, 5)),
    "gemm, left transposed": ("t = Transpose(x) y = Gemm<transA=1>(t, w, b)", (6, 5), (1,)),
    "gemm, no bias": ("y = Gemm(x, w)", (6, 5), ()),
    "gemm, one output": ("y = Gemm(x, w, b)", (6, 1), (1,)),
    "relu behind": ("a = Gemm(x, w, b) y = Relu(a)", (6, 5), (5,)),
    "matmul": ("y = MatMul(x, w)", (6, 5), ()),
    "bias add": ("a = MatMul(x, w) y = Add(b, a)", (6, 5), (5,)),
    "bias add, clip": ("a = MatMul(x, w) c = Add(a, b) y = Clip(c, z)", (6, 5), (5,)),
    "other add": ("a = MatMul(x, w) y = Add(a, b)", (6, 5), (3, 5)),
    "two readers": ("a = MatMul(x, w) c = Add(a, b) d = Mul(a, c) y = Sub(d, a)", (6, 5), (5,)),
}


@pytest.mark.parametrize("case", FLAT)
def test_outputs(case: str, same_numbers: Callable[..., None]) -> None:
    """One more column, and a Slice behind the layer; names of values and outputs stay."""
    body, shape, bias = FLAT[case]
    constants: dict[str, Any] = {"w": w(*shape), "b": w(*bias), "z": np.array(0, np.float32)}
    proto = model(body, "float[3,6] x", "float[a,b] y", **{k: constants[k] for k in re.findall(r"\b[wbz]\b", body)})
    after, plan = check(proto, same_numbers)
    assert [n.op_type for n in after.graph.node].count("Slice") == 1
    (edge,) = plan.weights
    tensor = weight_tensor(edge.value)
    assert tensor is not None
    assert sorted(tensor.shape.numpy()) == sorted([6, shape[1] + 1 if shape[0] == 6 else 6])
    assert {o for n in proto.graph.node for o in n.output} < {o for n in after.graph.node for o in n.output}


def test_high_ranks_and_shared_weights(same_numbers: Callable[..., None]) -> None:
    """One padded copy; a weight of rank 3; the other reader keeps the old one."""
    body = "a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, v) d = Transpose<perm=[1,0]>(w) y = MatMul(c, d)"
    proto = model(body, "float[2,4,5] x", "float[a,b,c] y", w=w(5, 5), v=w(2, 5, 5))
    after, _ = check(proto, same_numbers)
    padded = [t for t in after.graph.initializer if t.name.startswith("w") and list(t.dims) == [5, 6]]
    assert len(padded) == 1


def test_inside_bodies(same_numbers: Callable[..., None]) -> None:
    body = """y = If(c) <then_branch = yes () => (float[3,5] p) { p = MatMul(x, w) },
      else_branch = no () => (float[3,5] r) { q = MatMul(x, w) r = Relu(q) }>"""
    proto = model(body, "float[3,6] x, bool c", "float[3,5] y", w=w(6, 5))
    after, _, ctx = pad(proto)
    assert len(ctx.report.of("pack-axis-padded")) == 2
    for c in (True, False):
        same_numbers(proto, after, {"x": w(3, 6), "c": np.array(c)})


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_input(op: str, direction: str, same_numbers: Callable[..., None]) -> None:
    """An odd input size: the activation gets a column of zeros, too."""
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    body = f'y, h = {op}<hidden_size=4, direction="{direction}">(x, w, r)'
    proto = model(body, "float[5,2,3] x", "float[a,b,c,d] y, float[e,f,i] h", w=w(ways, gates * 4, 3),
                  r=w(ways, gates * 4, 4))  # fmt: skip
    after, plan = check(proto, same_numbers)
    assert [n.op_type for n in after.graph.node] == ["Pad", op] and lengths(plan) == [4, 4]


@pytest.mark.parametrize("size", [3, 4])
def test_recurrent_state_is_refused(size: int) -> None:
    proto = model("y, h = GRU<hidden_size=3>(x, w, r)", f"float[5,2,{size}] x", "float[a,b,c,d] y, float[e,f,i] h",
                  w=w(1, 9, size), r=w(1, 9, 3))  # fmt: skip
    after, plan, ctx = pad(proto)
    (note,) = ctx.report.notes
    assert note.code == "odd-pack-axis" and "hidden state" in note.message and "'r'" in note.message
    assert not plan.weights and not plan.activations and untouched(proto, after)


@pytest.mark.parametrize(
    ("body", "x", "shape", "axis"),
    [
        ("y = Conv(x, w)", "2,3,4,4", (4, 3, 3, 3), 1),
        ("y = ConvTranspose(x, w)", "2,3,4,4", (3, 4, 3, 3), 0),
        ("y = Gemm(x, w)", "2,3", (3, 5), 0),
        ("y = Gemm<transB=1>(x, w)", "2,3", (5, 3), 1),
        ("y = Gemm<transA=1>(x, w)", "3,2", (3, 5), 0),
        ("y = MatMul(x, w)", "2,4,3", (3, 5), 0),
        ("y = MatMul(x, w)", "2,4,3", (2, 3, 5), 1),
    ],
)
def test_input_channels(
    body: str, x: str, shape: tuple[int, ...], axis: int, same_numbers: Callable[..., None]
) -> None:
    rank = 2 if "Gemm" in body else len(x.split(","))
    proto = model(body, f"float[{x}] x", "float[" + ",".join("abcd"[:rank]) + "] y", w=w(*shape))
    after, plan = check(proto, same_numbers, pack_axis="input-channel")
    assert after.graph.node[0].op_type == "Pad" and lengths(plan, axis) == [4]


def test_shared_activation_is_padded_once(same_numbers: Callable[..., None]) -> None:
    proto = model(
        "a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b)", "float[2,3] x", "float[2,4] y", w=w(3, 4), v=w(3, 4)
    )
    after, _ = check(proto, same_numbers, pack_axis="input-channel")
    assert [n.op_type for n in after.graph.node].count("Pad") == 1


def test_grouped_input_channels_are_refused() -> None:
    proto = model("y = Conv<group=2>(x, w)", "float[2,6,4,4] x", "float[a,b,c,d] y", w=w(4, 3, 3, 3))
    _, plan, ctx = pad(proto, pack_axis="input-channel")
    assert "each group" in ctx.report.notes[0].message and not plan.weights


def test_bias_at_run_time_is_refused() -> None:
    """The planner knows no such layer in a full plan; a weight-only plan does."""
    body = "b = ReduceMax<keepdims=0>(x) y = Gemm(x, w, b)"
    proto = model(body, "float[2,4] x", "float[2,5] y", w=w(4, 5))
    graph, ctx = ir.from_proto(proto), Context()
    ctx.put(Goal(load_target("onnx")))
    run_step(MakePlan(weights="int4", weight_only=True), graph, ctx)
    run_step(SkipOddPackAxis(on_odd="pad", pack_axis="ascend"), graph, ctx)
    assert "bias is computed at run time" in ctx.report.of("odd-pack-axis")[0].message
    assert not ctx.get(Plan).weights


def test_two_bits_need_a_multiple_of_four(same_numbers: Callable[..., None]) -> None:
    proto = model("y = MatMul(x, w)", "float[2,6] x", "float[2,5] y", 25, w=w(6, 5))
    after, plan, ctx = pad(proto, "int2", pack_axis="ascend")
    assert "multiple of 4" in ctx.report.of("pack-axis-padded")[0].message
    assert lengths(plan) == [8] and [n.op_type for n in after.graph.node] == ["MatMul", "Slice"]
    same_numbers(proto, after)
