"""untranspose-gemm: the same product with the weight the other way round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxq.context import Context
from onnxq.facts import Goal
from onnxq.passbase import run_step
from onnxq.passes.thaw import Thaw
from onnxq.passes.untranspose_gemm import UntransposeGemm, transposed
from onnxq.targets import load_target

ALWAYS = UntransposeGemm(when="always")
RNG = np.random.default_rng(3)
W = RNG.standard_normal((5, 70)).astype(np.float32)
HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[3,70] x) => (float[3,5] y) { '


def model(body: str, head: str = HEAD, /, **constants: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(head + body + " }")
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), k) for k, a in constants.items())
    return proto


def test_float(run_passes: Callable[..., Any], same_numbers: Callable[..., Any]) -> None:
    before = model("y = Gemm<transB=1>(x, w, b)", w=W, b=np.arange(5, dtype=np.float32))
    out = run_passes(before, ALWAYS)
    np.testing.assert_array_equal(out.initializers()["w"], W.T)
    assert not out.node("Gemm").attribute and out.initializers().keys() == {"w", "b"}
    same_numbers(before, out.proto, rtol=1e-5)
    assert isinstance(out.model.graph.initializers["w"].const_value, ir.LazyTensor)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "int16"])
@pytest.mark.parametrize(
    ("attributes", "shape", "moved"),
    [
        ("", (), None),
        ("", (1,), 0),
        ("<axis=0>", (5,), 1),
        ("<axis=-2>", (5,), 1),
        ("<axis=1>", (70,), 0),
        ("", (70,), 0),
        ("<axis=1, block_size=32>", (5, 3), 0),
        ("<axis=-1, block_size=35>", (5, 2), 0),
        ("<axis=0, block_size=3>", (2, 70), 1),
    ],
)
@pytest.mark.parametrize("form", ["deploy", "fake-quant", "no zero point"])
def test_integers(
    dtype: str, attributes: str, shape: tuple[int, ...], moved: int | None, form: str,
    run_passes: Callable[..., Any], run_model: Callable[..., Any],
) -> None:  # fmt: skip
    numbers = getattr(ml_dtypes, dtype) if "4" in dtype else np.dtype(dtype)
    low, high = ((0, 16) if dtype[0] == "u" else (-8, 8)) if "4" in dtype else (0, 127)
    w = RNG.integers(low, high, (5, 70)).astype(np.int8).astype(numbers)
    scale = RNG.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = np.asarray(RNG.integers(0, 4, shape)).astype(np.int8).astype(numbers)
    constants: dict[str, Any] = {"wq": w, "s": scale} | ({} if form == "no zero point" else {"z": zero})
    before = model(f"w = DequantizeLinear{attributes}({', '.join(constants)}) y = Gemm<transB=1>(x, w)", **constants)
    if form == "fake-quant":
        before = run_passes(before, Thaw()).proto
    out = run_passes(before, ALWAYS)
    onnx.checker.check_model(out.proto, full_check=True)
    feeds = {"x": RNG.standard_normal((3, 70)).astype(np.float32)}
    wanted = run_model(before, feeds, true=True)[0]
    # Exact: what reaches the Gemm is the same matrix; its sums may be taken in another order.
    ends = [ir.from_proto(m) for m in (before, out.proto)]
    for end in ends:
        (gemm,) = [n for n in end.graph if n.op_type == "Gemm"]
        weight = gemm.inputs[1]
        assert weight is not None
        weight.shape, weight.dtype = ir.Shape(["a", "b"]), ir.DataType.FLOAT
        end.graph.outputs[:] = [weight]
    a, b = (run_model(ir.to_proto(end), feeds, true=True)[0] for end in ends)
    np.testing.assert_array_equal(a.T, b)
    np.testing.assert_allclose(run_model(out.proto, feeds, true=True)[0], wanted, rtol=1e-5, atol=1e-5)
    # By default onnxruntime rounds the input of a weight-only product to 8 bits, for transB=0 only.
    default = run_model(out.proto, feeds)[0]
    np.testing.assert_allclose(default, wanted, atol=0.03 * float(np.abs(wanted).max()))
    for node in out.proto.graph.node[:-1]:
        assert {a.name: a.i for a in node.attribute if a.name == "axis"} == ({} if moved is None else {"axis": moved})
    assert {t.name for t in out.proto.graph.initializer} == {t.name for t in before.graph.initializer}
    assert [n.name for n in out.proto.graph.node] == [n.name for n in before.graph.node]


def test_shared_weight_is_copied_once(run_passes: Callable[..., Any], same_numbers: Callable[..., Any]) -> None:
    """Three Gemms read one copy, the look-up and the Gemm with transB=0 keep the old one."""
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[3,5] x, int64[2] i) => (float[3,5] y, float[2,5] t) { '
    body = (
        "a = Gemm<transB=1>(x, w) b = Gemm<transB=1>(a, w) c = Gemm(b, w) t = Gather(w, i) d = Transpose<perm=[1,0]>(w)"
        "y = Gemm<transB=1>(c, d)"
    )
    before = model(body, head, w=W[:, :5])
    out = run_passes(before, ALWAYS)
    assert out.ops() == ["Gemm", "Gemm", "Gemm", "Gather", "Gemm"]
    gemms = [n for n in out.proto.graph.node if n.op_type == "Gemm"]
    assert [n.input[1] for n in gemms] == ["w_transposed", "w_transposed", "w", "w"]
    assert out.initializers().keys() == {"w", "w_transposed"}
    same_numbers(before, out.proto)


def test_shared_pair(run_passes: Callable[..., Any], same_numbers: Callable[..., Any]) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[3,5] x) => (float[3,5] y, float[5,5] z) { '
    body = "w = DequantizeLinear<axis=0>(q, s) a = Gemm<transB=1>(x, w) y = Gemm<transB=1>(a, w) z = Relu(w)"
    before = model(body, head, q=RNG.integers(-9, 9, (5, 5)).astype(np.int8), s=np.arange(1, 6, dtype=np.float32))
    out = run_passes(before, ALWAYS)
    assert out.ops() == ["DequantizeLinear", "DequantizeLinear", "Gemm", "Gemm", "Relu"]
    same_numbers(before, out.proto, atol=2e-2)


def test_in_bodies(run_passes: Callable[..., Any], same_numbers: Callable[..., Any]) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[3,70] x, bool c) => (float[3,5] y) { '
    body = """y = If(c) <then_branch = yes () => (float[3,5] p) { p = Gemm<transB=1>(x, w) },
      else_branch = no () => (float[3,5] r) <float[5,70] v = {%s}> { q = Gemm<transB=1>(x, w) t = Gemm<transB=1>(x, v)
      r = Sub(q, t) }>"""
    before = model(body % ",".join(map(str, range(350))), head, w=W)
    out = run_passes(before, ALWAYS)
    assert out.initializers()["w"].shape == (70, 5)
    for c in (True, False):
        same_numbers(before, out.proto, {"x": RNG.standard_normal((3, 70)).astype(np.float32), "c": np.array(c)})


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("v = Relu(w) y = Gemm<transB=1>(x, v)", {"w": W}),
        (
            "s = ReduceMax<keepdims=1>(x) t = Expand(s, n) v = DequantizeLinear<axis=1, block_size=70>(q, t) "
            "y = Gemm<transB=1>(x, v)",
            {"q": np.ones((5, 70), np.int8), "n": np.array([5, 1])},
        ),
        ("v = Transpose<perm=[0,1]>(w) y = Gemm<transB=1>(x, v)", {"w": W}),
    ],
)
def test_computed_weight(body: str, constants: dict[str, Any], run_passes: Callable[..., Any]) -> None:
    out = run_passes(model(body, **constants), ALWAYS)
    assert out.codes() == ["gemm-kept"] and not out.changed


def test_old_file(run_passes: Callable[..., Any], same_numbers: Callable[..., Any]) -> None:
    """IR version 3 lists its constants among the inputs."""
    head = '<ir_version: 3, opset_import: ["" : 8]> g (float[3,70] x, float[5,70] w, float[5] b) => (float[3,5] y) { '
    before = model("y = Gemm<transB=1>(x, w, b)", head, w=W, b=np.ones(5, np.float32))
    out = run_passes(before, ALWAYS)
    assert [i.name for i in out.proto.graph.input] == ["x"]
    same_numbers(before, out.proto)


@pytest.mark.parametrize(
    ("options", "trans_b", "changed"),
    [
        ({}, False, True),
        ({}, True, False),
        ({}, None, False),
        ({"when": "never"}, False, False),
        ({"when": "always"}, True, True),
        ({"target": "ascend"}, None, True),
        ({"target": "ascend"}, True, False),
    ],
)
def test_target_decides(options: dict[str, Any], trans_b: bool | None, changed: bool) -> None:
    graph, ctx = ir.from_proto(model("y = Gemm<transB=1>(x, w)", w=W)), Context()
    if trans_b is not None:
        ctx.put(Goal(replace(load_target("onnx"), gemm_trans_b=trans_b)))
    assert run_step(UntransposeGemm(**options), graph, ctx) is changed


@pytest.mark.parametrize("shape", [(0, 3), (1, 5), (128, 2), (300, 7)])
def test_strips(shape: tuple[int, int]) -> None:
    matrix = RNG.integers(-8, 8, shape).astype(ml_dtypes.int4)
    np.testing.assert_array_equal(transposed(matrix), matrix.T)
    assert transposed(matrix).flags.c_contiguous
