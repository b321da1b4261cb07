"""pack-int4 and unpack-int4: the same numbers, exact round trips, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper, parser

from onnxq.errors import DataError, OptionError, UnsupportedError
from onnxq.numerics.spec import QTYPES
from onnxq.passbase import Context, run_step
from onnxq.passes.pack_int4 import PackInt4
from onnxq.passes.unpack_int4 import UnpackInt4

Array = np.ndarray[Any, Any]
Run = Callable[..., Any]


def build(body: str, arrays: dict[str, Any], inputs: str = "float[2,4] x", out: str = "float[a,b] y", opset: int = 21):
    text = f'<ir_version: {13 if opset > 21 else 8}, opset_import: ["" : {opset}]> g ({inputs}) => ({out}) {{ {body} }}'
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return proto


def types(proto: onnx.ModelProto) -> dict[str, str]:
    return {t.name: TensorProto.DataType.Name(t.data_type) for t in proto.graph.initializer}


def nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """All of each node; the parser also writes domains that are empty."""
    return list(ir.to_proto(ir.from_proto(proto)).graph.node)


def exact(before: onnx.ModelProto, after: onnx.ModelProto, run_model: Run, feeds: dict[str, Array]) -> None:
    """Bit-equal where Q/DQ nodes run as they are written."""
    for a, b in zip(run_model(before, feeds, true=True), run_model(after, feeds, true=True), strict=True):
        np.testing.assert_array_equal(a, b)


X = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
W = np.array([[-8, 7, 3], [0, -1, 5], [2, 2, -3], [1, 0, 6]], np.int8)
S = np.array([0.5, 0.25, 0.125], np.float32)


@settings(max_examples=24, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    signed=st.booleans(),
    bits=st.sampled_from([4, 2]),
    granularity=st.sampled_from(["tensor", "channel", "blocked"]),
    zero=st.booleans(),
    columns=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_round_trip(
    run_passes: Run,
    run_model: Run,
    signed: bool,
    bits: int,
    granularity: str,
    zero: bool,
    columns: int,
    seed: int,
) -> None:
    """Against onnx's decoder and onnxruntime; the way back gives the very file, but for opset and IR version."""
    qtype, rng = QTYPES[f"{'int' if signed else 'uint'}{bits}"], np.random.default_rng(seed)
    values = rng.integers(qtype.qmin, qtype.qmax + 1, (4, columns)).astype(qtype.carrier)
    shape = {"tensor": (), "channel": (columns,), "blocked": (2, columns)}[granularity]
    attributes = {"tensor": "", "channel": "<axis=1>", "blocked": "<axis=0, block_size=3>"}[granularity]
    arrays = {"w": values, "s": rng.random(shape, np.float32) + np.float32(0.1)}
    if zero:
        arrays["z"] = rng.integers(qtype.qmin, qtype.qmax + 1, shape).astype(qtype.carrier)
    before = build(f"y = DequantizeLinear{attributes}(w, s{', z' if zero else ''})", arrays)
    packed = run_passes(before, PackInt4(bits=bits))
    onnx.checker.check_model(packed.proto, full_check=True)
    assert packed.changed and packed.proto.ir_version == (10 if bits == 4 else 13)
    assert packed.proto.opset_import[0].version == (21 if bits == 4 else 25)
    for name in ("w", "z")[: 1 + zero]:
        (record,) = [t for t in packed.proto.graph.initializer if t.name == name]
        assert record.data_type == getattr(TensorProto, qtype.name.upper())
        assert tuple(record.dims) == arrays[name].shape and len(record.raw_data) == -(-arrays[name].size * bits // 8)
        np.testing.assert_array_equal(numpy_helper.to_array(record).astype(int), arrays[name].astype(int))
    exact(before, packed.proto, run_model, {"x": X["x"]})
    back = run_passes(packed.proto, UnpackInt4()).proto
    assert list(back.graph.initializer) == list(before.graph.initializer)
    assert nodes(back) == nodes(before)


def test_what_fits_is_packed_and_the_rest_is_counted(run_passes: Run, run_model: Run) -> None:
    wide = np.array([[1, 2, 127]] * 3, np.int8)
    body = "d = DequantizeLinear<axis=1>(w, s) m = MatMul(x, d) e = DequantizeLinear<axis=1>(v, s) y = MatMul(m, e)"
    before = build(body, {"w": W, "v": wide, "s": S})
    out = run_passes(before, PackInt4())
    assert types(out.proto) == {"w": "INT4", "v": "INT8", "s": "FLOAT"}
    (note,) = [n for n in out.ctx.report.notes if n.code == "packed"]
    assert note.numbers == {"packed": 1, "stored": 2, "wide": 1}
    exact(before, out.proto, run_model, X)
    for include in ("v", "op:MatMul", "op:DequantizeLinear"):
        with pytest.raises(DataError, match=r"'v' cannot be packed: 127 at \[0, 2\] does not fit int4 \(-8 \.\.\. 7\)"):
            run_passes(before, PackInt4(include=(include,)))
    assert types(run_passes(before, PackInt4(include=("w",))).proto)["w"] == "INT4"
    with pytest.raises(OptionError, match="'u' matches no node"):
        run_passes(before, PackInt4(include=("u",)))


def test_two_bits_in_nodes_of_onnxruntime(run_passes: Run, run_model: Run) -> None:
    """com.microsoft's DequantizeLinear takes 4 bits; with 2 bits onnxruntime refuses the model."""
    before = build("d = com.microsoft.DequantizeLinear<axis=1>(w, s) y = MatMul(x, d)", {"w": W % 2, "s": S}, opset=17)
    before.opset_import.add(domain="com.microsoft", version=1)
    narrow = run_passes(before, PackInt4())
    assert types(narrow.proto)["w"] == "INT4"
    exact(before, narrow.proto, run_model, X)
    kept = run_passes(before, PackInt4(bits=2))
    assert not kept.changed and types(kept.proto)["w"] == "INT8"
    assert "com.microsoft's DequantizeLinear has no 2-bit types" in kept.ctx.report.notes[0].message


def test_a_shared_pair_keeps_everything(run_passes: Run, run_model: Run) -> None:
    """One DequantizeLinear, three readers, one of them in a body; axis, blocks, output type, metadata stay."""
    body = """
      d = DequantizeLinear<axis = 0, block_size = 2, output_dtype = 10>(w, s, z)
      f = Cast<to = 1>(d) m = MatMul(x, f) g = MatMul(x, f)
      k = If(c) <then_branch = yes () => (float[2,3] p) { h = Cast<to = 1>(d) p = MatMul(x, h) },
                 else_branch = no () => (float[2,3] q) { q = Identity(m) }>
      y = Sum(m, g, k)"""
    scale = np.array([[0.5, 0.25, 0.125], [1, 2, 0.5]], np.float16)
    zero = np.array([[1, -2, 3], [0, 7, -8]], np.int8)
    before = build(body, {"w": W, "s": scale, "z": zero}, "float[2,4] x, bool c", opset=23)
    before.graph.node[0].metadata_props.add(key="origin", value="trained")
    before.graph.initializer[0].doc_string = "weights"
    before.graph.initializer[0].metadata_props.add(key="k", value="v")
    out = run_passes(before, PackInt4())
    assert types(out.proto) == {"w": "INT4", "s": "FLOAT16", "z": "INT4"}
    assert nodes(out.proto) == nodes(before)
    assert out.proto.graph.initializer[0].doc_string == "weights"
    assert [(e.key, e.value) for e in out.proto.graph.initializer[0].metadata_props] == [("k", "v")]
    for c in (True, False):
        exact(before, out.proto, run_model, {**X, "c": np.array(c)})


def test_recurrent_weights(run_passes: Run, run_model: Run) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "w": rng.integers(-8, 8, (1, 12, 5)).astype(np.int8),
        "r": rng.integers(-8, 8, (1, 12, 3)).astype(np.int8),
        "s": np.full(12, 0.05, np.float32),
    }
    body = """a = DequantizeLinear<axis = 1>(w, s) b = DequantizeLinear<axis = 1>(r, s)
              h, y = LSTM<hidden_size = 3>(x, a, b)"""
    before = build(body, arrays, "float[4,2,5] x", "float[1,2,3] y")
    out = run_passes(before, PackInt4())
    assert types(out.proto) == {"w": "INT4", "r": "INT4", "s": "FLOAT"}
    exact(before, out.proto, run_model, {"x": rng.standard_normal((4, 2, 5)).astype(np.float32)})


