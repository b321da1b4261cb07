"""fuse-batch-norm: numbers stay for every op and layout; shared weights are copied; what cannot be exact stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq.edit import constant
from onnxq.passbase import Context, run_step
from onnxq.passes.fuse_batch_norm import FuseBatchNorm

RNG = np.random.default_rng(0)


def build(
    nodes: list[onnx.NodeProto],
    x: tuple[int | str, ...],
    dtype: Any = np.float32,
    opset: int = 17,
    outputs: tuple[str, ...] = ("y",),
    **constants: Any,
) -> onnx.ModelProto:
    """A model with input ``x`` and inferred shapes; constants are shapes to draw, or arrays."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensors = []
    for name, value in constants.items():
        array = np.asarray(RNG.standard_normal(value) if isinstance(value, tuple) else value)
        array = np.abs(array) + 0.5 if name.startswith("var") else array
        tensors.append(numpy_helper.from_array(array.astype(dtype), name))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info(o, kind, None) for o in outputs],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)


def bn(source: str, to: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node("BatchNormalization", f"{source} gamma beta mean var", to, **attributes)


def stats(channels: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("gamma", "beta", "mean", "var"), (channels,))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 4, 7), (6, 4, 3), {}),
        ((2, 4, 7, 6), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6}),
        ((1, 2, 4, 4, 4), (6, 2, 2, 2, 2), {}),
    ],
)
def test_conv(
    x: Any, w: Any, attributes: Any, bias: bool, run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    inputs = "x w b" if bias else "x w"
    proto = build([node("Conv", inputs, "c", **attributes), bn("c", epsilon=0.01)], x, w=w, b=(6,), **stats(6))
    out = run_passes(proto, FuseBatchNorm())
    assert out.ops() == ["Conv"] and list(out.proto.graph.node[0].output) == ["y"]
    assert set(out.initializers()) == {"w", "b" if bias else "Conv_c_bias"}
    same_numbers(proto, out.proto)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_conv_transpose(groups: int, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    proto = build(
        [node("ConvTranspose", "x w b", "c", group=groups, strides=[2, 2]), bn("c")],
        (1, 6, 4, 4),
        w=(6, 6 // groups, 3, 3),
        b=(6,),
        **stats(6),
    )
    out = run_passes(proto, FuseBatchNorm())
    assert out.ops() == ["ConvTranspose"]
    same_numbers(proto, out.proto)


@pytest.mark.parametrize("c", [None, (5,), (1, 5), (3, 5), (1,), ()])
@pytest.mark.parametrize("attributes", [{}, {"transB": 1, "alpha": 0.5, "beta": 2.0}])
def test_gemm(c: Any, attributes: Any, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    w = (5, 4) if attributes else (4, 5)
    proto = build([node("Gemm", "x w c" if c is not None else "x w", "g", **attributes), bn("g")], (3, 4), w=w,
                  c=c or (), **stats(5))  # fmt: skip
    out = run_passes(proto, FuseBatchNorm())
    assert out.ops() == ["Gemm"]
    same_numbers(proto, out.proto)


@pytest.mark.parametrize("add", [True, False])
def test_matmul(add: bool, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Add", "b m", "a")] if add else [node("MatMul", "x w", "a")]
    proto = build([*nodes, bn("a")], (3, 4), w=(4, 5), b=(5,), **stats(5))
    out = run_passes(proto, FuseBatchNorm())
    assert out.ops() == ["MatMul", "Add"]
    same_numbers(proto, out.proto)


def test_matmul_of_rank_3_normalizes_another_axis(run_passes: Callable[..., Any]) -> None:
    proto = build([node("MatMul", "x w", "m"), bn("m")], (2, 5, 4), w=(4, 5), **stats(5))
    out = run_passes(proto, FuseBatchNorm())
    assert not out.changed and "axis 1" in out.ctx.report.of("batch-norm-kept")[0].message


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("Add", "c k", "y")], (1, 6, 1, 1)),
        ([node("Add", "k c", "y")], (6, 1, 1)),
        ([node("Sub", "c k", "y")], (6, 1, 1)),
        ([node("Sub", "k c", "y")], (6, 1, 1)),
        ([node("Mul", "k c", "y")], ()),
        ([node("Div", "c k", "y")], (1, 6, 1, 1)),
        ([node("Add", "c k", "d"), bn("d", "e"), node("Mul", "e k", "f"), node("Sub", "k f", "y")], (6, 1, 1)),
    ],
)
def test_elementwise_by_channel(
    nodes: Any, shape: Any, run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    proto = build([node("Conv", "x w", "c"), *nodes], (2, 4, 5, 5), w=(6, 4, 3, 3), k=shape, **stats(6))
    out = run_passes(proto, FuseBatchNorm())
    assert out.ops() == ["Conv"]
    same_numbers(proto, out.proto, atol=3e-6)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("Add", "c k", "y")], (3, 3)),  # one number a pixel
        ([node("Add", "c k", "y")], (3,)),  # along the width
        ([node("Mul", "c k", "y")], (1, 1, 6, 1, 1)),  # raises the rank
        ([node("Div", "k c", "y")], (6, 1, 1)),  # not linear
        ([node("Add", "c k", "d"), node("Mul", "c d", "y")], (6, 1, 1)),  # read twice
        ([node("Mul", "c x", "y")], ()),  # nothing constant
    ],
)
def test_what_is_not_by_channel_stays(nodes: Any, shape: Any, run_passes: Callable[..., Any]) -> None:
    proto = build([node("Conv", "x w", "c"), *nodes], (1, 6, 3, 3), w=(6, 6, 1, 1), k=shape)
    assert not run_passes(proto, FuseBatchNorm()).changed


