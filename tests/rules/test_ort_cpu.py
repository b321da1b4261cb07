"""Pairs that onnxruntime does not load: each model fails, its neighbour does not, and the rule tells them apart."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxq.rules.ort_cpu import FLOATS, INTEGERS, NO_KERNEL
from tests.rules.graphs import array, found, loads, model, places, session

PAIR = "q = QuantizeLinear(x, s, z8) d = DequantizeLinear(q, s, z8) "
UNSIGNED = PAIR.replace("z8", "z")
TO_ROWS = {"rows": np.array([4, 16])}
CONSTANTS = "cs = Constant<value = float {0.01}>() cz = Constant<value = int8 {3}>() "
IN_32 = pytest.mark.skipif(not ort.__version__.startswith("1.32."), reason="measured with onnxruntime 1.32")


def three(body: str, outputs: str = "float[A, B] y", inputs: str = "float[2, 2, 16] x", **more: Any) -> onnx.ModelProto:
    return model(f"({inputs}) => ({outputs}) {{ {body} }}", **{**TO_ROWS, **more})


MOVERS = {
    "Reshape": three(PAIR + "r = Reshape(d, rows) y = Tanh(r)"),
    "given-out": three(PAIR + "y = Reshape(d, rows)"),
    "Transpose": three(PAIR + "r = Transpose(d) y = Tanh(r)", "float[A, B, C] y"),
    "Squeeze": three(PAIR + "r = Squeeze(d, a) y = Tanh(r)", inputs="float[1, 2, 16] x", a=np.array([0])),
    "Unsqueeze": three(PAIR + "r = Unsqueeze(d, a) y = Tanh(r)", "float[A, B, C, D] y", a=np.array([0])),
    "Slice": three(PAIR + "r = Slice(d, b, e) y = Tanh(r)", "float[A, B, C] y", b=np.array([0]), e=np.array([1])),
    "MaxPool": three(
        PAIR + "r = MaxPool<kernel_shape = [2, 2]>(d) y = Tanh(r)", "float[A, B, C, D] y", "float[1, 2, 4, 4] x"
    ),
    "two-in-a-row": three(PAIR + "t = Transpose(d) r = Reshape(t, rows) y = Tanh(r)"),
    "opset-25": three(PAIR + "r = Reshape(d, rows) y = Tanh(r)", opset=25),
    "integers-given": three(
        "d = DequantizeLinear(q, s, z8) r = Reshape(d, rows) y = Tanh(r)", inputs="int8[2, 2, 16] q"
    ),
    "one-in-a-row-scale": three(
        PAIR + "r = Reshape(d, rows) y = Tanh(r)", s=np.array([0.01], np.float32), z8=np.array([3], np.int8)
    ),
    "decided-branch": three(
        "y = If(c) <then_branch = t () => (float[4, 16] m) { " + PAIR + "r = Reshape(d, rows) m = Tanh(r) },"
        " else_branch = e () => (float[4, 16] k) { k = Reshape(x, rows) }>",
        c=np.True_,
    ),
}
HEALTHY = {
    "uint8": three(UNSIGNED + "r = Reshape(d, rows) y = Tanh(r)"),
    "int16": three(PAIR + "r = Reshape(d, rows) y = Tanh(r)", z8=np.int16(0)),
    "opset-19": three(PAIR + "r = Reshape(d, rows) y = Tanh(r)", opset=19),
    "pair-behind": three(PAIR + "r = Reshape(d, rows) p = QuantizeLinear(r, s2, z8) y = DequantizeLinear(p, s2, z8)"),
    "pair-behind-two": three(
        PAIR + "r = Reshape(d, rows) t = Transpose(r) p = QuantizeLinear(t, s2, z8) y = DequantizeLinear(p, s2, z8)"
    ),
    "two-readers": three(PAIR + "r = Reshape(d, rows) y = Tanh(r) k = Erf(r)", "float[A, B] y, float[A, B] k"),
    "no-mover": three(PAIR + "f = Flatten(d) y = Tanh(f)"),
    "no-zero-point": three(
        "q = QuantizeLinear<output_dtype = 3>(x, s) d = DequantizeLinear(q, s) r = Reshape(d, rows) y = Tanh(r)"
    ),
    "weight": three(
        "d = DequantizeLinear(w, s, z8) t = Transpose(d) y = MatMul(x, t)", "float[A, B, C] y", w=array(16, 16)
    ),
    "constants-outside": three(
        "y = If(c) <then_branch = t () => (float[4, 16] m) { " + PAIR + "r = Reshape(d, rows) m = Tanh(r) },"
        " else_branch = e () => (float[4, 16] k) { k = Reshape(x, rows) }>",
        inputs="float[2, 2, 16] x, bool c",
    ),
}


@IN_32
@pytest.mark.parametrize("name", MOVERS)
def test_int8_behind_data_movement(name: str) -> None:
    where = places(MOVERS[name], "OQ611")
    assert not loads(MOVERS[name])
    assert [place.rsplit("/", 1)[-1] for place in where] == ["d"]


@IN_32
@pytest.mark.parametrize("name", HEALTHY)
def test_int8_that_loads(name: str) -> None:
    assert not found(HEALTHY[name], "OQ611") and loads(HEALTHY[name])


@IN_32
def test_int8_in_bodies_and_functions() -> None:
    rows = "rows = Constant<value = int64[2] {4, 16}>() "
    pair = CONSTANTS + rows + "q = QuantizeLinear(x, cs, cz) d = DequantizeLinear(q, cs, cz) r = Reshape(d, rows) "
    branch = model(
        "(float[2, 2, 16] x, bool c) => (float[A, B] y) { y = If(c) <then_branch = t () => (float[4, 16] m) { "
        f"{pair} m = Tanh(r) }}, else_branch = e () => (float[4, 16] k) {{ o = Constant<value = int64[2] {{4, 16}}>() "
        "k = Reshape(x, o) }> }"
    )
    function = model(
        "(float[2, 2, 16] x) => (float[A, B] y) { y = l.f(x) }",
        functions=f'<domain: "l", opset_import: ["": 21]> f (x) => (y) {{ {pair} y = Tanh(r) }}',
    )
    assert places(branch, "OQ611") == ["y/then_branch/d"] and not loads(branch)
    assert places(function, "OQ611") == ["l::f/d"] and not loads(function)


BIASED = "w = DequantizeLinear(wq, s, wz) m = MatMul(d, w) a = Add(m, b) "
WEIGHT = {"wq": array(16, 16), "wz": np.int8(0), "b": np.ones(16, np.float32)}


@IN_32
@pytest.mark.parametrize(
    ("body", "more", "fails"),
    [
        (PAIR + BIASED + "y = Relu(a)", {}, True),
        (PAIR + BIASED + "p = QuantizeLinear(a, s2, z8) y = DequantizeLinear(p, s2, z8)", {}, True),
        (PAIR + BIASED.replace("m, b", "b, m") + "y = Relu(a)", {}, True),
        (PAIR + "o = DequantizeLinear(bq, s) " + BIASED.replace("m, b", "m, o") + "y = Relu(a)", {}, True),
        (UNSIGNED + BIASED + "y = Relu(a)", {}, False),
        (PAIR + BIASED + "y = Relu(a)", {"inputs": "float[N, 2, 16] x"}, False),
        (PAIR + BIASED + "y = Relu(a)", {"opset": 19}, False),
        (PAIR + BIASED + "y = Relu(a)", {"b": np.ones((1, 16), np.float32)}, False),
        (PAIR + BIASED + "y = Relu(a)", {"b": np.ones(1, np.float32)}, False),
        (PAIR + BIASED + "y = Relu(a)", {"inputs": "float[4, 16] x", "outputs": "float[A, B] y"}, False),
    ],
)
def test_int8_products_of_rank_three(body: str, more: dict[str, Any], fails: bool) -> None:
    proto = three(body, **{"outputs": "float[A, B, C] y", **WEIGHT, "bq": np.ones(16, np.int32), **more})
    assert places(proto, "OQ611") == (["m"] if fails else [])
    assert loads(proto) is not fails


TWICE = "q = QuantizeLinear<output_dtype = 3>(x, s, z8) d = DequantizeLinear(q, s, z8) "


@IN_32
@pytest.mark.parametrize(
    ("body", "more", "fails"),
    [
        (TWICE + "y = Tanh(d)", {}, True),
        (TWICE.replace("d =", "y ="), {}, True),
        (TWICE + "y = Tanh(d)", {"opset": 23}, True),
        (TWICE + "y = Tanh(d) k = Erf(d)", {"outputs": "float[A, B, C] y, float[A, B, C] k"}, False),
        (TWICE.replace("z8", "z").replace("= 3", "= 2") + "y = Tanh(d)", {}, False),
        (TWICE.replace("<output_dtype = 3>", "") + "y = Tanh(d)", {}, False),
    ],
)
def test_a_type_said_twice(body: str, more: dict[str, Any], fails: bool) -> None:
    proto = three(body, **{"outputs": "float[A, B, C] y", **more})
    (one, *_) = [*found(proto, "OQ612"), None]
    assert (one is not None) is fails
    assert one is None or (one.place.value == "q" and one.fix == "drop-output-dtype")
    assert loads(proto) is not fails


HALF = {"s": np.float16(0.01), "inputs": "float16[2, 2, 16] x", "outputs": "float16[A, B, C] y"}
JOINED = "c = Concat<axis = 1>(d, d) p = QuantizeLinear(c, s, z) y = DequantizeLinear(p, s, z)"


@IN_32
@pytest.mark.parametrize(
    ("body", "more", "fails"),
    [
        (UNSIGNED + JOINED, HALF, True),
        (UNSIGNED + JOINED.replace("(c, s", "(t, s").replace("p =", "t = Transpose(c) p ="), HALF, True),
        (UNSIGNED + JOINED, {"outputs": "float[A, B, C] y"}, False),
        (UNSIGNED + "c = Concat<axis = 1>(d, d) y = Tanh(c)", HALF, False),
        (UNSIGNED + JOINED.replace("(d, d)", "(d, x)"), HALF, False),
        (UNSIGNED + JOINED, {**HALF, "z": np.uint16(0)}, False),
    ],
)
def test_joined_halves(body: str, more: dict[str, Any], fails: bool) -> None:
    proto = three(body, **more)
    assert places(proto, "OQ613") == (["c"] if fails else [])
    assert loads(proto) is not fails


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        ("(int32[4] x) => (uint8[4] q) { q = QuantizeLinear(x, s, z) }", {}, "of int32"),
        ("(bfloat16[4] x) => (uint8[4] q) { q = QuantizeLinear(x, s, z) }", {"s": np.array(1, ml_dtypes.bfloat16)},
         "scale of bfloat16"),
        ("(float[4] x) => (uint8[4] q) { h = Cast<to = 6>(x) q = QuantizeLinear(h, s, z) }", {}, "of int32"),
        ("(float[4] x) => (float[4] y) { d = DequantizeLinear(f, s) y = Add(x, d) }",
         {"f": np.zeros(4, ml_dtypes.float4_e2m1fn), "opset": 23}, "from float4e2m1"),
        ("(float[1, 1, 4, 4] x, float[2, 4] r, int64[2] i) => (float[A, B, C, D] y) { y = RoiAlign(x, r, i) }",
         {"opset": 22}, "RoiAlign of opset 22"),
    ],
)  # fmt: skip
def test_no_kernel(text: str, more: dict[str, Any], why: str) -> None:
    proto = model(text, **more)
    (one,) = found(proto, "OQ602")
    assert why in str(one)
    with pytest.raises(Exception, match=r"NOT_IMPLEMENTED|Could not find|Type Error"):
        session(proto)


def test_kernels_that_are_there() -> None:
    text = "(float[4] x) => (float[4] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    for kind in (np.uint8, np.int16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn):
        proto = model(text, z=np.zeros((), kind))
        assert not found(proto, "OQ602") and loads(proto)


@IN_32
def test_the_table_is_that_of_onnxruntime() -> None:
    from onnxruntime.capi import _pybind_state as state

    rows = [k for k in state.get_all_opkernel_def() if k.provider == "CPUExecutionProvider" and not k.domain]
    written = {t for k in rows if k.op_name == "QuantizeLinear" for name, ts in k.type_constraints.items() for t in ts}
    names = {t.removeprefix("tensor(").removesuffix(")").upper() for t in written}
    assert names == {t.name for t in INTEGERS | FLOATS}
    newest: dict[str, int] = {}
    for row in rows:
        newest[row.op_name] = max(newest.get(row.op_name, 0), row.version_range[0])
    for op_type, opset in NO_KERNEL.items():
        assert onnx.defs.get_schema(op_type, opset).since_version == opset > newest.get(op_type, 0)


def test_only_for_onnxruntime() -> None:
    for code, proto in (("OQ611", MOVERS["Reshape"]), ("OQ612", three(TWICE + "y = Tanh(d)", "float[A, B, C] y"))):
        assert not found(proto, code, None) and not found(proto, code, "ascend")