def test_zero_points_that_others_read(run_passes: Run, run_model: Run) -> None:
    """The pair on the activation keeps its int8 zero point; both weights share a packed one."""
    body = """q = QuantizeLinear(x, t, z) p = DequantizeLinear(q, t, z)
      d = DequantizeLinear(w, t, z) m = MatMul(p, d) e = DequantizeLinear(v, t, z) y = MatMul(m, e)"""
    v = np.arange(9, dtype=np.int8).reshape(3, 3) - 4
    before = build(body, {"w": W, "v": v, "t": np.float32(0.1), "z": np.int8(3)})
    out = run_passes(before, PackInt4())
    assert types(out.proto) == {"w": "INT4", "v": "INT4", "t": "FLOAT", "z": "INT8", "z_1": "INT4"}
    assert [n.input[2] for n in out.proto.graph.node if len(n.input) > 2] == ["z", "z", "z_1", "z_1"]
    exact(before, out.proto, run_model, X)
    back = run_passes(out.proto, UnpackInt4())
    assert types(back.proto)["z_1"] == "INT8"
    exact(before, back.proto, run_model, X)


KEPT = {
    "its zero point is computed": "k = Cast<to = 3>(x0) y = DequantizeLinear(w, t, k)",
    "'w' is a graph output": "y = DequantizeLinear(w, t)",
    "Cast 'c' reads it": "y = DequantizeLinear(w, t) [c] o = Cast<to = 1>(w)",
    "Reshape 'r' reads it": "[r] u = Reshape(w, shape) y = DequantizeLinear(u, t)",
    "99 at [] of its zero point 'z' does not fit int4": "y = DequantizeLinear(w, t, z)",
}