def test_matmul_scaled_by_a_number_or_a_column(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Mul", "a s", "t"), node("Div", "t k", "y")]
    proto = build(nodes, (2, 3, 4), w=(4, 5), b=(5,), s=(), k=(5,))
    out = run_passes(proto, FuseBatchNorm())
    assert out.ops() == ["MatMul", "Add"]
    same_numbers(proto, out.proto)


def test_shared_weights_and_biases_are_copied(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    nodes = [node("Conv", "x w b", "c"), bn("c"), node("Conv", "x w b", "z")]
    proto = build(nodes, (1, 4, 5, 5), outputs=("y", "z"), w=(6, 4, 3, 3), b=(6,), **stats(6))
    out = run_passes(proto, FuseBatchNorm())
    assert set(out.initializers()) == {"w", "b", "w_1", "b_1"}
    assert list(out.proto.graph.node[1].input) == ["x", "w", "b"]
    same_numbers(proto, out.proto)


def test_weights_in_constants_and_ir_3_inputs(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    proto = build([node("Conv", "x w b", "c"), bn("c")], (1, 4, 5, 5), w=(6, 4, 3, 3), b=(6,), **stats(6))
    lifted = onnx.ModelProto()
    lifted.CopyFrom(proto)
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer]
    del lifted.graph.initializer[:]
    del lifted.graph.node[:]
    lifted.graph.node.extend([*constants, *proto.graph.node])
    out = run_passes(lifted, FuseBatchNorm())
    assert out.ops() == ["Conv"]
    same_numbers(proto, out.proto)
    old = onnx.ModelProto()
    old.CopyFrom(proto)
    old.ir_version = 3
    old.graph.input.extend(helper.make_tensor_value_info(t.name, 1, t.dims) for t in proto.graph.initializer)
    out = run_passes(old, FuseBatchNorm())
    assert out.ops() == ["Conv"] and [v.name for v in out.proto.graph.input] == ["x"] and out.proto.ir_version == 4
    same_numbers(proto, out.proto)


def test_defaults_the_caller_may_override_stay(run_passes: Callable[..., Any]) -> None:
    proto = build([node("Conv", "x w", "c"), bn("c")], (1, 4, 5, 5), w=(6, 4, 3, 3), **stats(6))
    proto.graph.input.append(helper.make_tensor_value_info("gamma", TensorProto.FLOAT, [6]))
    out = run_passes(proto, FuseBatchNorm())
    assert not out.changed and "not all constant" in out.ctx.report.notes[0].message


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("Conv", "x w", "c"), bn("c", "y rm rv", training_mode=1)], "training"),
        ([node("Conv", "x w", "c"), bn("c"), node("Relu", "c", "z")], "'c' is read elsewhere"),
        ([node("Relu", "x", "c"), bn("c")], "its input comes from Relu"),
        ([bn("x")], "its input comes from outside"),
        ([node("Conv", "x w", "c"), bn("c", spatial=0)], "spatial=0 normalizes every single activation"),
        (
            [node("Conv", "x w", "c"), node("BatchNormalization", "c beta5 beta5 beta5 var5", "y")],
            "its parameters do not have one number for each of 6 channels",
        ),
    ],
)
def test_refusals_say_why(nodes: Any, why: str, run_passes: Callable[..., Any]) -> None:
    proto = build(nodes, (1, 6, 5, 5), w=(6, 6, 3, 3), beta5=(5,), var5=(5,), **stats(6))
    out = run_passes(proto, FuseBatchNorm())
    assert not out.changed
    (note,) = out.ctx.report.of("batch-norm-kept")
    assert why in note.message and note.place.op_type == "BatchNormalization"


def test_a_conv_output_that_is_a_graph_output_stays(run_passes: Callable[..., Any]) -> None:
    proto = build([node("Conv", "x w", "c"), bn("c")], (1, 4, 5, 5), outputs=("c", "y"), w=(6, 4, 3, 3), **stats(6))
    assert not run_passes(proto, FuseBatchNorm()).changed


