"""from-matmulnbits: onnxruntime's own packed models as standard ONNX, bit for bit; what stays says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

from onnxq.errors import OptionError
from onnxq.passes.from_matmulnbits import FromMatmulnbits
from onnxq.passes.to_matmulnbits import ToMatmulnbits

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def message(opset: int, nodes: list[onnx.NodeProto], x: Any, y: Any, **constants: Array) -> onnx.ModelProto:
    """A model with com.microsoft; ``x`` and ``y`` are (name, type, dims)."""
    inits = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    infos = [helper.make_tensor_value_info(*i) for i in (x, y)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], inits)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=13)


def runtime(proto: onnx.ModelProto, config: DefaultWeightOnlyQuantConfig) -> onnx.ModelProto:
    """What onnxruntime's own tool makes of a model."""
    tool = MatMulNBitsQuantizer(proto, algo_config=config)
    tool.process()
    made = tool.model.model
    assert isinstance(made, onnx.ModelProto)
    return made


def float_layer(rows: int, columns: int, dtype: type = np.float32) -> onnx.ModelProto:
    w = (RNG.standard_normal((rows, columns)) * 0.2 + 0.05).astype(dtype)
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.FLOAT16
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    return message(21, [node], ("x", kind, ["m", rows]), ("y", kind, ["m", columns]), w=w)