@pytest.mark.parametrize("why", KEPT)
def test_stays_with_the_reason(why: str, run_passes: Run) -> None:
    arrays = {"w": W, "t": np.float32(0.1), "z": np.int8(99), "shape": np.array([3, 4])}
    out = "float[a,b] y" + (", int8[4,3] w" if "output" in why else "")
    before = build(KEPT[why], arrays, "float[2,4] x, int32 x0", out)
    made = run_passes(before, PackInt4())
    assert types(made.proto)["w"] == "INT8" and not made.changed
    (note,) = [n for n in made.ctx.report.notes if n.code == "not-packed"]
    assert note.message.startswith(f"it stays in 8 bits: {why}")
    with pytest.raises(DataError, match="pack-int4: 'w' cannot be packed: "):
        run_passes(before, PackInt4(include=("w",)))


def test_pairs_on_floats_are_left(run_passes: Run) -> None:
    before = build("q = QuantizeLinear(w, t, z) y = DequantizeLinear(q, t, z)", {"w": S, "t": S[0], "z": np.int8(0)})
    out = run_passes(before, PackInt4())
    assert not out.changed and not out.ctx.report.notes and nodes(out.proto) == nodes(before)


def test_transposes_may_stand_between(run_passes: Run, run_model: Run) -> None:
    body = "[t] v = Transpose<perm = [1, 0]>(w) d = DequantizeLinear<axis = 0>(v, s) y = Gemm<transB = 1>(x, d)"
    before = build(body, {"w": W, "s": S})
    out = run_passes(before, PackInt4())
    assert types(out.proto)["w"] == "INT4" and out.model.graph[0].outputs[0].dtype == ir.DataType.INT4
    onnx.checker.check_model(out.proto, full_check=True)
    exact(before, out.proto, run_model, X)


@pytest.mark.parametrize("opset", [13, 19])
def test_every_node_is_upgraded(opset: int, run_passes: Run, run_model: Run) -> None:
    """ReduceMean's axes became an input in opset 18: an import that is bumped alone would not load."""
    axes = "axes = [1], keepdims = 1" if opset < 18 else "keepdims = 1"
    more = "" if opset < 18 else ", one"
    body = f"d = DequantizeLinear<axis = 1>(w, s) m = MatMul(x, d) y = ReduceMean<{axes}>(m{more})"
    before = build(body, {"w": W, "s": S, "one": np.array([1])}, opset=opset)
    out = run_passes(before, PackInt4())
    onnx.checker.check_model(out.proto, full_check=True)
    assert out.proto.opset_import[0].version == 21 and out.proto.ir_version == 10
    exact(before, out.proto, run_model, X)
    nothing = build("y = ReduceMean<keepdims = 1>(x)", {}, opset=opset)
    assert not run_passes(nothing, PackInt4()).changed