def test_float16(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    nodes = [node("Conv", "x w", "c"), bn("c")]
    good = build(nodes, (1, 4, 5, 5), np.float16, w=(6, 4, 1, 1), **stats(6))
    out = run_passes(good, FuseBatchNorm())
    assert out.ops() == ["Conv"] and out.initializers()["w"].dtype == np.float16
    same_numbers(good, out.proto, rtol=1e-2, atol=5e-3)
    tiny = {**stats(6), "gamma": np.full(6, 3e4), "var": np.full(6, -0.5 + 1e-4)}
    out = run_passes(build(nodes, (1, 4, 5, 5), np.float16, w=np.full((6, 4, 1, 1), 3.0), **tiny), FuseBatchNorm())
    assert not out.changed and out.ctx.report.notes[0].message == "the weight would leave the range of FLOAT16"


def test_variance_must_be_positive(run_passes: Callable[..., Any]) -> None:
    proto = build([node("Conv", "x w", "c"), bn("c")], (1, 4, 5, 5), w=(6, 4, 3, 3), **stats(6))
    for tensor in proto.graph.initializer:
        if tensor.name == "var":
            tensor.CopyFrom(numpy_helper.from_array(np.full(6, -1, np.float32), "var"))
    out = run_passes(proto, FuseBatchNorm())
    assert not out.changed and "not positive" in out.ctx.report.notes[0].message


def test_in_bodies_with_weights_outside(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[1,2,3,3] x) => (float[a,b,d,e] y)
    <float[2,2,1,1] w = {1,2,3,4}, float[2] g = {1,2}, float[2] b = {3,4}, float[2] m = {5,6}, float[2] v = {7,8}> {
      y = If(c) <then_branch = t () => (float[a,b,d,e] p) { q = Conv(x, w) p = BatchNormalization(q, g, b, m, v) },
                 else_branch = f () => (float[a,b,d,e] r) { r = Conv(x, w) }>
    }
    """
    out = run_passes(text, FuseBatchNorm())
    assert [n.op_type for n in out.model.graph.all_nodes()] == ["If", "Conv", "Conv"]
    for flag in (True, False):
        x = RNG.standard_normal((1, 2, 3, 3)).astype("f")
        same_numbers(text, out.proto, {"c": np.array(flag), "x": x})


def test_quantized_weights_stay(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2,3,3] x) => (float[a,b,d,e] y)
    <int8[2,2,1,1] w = {1,2,3,4}, float s = {0.5}, float[2] g = {1,2}, float[2] b = {3,4}> {
      d = DequantizeLinear(w, s)  q = Conv(x, d)  y = BatchNormalization(q, g, b, b, g)
    }
    """)
    assert not run_passes(proto, FuseBatchNorm()).changed


def test_metadata_of_both_is_kept(run_passes: Callable[..., Any]) -> None:
    proto = build([node("Conv", "x w", "c"), bn("c")], (1, 4, 5, 5), w=(6, 4, 3, 3), **stats(6))
    for made, key in zip(proto.graph.node, "ab", strict=True):
        made.metadata_props.add(key=key, value=key)
    (conv,) = run_passes(proto, FuseBatchNorm()).proto.graph.node
    assert conv.name == "Conv_c"
    assert {p.key: p.value for p in conv.metadata_props} == {"a": "a", "b": "b", "onnxq.pass": "fuse-batch-norm"}


def test_large_weights_are_scaled_when_read() -> None:
    data = RNG.standard_normal((512, 1024)).astype("f")
    tensor = ir.LazyTensor(lambda: ir.tensor(data), dtype=ir.DataType.FLOAT, shape=ir.Shape(data.shape), name="w")
    w = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(data.shape), const_value=tensor)
    k = ir.Value(name="k", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1024]),
                 const_value=ir.tensor(np.linspace(1, 2, 1024, dtype="f"), name="k"))  # fmt: skip
    x = ir.val("x", ir.DataType.FLOAT, [3, 512])
    first = ir.node("MatMul", [x, w], name="first")
    second = ir.node("Mul", [first.outputs[0], k], name="second")
    graph = ir.Graph([x], second.outputs, nodes=[first, second], initializers=[w, k], opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    assert run_step(FuseBatchNorm(), model, Context())
    result = model.graph.initializers["w"]
    assert isinstance(result.const_value, ir.LazyTensor) and list(model.graph.initializers) == ["w"]
    wanted = (data * np.linspace(1, 2, 1024, dtype="f").astype(np.float64)).astype("f")
    np.testing.assert_array_equal(constant(result), wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gemm", "attributes", "why"),
    [
        ("x w c", {"beta": 0.0}, "beta=0 leaves no way to add a bias"),
        ("x w x", {}, "its bias is not constant"),
        ("x w column", {}, "its bias has one number a row"),
    ],
)
def test_biases_that_cannot_change(gemm: str, attributes: Any, why: str, run_passes: Callable[..., Any]) -> None:
    nodes = [node("Gemm", gemm, "g", **attributes), bn("g")]
    out = run_passes(build(nodes, (5, 5), w=(5, 5), c=(5,), column=(5, 1), **stats(5)), FuseBatchNorm())
    assert not out.changed and out.ctx.report.of("batch-norm-kept")[0].message == why


def test_integer_products_stay(run_passes: Callable[..., Any]) -> None:
    proto = build([node("MatMul", "x w", "m"), node("Mul", "m k", "y")], (2, 4), np.int32, w=(4, 5), k=(5,))
    out = run_passes(proto, FuseBatchNorm())
    assert not out.changed and out.ops() == ["MatMul", "Mul"]