def attributes(node: onnx.NodeProto) -> dict[str, int]:
    return {a.name: a.i for a in node.attribute}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_the_tool_makes(
    bits: int, size: int, symmetric: bool, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    for rows, columns, dtype in ((256, 24, np.float32), (300, 33, np.float32), (100, 8, np.float16)):
        config = DefaultWeightOnlyQuantConfig(size, symmetric, bits=bits)
        packed = runtime(float_layer(rows, columns, dtype), config)
        (node,) = packed.graph.node
        assert node.op_type == "MatMulNBits" and len(node.input) == (3 if symmetric else 4)
        made = run_passes(packed, FromMatmulnbits())
        dq, product = made.proto.graph.node
        blocked = {"axis": 0, "block_size": size}
        assert attributes(dq) == (blocked if rows > size else {"axis": 1}) and product.op_type == "MatMul"
        onnx.checker.check_model(made.proto, full_check=True)
        (weight,) = run_model(packed, {"x": np.eye(rows, dtype=dtype)})
        for options in ({"true": True}, {"optimised": False}):
            (again,) = run_model(made.proto, {"x": np.eye(rows, dtype=dtype)}, **options)
            np.testing.assert_array_equal(again, weight)
        x = RNG.standard_normal((3, rows)).astype(dtype)
        (y,), (wanted,) = run_model(made.proto, {"x": x}, true=True), run_model(packed, {"x": x})
        tolerance = 2e-6 if dtype == np.float32 else 2e-3
        assert np.abs(y.astype(np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()
        (default,) = run_model(made.proto, {"x": x})
        assert np.abs(default.astype(np.float64) - wanted).max() <= 0.02 * np.abs(wanted).max()
        # And back: the same integers, scales and zero points, as bytes.
        back = run_passes(made.proto, ToMatmulnbits()).proto
        (again,) = back.graph.node
        assert attributes(again)["block_size"] == size or rows <= size
        if attributes(again)["block_size"] == size:
            old, new = ({t.name: numpy_helper.to_array(t) for t in p.graph.initializer} for p in (packed, back))
            middle = {2: 0b10101010, 4: 0x88, 8: 0x80}[bits]
            for a, b in zip(node.input[1:], again.input[1:], strict=symmetric or len(again.input) == 4):
                full = old[a].copy()
                if a == node.input[1] and rows % size:
                    full[:, -1, rows % size * bits // 8 :] = 0  # nobody reads what fills the last block
                if not symmetric and a == node.input[3] and bits == 4 and -(-rows // size) % 2:
                    full[:, -1] &= 0xF  # nor the zero point of a block that is not there
                np.testing.assert_array_equal(new[b].reshape(old[a].shape), full)
            assert symmetric or len(again.input) == 4 or np.all(old[node.input[3]] == middle)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_width(
    bits: int, points: bool, flat: bool, run_passes: Callable[..., Any], run_model: Callable[..., Any]
) -> None:
    """Random bytes, a short last block, an odd number of blocks, a bias; scales and zero points flat or not."""
    rows, columns, size, blocks = 72, 6, 16, 5
    parts = {
        "b": RNG.integers(0, 256, (columns, blocks, size * bits // 8)).astype(np.uint8),
        "s": (RNG.random((columns, blocks)) + 0.5).astype(np.float32),
        "z": RNG.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8),
        "c": RNG.standard_normal(columns).astype(np.float32),
    }
    if flat:
        parts["s"], parts["z"] = parts["s"].ravel(), parts["z"].ravel()
    if not points:
        del parts["z"]
    given = {"K": rows, "N": columns, "bits": bits, "block_size": size}
    inputs = ["x", "b", "s", "z" if points else "", "", "c"]
    nodes = [
        helper.make_node("MatMulNBits", inputs, ["y"], "fc", domain="com.microsoft", **given),
    ]
    packed = message(25, nodes, ("x", 1, ["m", rows]), ("y", 1, ["m", columns]), **parts)
    made = run_passes(packed, FromMatmulnbits())
    assert made.ops() == ["DequantizeLinear", "MatMul", "Add"] and made.node("MatMul").name == "fc"
    assert made.node("Add").output[0] == "y"
    stored = made.initializers()
    assert stored["b_quantized"].dtype == {2: ml_dtypes.uint2, 4: ml_dtypes.uint4, 8: np.uint8}[bits]
    assert stored["b_scale"].shape == stored["b_zero_point"].shape == (blocks, columns)
    x = np.concatenate([np.eye(rows), RNG.standard_normal((3, rows))]).astype(np.float32)
    (y,), (wanted,) = run_model(made.proto, {"x": x}, true=True), run_model(packed, {"x": x})
    np.testing.assert_array_equal(y[:rows], wanted[:rows])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_shared_weight_and_levels(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Two nodes over the same bytes get a weight each; the level they ran at is said."""
    base = runtime(float_layer(64, 64), DefaultWeightOnlyQuantConfig(32, True, accuracy_level=4))
    (node,) = base.graph.node
    second = onnx.NodeProto()
    second.CopyFrom(node)
    node.output[0], second.input[0], second.name = "h", "h", "fc2"
    base.graph.node.append(second)
    made = run_passes(base, FromMatmulnbits())
    assert made.ops() == ["DequantizeLinear", "MatMul"] * 2
    one, two = (n for n in made.proto.graph.node if n.op_type == "DequantizeLinear")
    assert not set(one.input) & set(two.input)
    assert made.codes() == ["accuracy-level-dropped", "accuracy-level-dropped", "raised"]
    assert made.ctx.report.notes[0].numbers == {"level": 4}
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    (y,), (wanted,) = run_model(made.proto, {"x": x}), run_model(base, {"x": x})
    np.testing.assert_array_equal(y, wanted, err_msg="the default session fuses both again, at level 4")


def test_bodies(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (bool c, float[m,32] x) => (float[m,n] y) { y = If(c) < then_branch = t () => (float[m,n] p) {
                    p = com.microsoft.MatMulNBits<K=32, N=3, bits=4, block_size=16>(x, b, s) },
                  else_branch = e () => (float[m,n] q) {
                    r = com.microsoft.MatMulNBits<K=32, N=3, bits=4, block_size=16>(x, b, s, , , c) q = Relu(r) } > }"""
    proto = parser.parse_model(text.replace(", , , c", ', "", "", d'))
    for name, array in {
        "b": RNG.integers(0, 256, (3, 2, 8)).astype(np.uint8), "s": RNG.random((3, 2)).astype(np.float32),
        "d": np.ones(3, np.float32),
    }.items():  # fmt: skip
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    made = run_passes(proto, FromMatmulnbits())
    x = RNG.standard_normal((2, 32)).astype(np.float32)
    for flag in (True, False):
        (y,) = run_model(made.proto, {"c": np.array(flag), "x": x}, true=True)
        (wanted,) = run_model(proto, {"c": np.array(flag), "x": x})
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    assert [o.domain for o in made.proto.opset_import] == [""]


def nbits(**changes: Any) -> onnx.ModelProto:
    """A MatMulNBits of 4 bits with something odd about it."""
    parts: dict[str, Array] = {
        "b": RNG.integers(0, 256, (3, 2, 8)).astype(np.uint8), "s": RNG.random((3, 2)).astype(np.float32),
        **changes.pop("parts", {}),
    }  # fmt: skip
    given = {"K": 32, "N": 3, "bits": 4, "block_size": 16, **changes.pop("given", {})}
    inputs = ["x", "b", "s", *changes.pop("more", [])]
    nodes = [
        *changes.pop("before", []),
        helper.make_node("MatMulNBits", inputs, ["y"], "fc", domain="com.microsoft", **given),
    ]
    return message(changes.pop("opset", 21), nodes, ("x", 1, ["m", 32]), ("y", 1, ["m", 3]), **parts)


STAYS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "float-zero-points": (
        lambda: nbits(more=["z"], parts={"z": np.ones((3, 2), np.float32)}),
        "its zero points are no integers",
    ),
    "g-idx": (
        lambda: nbits(more=["", "g"], parts={"g": np.zeros(32, np.int32)}),
        "g_idx orders its rows",
    ),
    "prepacked": (lambda: nbits(given={"weight_prepacked": 1}), "its weight is laid out for one device"),
    "omitted": (
        lambda: nbits(parts={"b": np.zeros((3, 0, 8), np.uint8)}),
        "its weight of shape [3, 0, 8] should be [3, 2, 8]",
    ),
    "three-bits": (lambda: nbits(given={"bits": 3}), "3 bits in blocks of 16"),
    "computed-weight": (
        lambda: nbits(
            before=[helper.make_node("Identity", ["b0"], ["b"])], parts={"b": np.zeros(0, np.uint8)}
        ),
        "its weight is computed",
    ),
    "computed-scales": (lambda: nbits(before=[helper.make_node("Abs", ["s0"], ["s"])]), "its scales are computed"),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str, run_passes: Callable[..., Any]) -> None:
    make, why = STAYS[case]
    proto = make()
    for name in ("b", "s"):
        if any(name in n.output for n in proto.graph.node):
            (tensor,) = [t for t in proto.graph.initializer if t.name == name]
            tensor.name = f"{name}0"
    made = run_passes(proto, FromMatmulnbits())
    (note,) = made.ctx.report.notes
    assert not made.changed and (note.code, note.place.node) == ("not-raised", "fc")
    assert note.message == f"stays MatMulNBits: {why}"


def test_functions(run_passes: Callable[..., Any]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]> g (float[m,32] x) => (float[m,n] y) { y = l.F(x) }
    <domain: "l", opset_import: ["" : 21, "com.microsoft" : 1]> F (x) => (y) {
      b = Constant<value = uint8[1,1,16] {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>()
      s = Constant<value = float[1,1] {0.5}>()
      y = com.microsoft.MatMulNBits<K=32, N=1, bits=4, block_size=32>(x, b, s) }"""
    made = run_passes(text, FromMatmulnbits())
    assert not made.changed and "run inline-functions first" in made.ctx.report.notes[0].message


@pytest.mark.parametrize(("bits", "opset", "needed"), [(4, 20, 21), (8, 17, 21), (2, 21, 25)])
def test_opset(bits: int, opset: int, needed: int, run_passes: Callable[..., Any]) -> None:
    b = RNG.integers(0, 256, (3, 2, 2 * bits)).astype(np.uint8)
    with pytest.raises(OptionError, match=rf"node 'fc': uint{bits} .* need opset {needed}.*run upgrade-opset"):
        run_passes(nbits(given={"bits": bits}, parts={"b": b}, opset=opset), FromMatmulnbits())


# -- GatherBlockQuantized ---------------------------------------------------------------------------------------------


def lookup(
    data: Array | onnx.TensorProto, scales: Array, points: Array | onnx.TensorProto | None, **given: int
) -> onnx.ModelProto:
    inputs = ["t", "i", "s", *([] if points is None else ["z"])]
    node = helper.make_node("GatherBlockQuantized", inputs, ["y"], "emb", domain="com.microsoft", **given)
    kind = TensorProto.FLOAT if scales.dtype == np.float32 else TensorProto.FLOAT16
    proto = message(21, [node], ("i", TensorProto.INT64, ["m", "n"]), ("y", kind, None), s=scales)
    for name, part in (("t", data), ("z", points)):
        if part is not None:
            proto.graph.initializer.append(
                numpy_helper.from_array(part, name) if isinstance(part, np.ndarray) else part
            )
    return proto


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("kind", ["int4", "uint4", "uint8-8", "uint8-4", "uint8-2"])
def test_look_ups(kind: str, points: bool, run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    for dtype, columns, size, blocks in ((np.float32, 64, 16, 4), (np.float16, 40, 16, 3), (np.float32, 16, 32, 1)):
        bits = int(kind[-1])
        scales = (RNG.random((9, blocks)) + 0.5).astype(dtype)
        if kind.startswith("uint8"):
            data = RNG.integers(0, 256, (9, columns * bits // 8)).astype(np.uint8)
            zero = RNG.integers(0, 256, (9, -(-blocks * bits // 8))).astype(np.uint8)
        else:
            low = -8 if kind == "int4" else 0
            data = RNG.integers(low, low + 16, (9, columns)).astype(getattr(ml_dtypes, kind))
            zero = RNG.integers(low, low + 16, (9, blocks)).astype(getattr(ml_dtypes, kind))
        proto = lookup(data, scales, zero if points else None, bits=bits, block_size=size)
        made = run_passes(proto, FromMatmulnbits())
        assert made.ops() == ["Gather"] * 3 + ["DequantizeLinear"]
        gathers = [n for n in made.proto.graph.node if n.op_type == "Gather"]
        assert "emb" in [n.name for n in gathers] and all(n.input[1] == "i" for n in gathers)
        assert attributes(made.node("DequantizeLinear")) == {"axis": 2, "block_size": min(size, columns)}
        assert made.initializers()["t_quantized"].dtype == (np.int8 if kind == "int4" else np.uint8)
        assert made.codes() == (["raised"] if kind == "uint8-8" else ["table-widened", "raised"])
        i = RNG.integers(0, 9, (2, 3))
        (wanted,) = run_model(proto, {"i": i})
        for options in ({}, {"true": True}, {"optimised": False}):
            (y,) = run_model(made.proto, {"i": i}, **options)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, wanted)


def test_look_ups_of_the_tool(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """One table, two Gathers: one copy; blocks along the rows stay."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (int64[m] i, int64[m] j) => (float[m,n] y) {
        a = Gather(w, i) b = Gather(w, j) y = Add(a, b) }"""
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((50, 48)).astype(np.float32), "w"))
    for n, node in enumerate(proto.graph.node):
        node.name = f"n{n}"
    config = DefaultWeightOnlyQuantConfig(16, False, op_types_to_quantize=("Gather",), quant_axes=(("Gather", 1),))
    packed = runtime(proto, config)
    for table in packed.graph.initializer:  # the tool stores a table once a Gather
        assert table.data_type in (TensorProto.UINT4, TensorProto.FLOAT)
    made = run_passes(packed, FromMatmulnbits())
    i, j = RNG.integers(0, 50, (2, 7))
    (wanted,) = run_model(packed, {"i": i, "j": j})
    for options in ({}, {"true": True}):
        (y,) = run_model(made.proto, {"i": i, "j": j}, **options)
        np.testing.assert_array_equal(y, wanted)
    one = packed.graph.node[0]
    del packed.graph.node[1].input[:]
    packed.graph.node[1].input.extend([one.input[0], "j", *one.input[2:]])
    shared = run_passes(packed, FromMatmulnbits())
    assert sum(name.endswith("_quantized") for name in shared.initializers()) == 1


LOOKUPS_THAT_STAY: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "blocks-of-rows": (
        lambda: lookup(
            np.zeros((32, 4), ml_dtypes.int4), np.ones((2, 4), np.float32), None, quantize_axis=0, block_size=16
        ),
        "one scale for 16 rows: blocks must run along a row",
    ),
    "float8": (
        lambda: lookup(
            helper.make_tensor("t", TensorProto.FLOAT8E4M3FN, (4, 16), bytes(64), raw=True),
            np.ones((4, 1), np.float32), None, block_size=16,
        ),
        "its table is float8e4m3fn",
    ),
    "scales": (
        lambda: lookup(np.zeros((4, 32), np.uint8), np.ones((1, 2), np.float32), None, bits=8, block_size=16),
        "its scales of shape [1, 2] should be [4, 2]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKUPS_THAT_STAY)
def test_look_ups_that_stay(case: str, run_passes: Callable[..., Any]) -> None:
    make, why = LOOKUPS_THAT_STAY[case]
    made = run_passes(make(), FromMatmulnbits())
    assert not made.changed and made.ctx.report.notes[0].message == f"stays GatherBlockQuantized: {why}"


def test_look_up_that_is_computed(run_passes: Callable[..., Any]) -> None:
    proto = lookup(np.zeros((4, 32), np.uint8), np.ones((4, 2), np.float32), None, bits=8, block_size=16)
    proto.graph.initializer[0].name = "s0"
    proto.graph.node.insert(0, helper.make_node("Abs", ["s0"], ["s"]))
    made = run_passes(proto, FromMatmulnbits())
    assert "table, scales or zero points are computed" in made.ctx.report.notes[0].message


def test_out_of_range(run_passes: Callable[..., Any], run_model: Callable[..., Any]) -> None:
    """Zeros with GatherBlockQuantized, an error with Gather: the page says so."""
    proto = lookup(np.ones((4, 32), np.uint8), np.ones((4, 2), np.float32), None, bits=8, block_size=16)
    made = run_passes(proto, FromMatmulnbits())
    assert not run_model(proto, {"i": np.array([[7]])})[0].any()
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of data bounds"):
        run_model(made.proto, {"i": np.array([[7]])})