def test_a_node_that_cannot_be_upgraded(run_passes: Run) -> None:
    body = "d = com.microsoft.DequantizeLinear<axis = 1>(w, s) [bn] y = BatchNormalization<spatial = 0>(d, s, s, s, s)"
    before = build(body, {"w": W, "s": S}, opset=8)
    before.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(
        UnsupportedError, match="node 'bn': BatchNormalization of opset 8 cannot be brought to opset 21"
    ):
        run_passes(before, PackInt4())


def function_model(opset: int) -> onnx.ModelProto:
    before = build("y = own.double(x)", {}, out="float[2,3] y")
    before.opset_import.add(domain="own", version=1)
    w = onnx.helper.make_node("Constant", [], ["w"], name="cw", value=numpy_helper.from_array(W))
    s = onnx.helper.make_node("Constant", [], ["s"], name="cs", value=numpy_helper.from_array(S))
    d = onnx.helper.make_node("DequantizeLinear", ["w", "s"], ["d"], name="d", axis=1)
    m = onnx.helper.make_node("MatMul", ["x", "d"], ["y"], name="m")
    imports = [onnx.helper.make_opsetid("", opset)]
    before.functions.append(onnx.helper.make_function("own", "double", ["x"], ["y"], [w, s, d, m], imports))
    before.graph.node[0].domain = "own"
    return before


def test_constants_of_local_functions(run_passes: Run, run_model: Run) -> None:
    before = function_model(21)
    out = run_passes(before, PackInt4())
    (made,) = [n for n in out.proto.functions[0].node if n.output[0] == "w"]
    assert made.attribute[0].t.data_type == TensorProto.INT4 and made.name == "cw"
    onnx.checker.check_model(out.proto, full_check=True)
    exact(before, out.proto, run_model, X)
    exact(before, run_passes(out.proto, UnpackInt4()).proto, run_model, X)
    old = run_passes(function_model(19), PackInt4())
    assert not old.changed and old.codes() == ["not-packed", "packed"]


@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize("quantized", ["nothing", "input", "both"])
@pytest.mark.parametrize("block", [0, 2])
def test_two_bits_in_onnxruntime(columns: int, quantized: str, block: int, run_passes: Run, run_model: Run) -> None:
    """A warning where the default session fails or is wrong, and only there; as ONNX writes it, all is right."""
    w = np.random.default_rng(0).integers(-2, 2, (64, columns)).astype(np.int8)
    steps = np.full((64 // 16, columns) if block else columns, 0.5, np.float32)
    pair = "q = QuantizeLinear(x, t, z) p = DequantizeLinear(q, t, z)"
    attributes = "axis = 0, block_size = 16" if block else "axis = 1"
    made = f"d = DequantizeLinear<{attributes}>(w, s)"
    body = {
        "nothing": f"{made} y = MatMul(x, d)",
        "input": f"{pair} {made} y = MatMul(p, d)",
        "both": f"{pair} {made} m = MatMul(p, d) r = Relu(m) u = QuantizeLinear(r, t, z) y = DequantizeLinear(u, t, z)",
    }[quantized]
    arrays = {"w": w, "s": steps, "t": np.float32(0.1), "z": np.uint8(0)}
    before = build(body, arrays, "float[2,64] x", opset=25)
    out = run_passes(before, PackInt4(bits=2))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)}
    exact(before, out.proto, run_model, feeds)
    (wanted,) = run_model(before, feeds, true=True)
    try:
        bad = bool(np.abs(run_model(out.proto, feeds)[0] - wanted).max() > 0.1 * np.abs(wanted).max())
    except Exception as error:
        assert "tensor(int2)" in str(error)
        bad = True
    assert ("two-bit-weight" in out.codes()) is bad
    assert "two-bit-weight" not in run_passes(before, PackInt4()).codes()


def test_memory_is_one_tensor() -> None:
    """Packed when it is read, each time anew."""
    model = ir.from_proto(build("y = DequantizeLinear(w, t)", {"w": W, "t": S[0]}))
    run_step(PackInt4(), model, Context())
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor) and tensor.raw() is not tensor.raw()
